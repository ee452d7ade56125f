"""What is raised in the caller's own process keeps the frames of the user's code, on every face."""

from __future__ import annotations

import copy
import gc
import pickle
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import treadle
from treadle.plan import GymPlanEnv, ParallelEnv
from treadle.wire.messages import Raised


class Marker:
    """Something that a frame knows."""


marks: list[weakref.ref[Marker]] = []


def deep_inside(where: str) -> None:
    mark = Marker()
    marks.append(weakref.ref(mark))
    raise ValueError(f"in {where}")


class Raising(gym.Env[Any, Any]):
    observation_space = gs.Box(-1, 1, (1,), np.float32)
    action_space = gs.Discrete(2)

    def __init__(self, where: str) -> None:
        self._where = where
        self._at("init")

    def _at(self, where: str) -> None:
        if where == self._where:
            deep_inside(where)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._at("reset")
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._at("step")
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def ask(self) -> None:
        self._at("call")

    def get_state(self) -> Any:
        return np.zeros(1)

    def set_state(self, state: Any) -> None: ...


class Agent:
    def reset(self, do_resets: Any = None) -> None: ...

    def get_action(self, observation: Any) -> Any:
        return 0, {}


def vector(where: str, **setup: Any) -> None:
    with closing(treadle.VectorEnv(lambda: Raising(where), 2, **setup)) as envs:
        envs.reset()
        envs.step([0, 0])
        envs.call("ask")


def partial(**setup: Any) -> None:
    with closing(treadle.VectorEnv(lambda: Raising("step"), 2, **setup)) as envs:
        envs.async_reset()
        envs.recv(min=2)
        envs.send([0, 0], [0, 1])
        with pytest.raises(ValueError, match="in step"):
            envs.recv(min=2)
        envs.recv(min=2)  # and the other one


def rollout() -> None:
    with closing(
        treadle.VectorEnv(lambda: Raising("step"), 2, worker_options=treadle.WorkerOptions(backend="serial"))
    ) as envs:
        envs.rollout(steps=2)


def tasks() -> None:
    def make(**_: Any) -> treadle.TaskSampler:
        return treadle.tasks.GymTaskSampler(lambda: Raising("step"))

    with treadle.SingleProcessVectorSampledTasks(make, [{}]) as vector:
        vector.step([0])


def sampler() -> None:
    made = treadle.LocalSampler(agents=Agent(), envs=Raising("step"), max_episode_length=5, n_workers=1)
    try:
        made.obtain_samples(0, 10, None)
    finally:
        made.shutdown_worker()


def planner() -> None:
    with ParallelEnv(
        GymPlanEnv, lambda: Raising("step"), n_workers=1, worker_options=treadle.WorkerOptions(backend="serial")
    ) as env:  # type: ignore[arg-type]
        env.step_batch([0, 1])


FACES: dict[str, Callable[[], Any]] = {
    **{
        f"serial {where}": lambda where=where: vector(where, worker_options=treadle.WorkerOptions(backend="serial"))
        for where in ("init", "reset", "step")
    },
    "serial call": lambda: vector("call", worker_options=treadle.WorkerOptions(backend="serial")),
    "inline": lambda: vector("step", workers=1, inline=1),
    "thread": lambda: vector("step", worker_options=treadle.WorkerOptions(backend="thread"), workers=1),
    "thread init": lambda: vector("init", worker_options=treadle.WorkerOptions(backend="thread"), workers=1),
    "partial": lambda: partial(worker_options=treadle.WorkerOptions(backend="serial")),
    "rollout": rollout,
    "collect": lambda: list(
        treadle.collect(lambda: Raising("step"), episodes=1, worker_options=treadle.WorkerOptions(backend="serial"))
    ),
    "evaluate": lambda: treadle.evaluate(
        lambda: Raising("step"), "random", episodes=1, worker_options=treadle.WorkerOptions(backend="serial")
    ),
    "tasks": tasks,
    "sampler": sampler,
    "planner": planner,
}


def frames_of(error: BaseException | None) -> list[str]:
    """The functions in the tracebacks of an error and of its causes."""
    names: list[str] = []
    while error is not None:
        names += [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        error = error.__cause__
    return names


@pytest.mark.parametrize("face", FACES)
def test_the_users_own_frames_are_in_the_exception(face: str) -> None:
    with pytest.raises(Exception, match=r"in (init|reset|step|call)") as caught:
        FACES[face]()
    assert "deep_inside" in frames_of(caught.value)
    assert "deep_inside" in "".join(traceback.format_exception(caught.value))


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "setup",
    [
        {"worker_options": treadle.WorkerOptions(backend="serial")},
        {"worker_options": treadle.WorkerOptions(backend="thread"), "workers": 1},
    ],
    ids=str,
)
@pytest.mark.usefixtures("no_collector")
def test_frames_are_held_no_longer_than_the_error(setup: dict[str, Any]) -> None:
    marks.clear()
    with closing(treadle.VectorEnv(lambda: Raising("step"), 3, **setup)) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="in step") as caught:
            envs.step([0, 0, 0])
        assert marks[0]() is not None
        assert "deep_inside" in frames_of(caught.value)
        del caught
    assert len(marks) == 3
    assert [mark() for mark in marks] == [None] * 3


def test_frames_do_not_travel() -> None:
    try:
        deep_inside("here")
    except ValueError as error:
        raised = Raised.of(error, "step")
    assert copy.deepcopy(raised).frames is raised.frames
    again = pickle.loads(pickle.dumps(raised))
    assert again == raised
    assert again.frames.take() is None
    assert raised.frames.take() is None  # let go of
