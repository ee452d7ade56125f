"""On systems without fork servers: what is chosen where nobody says a backend, and what asks for processes still."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium as gym
import pytest

import treadle
from treadle.program.gym_env import of_coroutines
from treadle.worker import backends, forkserver


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "works", lambda: False)
    backends._tell_the_price.cache_clear()


class Coroutines(gym.Env[Any, Any]):
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        return action


@pytest.mark.parametrize(
    ("given", "env", "chosen"),
    [
        ({}, "CartPole-v1", "serial"),
        ({"step_timeout": 5.0, "start_method": None}, gym.Wrapper, "serial"),
        ({}, Coroutines, "thread"),
        ({"start_method": "spawn"}, Coroutines, "process"),
        ({"worker_environ": {}}, "CartPole-v1", "process"),
    ],
)
def test_what_is_chosen(given: dict[str, Any], env: Any, chosen: str) -> None:
    assert backends.default_backend(given, coroutines=of_coroutines(env)) == chosen


def test_every_face_chooses_and_the_price_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    from treadle.plan import GymPlanEnv, ParallelEnv

    with caplog.at_level(logging.WARNING, "treadle"):
        envs = treadle.VectorEnv("CartPole-v1", 2)
        assert envs._pool.options.backend == "serial"
        envs.close()
        assert len(list(treadle.collect("CartPole-v1", episodes=2))) == 2
        assert treadle.evaluate("CartPole-v1", "random", episodes=2).mean > 0
        with ParallelEnv(GymPlanEnv, "CartPole-v1", n_workers=2) as planning:
            planning.reset()
        with treadle.VectorSampledTasks(treadle.tasks.GymTaskSampler, [{"env": "CartPole-v1"}]) as tasks:
            tasks.next_task()
    assert ["backend='process' is refused" in text for text in caplog.messages] == [True]


@pytest.mark.parametrize("given", [{"backend": "process"}, {"start_method": "spawn"}])
def test_processes_that_are_asked_for_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(treadle.UsageError, match=r"pidfds \(Linux\): use backend='serial'"):
        list(treadle.collect("CartPole-v1", episodes=2, workers=1, worker_options=treadle.WorkerOptions(**given)))
