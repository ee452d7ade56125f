"""What hangs while episodes are made: a limit on time replaces the worker, and without one it is at least said."""

import logging
import re
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from treadle import seeding
from treadle.evaluation.evaluate import evaluate
from treadle.play.episode import Episode
from treadle.pool import calls
from treadle.sample.collect import collect
from treadle.sample.failed import CollectionFailed
from treadle.worker.options import WorkerOptions

HANGING = 5  # the episode that hangs
HANGING_SEED = seeding.episode_env_seed(0, HANGING)


class Walk(gym.Env):
    """Episodes of 3 to 8 steps. In step 2 of one of them `strike` is called, if the file `once` can be made."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, once: Path | None = None, seconds: float = 3600.0, in_reset: bool = False) -> None:
        self.once, self.seconds, self.in_reset = once, seconds, in_reset

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.end, self.struck = 0, int(self.np_random.integers(3, 9)), seed == HANGING_SEED
        if self.struck and self.in_reset:
            self.strike()
        return self.look(), {}

    def look(self) -> np.ndarray:
        return np.array([self.t, self.np_random.random()])

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.struck and self.t == 2 and not self.in_reset:
            self.strike()
        return self.look(), 1.0, self.t >= self.end, False, {}

    def strike(self) -> None:
        try:
            if self.once is not None:
                self.once.touch(exist_ok=False)
        except FileExistsError:
            return
        time.sleep(self.seconds)


class Coroutines(Walk):
    async def reset(self, **options: Any) -> Any:  # type: ignore[override]
        return super().reset(**options)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        return super().step(action)


def same(a: list[Episode], b: list[Episode]) -> bool:
    return all(x.observations.tobytes() == y.observations.tobytes() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("in_reset", [False, True])
def test_a_worker_that_hangs_is_replaced_and_nothing_changes(
    in_reset: bool, rows: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    once = tmp_path / "once"
    with caplog.at_level(logging.WARNING, "treadle"):
        how: Any = {"num_envs": 2 * rows, "workers": 2, "step_timeout": 0.5}
        found = list(collect(lambda: Walk(once, 3600.0, in_reset), episodes=30, **how))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "is replaced: no step came to its end for 0." in line
    doing = "its reset" if in_reset else r"step \d+"
    assert re.search(rf"\(the limit is 0.5 s\) in {doing} of episode {HANGING}, at test_hangs.py:", line)
    assert f"made again: episode {HANGING}" in line
    assert same(found, list(collect(lambda: Walk(once), episodes=30, worker_options=WorkerOptions(backend="serial"))))


def test_an_episode_that_always_hangs_ends_the_run() -> None:
    with pytest.raises(CollectionFailed, match="has cost 3 fresh workers their lives") as caught:
        evaluate(Walk, "random", episodes=30, workers=2, step_timeout=0.4)
    assert (caught.value.where.episode, caught.value.where.seed) == (HANGING, HANGING_SEED)
    assert "no step came to its end" in caught.value.reason


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_without_a_limit_it_is_said_once(
    backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "STILL_WAITING", 0.2)
    with caplog.at_level(logging.WARNING, "treadle"):
        made = list(
            collect(lambda: Walk(None, 1.0), episodes=8, workers=2, worker_options=WorkerOptions(backend=backend))
        )
    assert len(made) == 8
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.search(r"in step \d+ of episode \d+: no answer for 0 s, and no step_timeout is set. Stack:", line)
    assert "in strike" in line


def test_in_threads_that_may_not_be_replaced_a_limit_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "treadle"):
        options: dict[str, Any] = {
            "workers": 2,
            "worker_options": WorkerOptions(backend="thread"),
            "step_timeout": 0.3,
            "on_failure": "raise",
        }
        assert len(list(collect(lambda: Coroutines(None, 1.0), episodes=8, **options))) == 8
    (line,) = [record.getMessage() for record in caplog.records]
    assert "no deadline is enforced" in line


def test_a_worker_that_waits_for_its_caller_does_not_hang(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs out of orders, or of room for answers, while the caller is busy for longer than the limit."""
    with caplog.at_level(logging.WARNING, "treadle"):
        for buffered in (1, 1 << 30):
            made = 0
            monkeypatch.setattr("treadle.sample.collect.MOST_WAITING", buffered)
            options: dict[str, Any] = {"workers": 2, "step_timeout": 0.3}
            for _ in collect(Walk, episodes=150, seed=1, **options):
                made += 1
                if made == 50:
                    time.sleep(0.7)
            assert made == 150
    assert not caplog.records
