"""The benchmark of task vectors counts the steps that were made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import require

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # `benchmarks` is not part of the installed package
    sys.path.insert(0, str(ROOT))

from benchmarks.tasks import LENGTH, IdleSampler, main, stepping, turn  # noqa: E402

from treadle.tasks.vectors import SingleProcessVectorSampledTasks  # noqa: E402


@pytest.mark.parametrize("kind", ["picture", "dict"])
def test_steps_are_counted(kind: str) -> None:
    with SingleProcessVectorSampledTasks(IdleSampler, [{"kind": kind}] * 3, should_log=False) as vec:
        steps, wall = stepping(vec, 3)(0.05)
        stats = vec.stats()
        assert steps == stats.steps.sum()
        assert wall >= 0.05
        assert stats.episodes[0] == 1 + stats.steps[0] // LENGTH

        def setup(kind: str) -> tuple[object, object, object]:
            return stepping(vec, 3), lambda: None, ()

        measured = turn(setup, kind, 0.02, 0.01)
        assert measured.env_steps > 0
        assert measured.cpu_s > 0


@pytest.mark.parametrize("waits", [False, True])
def test_a_step_takes_what_it_is_to_cost(waits: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with SingleProcessVectorSampledTasks(
        IdleSampler, [{"kind": "dict", "cost": (0.002, waits)}], should_log=False
    ) as vec:
        steps, wall = stepping(vec, 1)(0.05)
        assert wall >= 0.002 * steps
    asked = ["--rounds", "1", "--seconds", "0.02", "--costs", "50", "--workers", "1", *(["--wait"] if waits else [])]
    assert main(asked) == 0
    assert capsys.readouterr().out.count(f"| {'waits' if waits else 'computes'} 50 us |") == 2


@pytest.mark.heavy
@pytest.mark.slow
def test_a_row_with_all_contestants(capsys: pytest.CaptureFixture[str]) -> None:
    require("allenact")
    assert main(["--rounds", "1", "--seconds", "0.1", "--warmup", "0.05", "--only", "dict-3"]) == 0
    table = capsys.readouterr().out
    for name in ("limit", "Treadle", "AllenAct", "AllenAct, a process a task"):
        assert f"| tasks dict-3 | {name} |" in table
