"""The benchmarks of nodes count what they say they count. Nothing here looks at how fast anything is."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # `benchmarks` is not part of the installed package
    sys.path.insert(0, str(ROOT))

from benchmarks import nodes, wire  # noqa: E402

pytestmark = [pytest.mark.heavy, pytest.mark.ray]


def test_what_is_sent_and_received_is_counted() -> None:
    face = wire.collecting(200)
    assert face.episodes == 200
    assert face.wire.back > face.steps * 4 * np.dtype(np.float32).itemsize  # of the observations alone
    assert 0 < face.wire.out < face.wire.back
    assert face.wire.calls > 2
    sampled = wire.sampling(200)
    assert wire.WEIGHTS * 4 < sampled.wire.put < wire.WEIGHTS * 5  # a version once, for two workers
    lines = wire.reckoned([face, sampled], sampled.wire.put)
    assert sum(line.startswith("| `") for line in lines) == 2


@pytest.mark.parametrize("count", [0, 2])
def test_a_turn_makes_what_was_wanted(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "RATES", {"cartpole": 3_000, "pong": 1, "sample": 3_000})
    found = nodes.collecting(count, 1.0)
    assert 0 < found.env_steps < 6_000  # the shortest episodes come first
    with nodes.sampling(count, 1.0) as turn:
        assert turn().env_steps >= 3_000
