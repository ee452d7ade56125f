"""Items of a batch that planning stepped: replayed from their state and action."""

from __future__ import annotations

import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from treadle.replays.playing import StillRunning, limited

sys.path.insert(0, str(Path(__file__).parent))

from drills import BAD_STEP, Corridor


class Always(Corridor):
    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        found = super().reset(**given)
        self.seed = self.bad_seed
        return found


def build(render_mode: str | None = None) -> Corridor:
    return Always(render_mode=render_mode)


def test_an_item_is_replayed_from_its_state(tmp_path: Path) -> None:
    env: Any = treadle.ParallelEnv(treadle.GymPlanEnv, build, n_workers=2, worker_output="keep")
    try:
        state, _, _ = env.reset()
        for _ in range(BAD_STEP - 2):
            state, *_ = env.step(1, state=state)
        states = env.step_batch(actions=np.ones(4, np.int64), states=[state] * 4)[0]
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


def test_an_item_whose_worker_died_is_replayed_from_those_that_it_had(tmp_path: Path) -> None:
    env: Any = treadle.ParallelEnv(treadle.GymPlanEnv, lambda: Always("segfault"), n_workers=2, worker_output="keep")
    try:
        early, _, _ = env.reset()
        state = early
        for _ in range(BAD_STEP - 1):
            state, *_ = env.step(1, state=state)
        with pytest.raises(treadle.WorkerDied) as failed:
            env.step_batch(actions=np.ones(4, np.int64), states=[early, state, early, early])
    finally:
        env.close()
    error: Any = failed.value
    assert "items 0 to" in error.repro.about["title"] or "item 1" in error.repro.about["title"]
    result = treadle.replay(error.repro.save(tmp_path / "died.repro"), trust=True)
    assert result.as_recorded, str(result)
    assert "SIGSEGV (drills.py:" in str(result)


def test_an_item_can_be_stopped_and_shown(tmp_path: Path) -> None:
    with closing(treadle.ParallelEnv(treadle.GymPlanEnv, build, n_workers=2, worker_output="keep")) as env:
        state, _, _ = env.reset()
        for _ in range(BAD_STEP - 3):
            state, *_ = env.step(1, state=state)
        with pytest.raises(ZeroDivisionError) as failed:
            env.rollout_batch([state] * 4, np.ones((4, 5), np.int64))
    result = treadle.replay(failed.value)
    assert (result.steps, result.as_recorded) == (3, True), str(result)
    stopped = treadle.replay(failed.value, step=2, render=tmp_path / "item.png")
    assert (stopped.stopped, stopped.steps) == (True, 2)
    assert (tmp_path / "item.png").stat().st_size > 0
    with pytest.raises(treadle.UsageError, match="no policy"):
        treadle.replay(failed.value, policy=True)


def test_a_timer_of_the_users_own_goes_on() -> None:
    rang: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    signal.setitimer(signal.ITIMER_REAL, 1000.0)
    try:
        with limited(5.0) as ring:
            ring()
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 5.0
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
        with limited(0.01) as ring, pytest.raises(StillRunning):
            ring()
            while True:
                pass
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert not rang
