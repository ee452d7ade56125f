"""Items of a batch that planning stepped: replayed from their state and action."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle

sys.path.insert(0, str(Path(__file__).parent))

from drills import BAD_STEP, Corridor


class Always(Corridor):
    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        found = super().reset(**given)
        self.seed = self.bad_seed
        return found


def build() -> Corridor:
    return Always()


@pytest.mark.parametrize("handles", [True, False])
def test_an_item_is_replayed_from_its_state(handles: bool, tmp_path: Path) -> None:
    env: Any = treadle.ParallelEnv(treadle.GymPlanEnv, build, n_workers=2, worker_output="keep")
    try:
        state, _, _ = env.reset()
        for _ in range(BAD_STEP - 2):
            state, *_ = env.step(1, state=state)
        wanted = "handle" if handles else True
        states = env.step_batch(actions=np.ones(4, np.int64), states=[state] * 4, return_state=wanted)[0]
        with pytest.raises(ZeroDivisionError) as failed:
            env.step_batch(actions=np.ones(4, np.int64), states=states)
    finally:
        env.close()
    error: Any = failed.value
    assert error.repro.about["title"] == f"item {error.item} of a batch"
    result = treadle.replay(error)
    assert type(result.error) is ZeroDivisionError
    assert result.as_recorded
    ticks: list[tuple[int, int]] = []
    treadle.replay(error, tick=lambda *at: ticks.append(at))
    assert ticks == [(0, 1)]
    assert [line for line in result.stack.splitlines() if "drills.py" in line]
    path = error.repro.save(tmp_path / "item")
    with pytest.raises(treadle.UsageError, match="the state was"):
        treadle.replay(path)
    assert treadle.replay(path, trust=True).as_recorded
