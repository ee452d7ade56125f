"""After a step that failed, each face names the call of its own that brings the slot back. What is named is called
here, and the face goes on."""

import re
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import treadle
from conftest import require
from treadle.errors import UsageError, WorkerTimeout
from treadle.vector.gymnasium import VectorEnv

PROCESS, CALLER = {"workers": 2, "inline": 0}, {"worker_options": treadle.WorkerOptions(backend="serial")}
FINE, BAD = np.array([0, 0, 0]), np.array([0, 1, 0])  # slot 1 fails


class Corner(gym.Env[np.ndarray, int]):
    observation_space, action_space = gs.Box(-1, 1, (2,), np.float32), gs.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        if action == 1:
            raise KeyError("corner")
        return np.zeros(2, np.float32), 0.0, False, False, {}


def heavy(library: str, name: str, *given: Any) -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        require(library)
        return getattr(require(f"treadle.{library_of[library]}"), name)(*given, **options)

    return make


library_of = {"stable_baselines3": "sb3", "tianshou": "tianshou", "dm_env": "dm_env"}
FACES: dict[str, Callable[..., Any]] = {
    "VectorEnv": partial(VectorEnv, [Corner] * 3),
    "AsyncVectorEnv": partial(treadle.AsyncVectorEnv, [Corner] * 3),
    "sb3": heavy("stable_baselines3", "VecEnv", [Corner] * 3),
    "tianshou": heavy("tianshou", "VectorEnv", [Corner] * 3),
    "dm_env": heavy("dm_env", "DmVector", Corner, 3),
}
NAMED = {"sb3": "reset()", "dm_env": "reset()", "tianshou": "reset(env_id=[1])"}


@pytest.mark.parametrize("options", [PROCESS, CALLER], ids=["process", "caller"])
@pytest.mark.parametrize("face", [pytest.param(name, marks=[pytest.mark.heavy] * (name in NAMED)) for name in FACES])
def test_the_call_that_is_named_brings_the_slot_back(face: str, options: dict[str, Any]) -> None:
    named = NAMED.get(face, "reset_at([1])")
    with closing(FACES[face](**options)) as envs:
        envs.reset()
        with pytest.raises(KeyError) as failed:
            envs.step(BAD)
        said = str(failed.value)
        assert f"call {named} to carry on)" in said
        assert ("the worker lives" in said) == (options is PROCESS)
        with pytest.raises(UsageError) as refused:
            envs.step(FINE)
        assert f"({named})" in str(refused.value)
        eval(f"envs.{named}")
        envs.step(FINE)


def test_all_slots_that_failed_are_named() -> None:
    with closing(VectorEnv([Corner] * 4, workers=2, inline=2)) as envs:
        envs.reset()
        with pytest.raises(KeyError, match=r"slot 0 \(in the caller\).*'corner' \(call reset_at\(\[0, 3\]\) to"):
            envs.step([1, 0, 0, 1])
        envs.reset_at([0, 3])
        envs.step([0, 0, 0, 0])


def test_partial_batches_have_a_call_of_their_own() -> None:
    with closing(VectorEnv([Corner] * 3, **PROCESS)) as envs:
        envs.async_reset()
        envs.recv(min=3)
        envs.send(BAD)
        with pytest.raises(KeyError, match=r"the worker lives; call async_reset\(env_id=\[1\]\) to carry on"):
            envs.recv(min=3)
        envs.recv(min=2)
        with pytest.raises(UsageError, match=r"slot 1 is in need of a reset \(async_reset\(env_id=\[1\]\)\)"):
            envs.send(FINE)
        envs.async_reset(env_id=[1])
        envs.recv(min=1)
        envs.send(FINE)
        assert len(envs.recv(min=3)[0]) == 3


@pytest.mark.parametrize("kind", [treadle.VectorSampledTasks, treadle.SingleProcessVectorSampledTasks])
@pytest.mark.parametrize("named", ["next_task_at", "reset_all"])
def test_so_have_vectors_of_tasks(kind: Any, named: str) -> None:
    with closing(kind(treadle.tasks.GymTaskSampler, [{"env": Corner}] * 3)) as tasks:
        with pytest.raises(KeyError) as failed:
            tasks.step([0, 1, 0])
        said = str(failed.value)
        assert "call next_task_at or reset_all to carry on)" in said
        assert ("the worker lives" in said) == (kind is treadle.VectorSampledTasks)
        with pytest.raises(UsageError, match=r"slot 1 .*next_task_at or reset_all"):
            tasks.step([0, 0, 0])
        getattr(tasks, named)(*([1] if named == "next_task_at" else []))
        tasks.step([0, 0, 0])


def test_planning_has_nothing_to_reset_and_names_the_item() -> None:
    for n_workers, backend, place in ((2, "process", "worker 1"), (2, "serial", "in the caller")):
        with treadle.plan.make(Corner, n_workers, worker_options=treadle.WorkerOptions(backend=backend)) as env:
            state, *_ = env.reset()
            with pytest.raises(KeyError) as failed:
                env.step_batch([0, 1], states=[state] * 2)
            said = str(failed.value)
            assert re.match(rf"item 1 of 2: slot 1 \({place}", said)
            assert ("the worker lives" in said) == (backend == "process")
            assert "to carry on" not in said
            env.step_batch([0, 0], states=[state] * 2)
    with treadle.plan.make(Corner) as alone:
        state, *_ = alone.reset()
        with pytest.raises(KeyError) as failed:
            alone.step_batch([0, 0, 1, 0], states=[state] * 4)
        assert failed.value.__notes__ == ["item 2 of 4, in the caller"]


def test_an_answer_that_comes_too_late_names_it_too() -> None:
    class Slow(Corner):
        def step(self, action: int) -> Any:
            if action == 1:
                import threading

                threading.Event().wait(20)
            return super().step(0)

    with closing(VectorEnv([Slow] * 2, workers=2, inline=0, step_timeout=2.0)) as envs:
        envs.reset()
        with pytest.raises(
            WorkerTimeout,
            match=r"dropped; call reset_at\(\[1\]\) to carry on, which kills a worker that still hangs, or close",
        ):
            envs.step([0, 1])
        envs.close(timeout=0.0)
