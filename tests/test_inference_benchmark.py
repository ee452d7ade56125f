"""The benchmark of a policy in the caller: it goes on where it was stopped, and its table is made of what is kept."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:  # `benchmarks` is not part of the installed package
    sys.path.insert(0, str(ROOT))

from benchmarks import inference, many_slots  # noqa: E402
from benchmarks.inference import SETTINGS, Rates, Setting, complete, contestants, ideal, measure  # noqa: E402

SMALL = Setting(4, 0.0, 0.00001, 0.0, 0.0)


def test_what_is_there_is_not_measured_again() -> None:
    rates: Rates = {}
    assert not measure([SMALL], rates, 1, 1, budget=-1.0)
    assert complete(SMALL, rates) is None
    for name in contestants(SMALL):
        rates[SMALL.name][name] = [7.0]
    assert measure([SMALL], rates, 1, 1, budget=-1.0)
    assert complete(SMALL, rates) == dict.fromkeys(contestants(SMALL), 7.0)


def test_every_contestant_plays_the_episodes() -> None:
    rates: Rates = {}
    assert measure([SMALL], rates, 1, 1, budget=math.inf)
    medians = complete(SMALL, rates)
    assert medians is not None
    assert all(rate > 0 for rate in medians.values())


def test_the_command_keeps_what_it_has_measured(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    kept = tmp_path / "rates.json"
    kept.write_text(json.dumps({SETTINGS[0].name: {name: [10.0, 20.0] for name in contestants(SETTINGS[0])}}))
    assert inference.main(["--rows", "1", "--rounds", "2", "--keep", str(kept), "--budget", "0"]) == 0
    said = capsys.readouterr()
    assert "nothing is left to do" in said.err
    assert f"| {SETTINGS[0].name} |" in said.out
    assert f"| {SETTINGS[1].name} |" not in said.out


def test_a_straggler_is_no_part_of_the_ideal() -> None:
    straggler = SETTINGS[-1]
    assert straggler.slow == 20
    alone = Setting(straggler.envs - 1, straggler.wait, straggler.work, straggler.call, straggler.row)
    assert ideal(straggler) == ideal(alone)


@pytest.mark.slow
def test_many_slots_are_counted_by_the_ends_of_their_steps() -> None:
    rate, cores = many_slots.measured(many_slots.CONTESTANTS["coroutines, send and recv"], slots=4, seconds=1.0)
    assert 0 < rate < 4 / many_slots.LOWEST
    assert cores >= 0
