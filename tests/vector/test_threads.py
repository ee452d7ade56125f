"""One thread after another may use a vector; calls that overlap are refused, and do no harm."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.error import AlreadyPendingCallError

import treadle
from injector import Injector
from treadle.errors import UsageError
from treadle.vector.core import AlreadyPending
from treadle.vector.gymnasium import VectorEnv

N = 3


class Door(gym.Env[Any, Any]):
    """Slot 0 knocks in every call and goes on when it is let in; all count their steps."""

    observation_space, action_space = gs.Box(0, 1e9, (1,), np.float64), gs.Discrete(2)

    def __init__(self, knocked: threading.Event | None, opened: threading.Event | None) -> None:
        self._knocked, self._opened = knocked, opened
        self._t = 0

    def _pass(self) -> np.ndarray:
        if self._knocked is not None and self._opened is not None:
            self._knocked.set()
            assert self._opened.wait(30)
        return np.full(1, float(self._t))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._t = 0
        return self._pass(), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        return self._pass(), 0.0, False, False, {}

    def ask(self) -> float:
        return float(self._pass()[0])


class Doors:
    """A vector of `Door`s, and a thread that stands before one."""

    def __init__(self) -> None:
        self.knocked, self.opened = threading.Event(), threading.Event()
        self.opened.set()
        first: list[Callable[[], gym.Env]] = [lambda: Door(self.knocked, self.opened)]
        self.envs = VectorEnv(
            first + [lambda: Door(None, None)] * (N - 1),
            worker_options=treadle.WorkerOptions(backend="thread"),
            workers=1,
        )
        self._came: list[Any] = []
        self._thread = threading.Thread()

    def begin(self, call: Callable[[VectorEnv], Any], first: Callable[[VectorEnv], Any] | None = None) -> None:
        """Make the call in a thread, up to where slot 0 has knocked. `first`: a call that lets it knock, made here."""
        self.knocked.clear()
        self.opened.clear()
        if first is not None:
            first(self.envs)
            assert self.knocked.wait(30)
        self._thread = threading.Thread(target=lambda: self._came.append(call(self.envs)))
        self._thread.start()
        assert self.knocked.wait(30)
        while self.envs._turns.owner is None:
            threading.Event().wait(0.001)

    def end(self) -> Any:
        """Let it in; what its call brought."""
        self.opened.set()
        self._thread.join(30)
        return self._came.pop()


@pytest.fixture
def doors() -> Any:
    made = Doors()
    yield made
    made.opened.set()
    made.envs.close()


ACTIONS = np.zeros(N, np.int64)
CALLS: dict[str, Callable[[VectorEnv], Any]] = {
    "step": lambda envs: envs.step(ACTIONS),
    "step_async": lambda envs: envs.step_async(ACTIONS),
    "step_wait": lambda envs: envs.step_wait(),
    "reset": lambda envs: envs.reset(),
    "reset_async": lambda envs: envs.reset_async(),
    "reset_wait": lambda envs: envs.reset_wait(),
    "reset_at": lambda envs: envs.reset_at(1),
    "call": lambda envs: envs.call("ask"),
    "call_async": lambda envs: envs.call_async("ask"),
    "call_wait": lambda envs: envs.call_wait(),
    "call_at": lambda envs: envs.call_at(0, "ask"),
    "get_attr": lambda envs: envs.get_attr("_t"),
    "set_attr": lambda envs: envs.set_attr("unused", 1),
    "render": lambda envs: envs.render(),
    "rollout": lambda envs: envs.rollout(steps=2),
    "async_reset": lambda envs: envs.async_reset(),
    "send": lambda envs: envs.send(ACTIONS),
    "recv": lambda envs: envs.recv(min=N),
    "get_states": lambda envs: envs.get_states(),
    "set_states": lambda envs: envs.set_states([None] * N),
}


FIRST = {"recv": "async_reset", "step_wait": "step_async", "reset_wait": "reset_async", "call_wait": "call_async"}


@pytest.mark.parametrize("under_way", ["step", "reset", "call", "call_at", "rollout", *FIRST])
def test_calls_that_overlap_are_refused(doors: Any, under_way: str) -> None:
    envs = doors.envs
    if under_way != "recv":
        envs.reset()
    doors.begin(CALLS[under_way], CALLS[FIRST[under_way]] if under_way in FIRST else None)
    for call in CALLS.values():
        with pytest.raises(AlreadyPending, match=r"another call .* is under way|pending|in flight") as caught:
            call(envs)
        assert isinstance(caught.value, AlreadyPendingCallError)
        assert isinstance(caught.value, UsageError)
    doors.end()
    if under_way == "recv":
        envs.send(ACTIONS)
        observations = envs.recv(min=N)[0]
    else:
        observations = envs.step(ACTIONS)[0]
    assert len(set(observations.ravel().tolist())) == 1  # nobody's step was mixed into it


def test_one_thread_after_another_may_use_it(doors: Any) -> None:
    envs = doors.envs
    seen: list[Any] = []

    def use(t: int) -> None:
        seen.append(envs.step(ACTIONS)[0].ravel().tolist())
        seen.append(envs.rollout(steps=1).bootstrap.ravel().tolist())
        envs.step_async(ACTIONS)

    envs.reset()
    for t in range(3):
        thread = threading.Thread(target=use, args=(t,))
        thread.start()
        thread.join(30)
        seen.append(envs.step_wait()[0].ravel().tolist())  # begun by another
    assert seen == [[t] * N for t in range(1, 10)]


def test_a_policy_may_ask_the_vector_that_makes_its_rollout(doors: Any) -> None:
    envs = doors.envs
    asked: list[Any] = []

    def policy(observations: Any) -> Any:
        asked.append(envs.call("ask"))
        return ACTIONS

    envs.rollout(policy, steps=2)
    assert asked == [(0.0,) * N, (1.0,) * N]


class Interrupted(Door):
    def step(self, action: Any) -> Any:
        if action:
            raise KeyboardInterrupt
        return super().step(action)

    def render(self) -> Any:
        raise KeyboardInterrupt


def test_an_interrupt_leaves_no_claim_behind() -> None:
    envs = VectorEnv(lambda: Interrupted(None, None), N, worker_options=treadle.WorkerOptions(backend="serial"))
    for call in (lambda: envs.step([0, 1, 0]), lambda: envs.rollout(lambda _: [1, 0, 0], steps=2), envs.render):
        envs.reset()
        with pytest.raises(KeyboardInterrupt):
            call()
        thread = threading.Thread(target=envs.reset)
        thread.start()
        thread.join(30)
        assert envs.step(ACTIONS)[0].ravel().tolist() == [1] * N
    envs.close()


@pytest.mark.parametrize("name", ["step", "get_attr", "reset_at"])
def test_an_interrupt_at_whatever_moment_leaves_no_claim_behind(name: str) -> None:
    envs = VectorEnv(lambda: Door(None, None), N, workers=1, inline=1)
    envs.reset()

    def act() -> None:
        CALLS[name](envs)

    injector = Injector()
    for point in range(1, injector.count(act) + 1):
        injector.run(act, point)
        assert envs._turns.owner is None, injector.moment
        envs.reset()
    envs.close()


TASK_CALLS: dict[str, Callable[[Any], Any]] = {
    "step": lambda tasks: tasks.step([0, 0]),
    "step_at": lambda tasks: tasks.step_at(0, 0),
    "async_step": lambda tasks: tasks.async_step([0, 0]),
    "wait_step": lambda tasks: tasks.wait_step(),
    "next_task": lambda tasks: tasks.next_task(),
    "reset_all": lambda tasks: tasks.reset_all(),
    "set_seeds": lambda tasks: tasks.set_seeds([1, 2]),
    "call": lambda tasks: tasks.call("num_steps_taken"),
    "attr": lambda tasks: tasks.attr("max_steps"),
    "command": lambda tasks: tasks.command("sampler_attr", ["length"] * 2),
    "pause_at": lambda tasks: tasks.pause_at(0),
    "resume_all": lambda tasks: tasks.resume_all(),
    "render": lambda tasks: tasks.render("rgb_array"),
    "stats": lambda tasks: tasks.stats(),
}


def test_calls_of_a_vector_of_tasks_that_overlap_are_refused() -> None:
    knocked, opened = threading.Event(), threading.Event()
    opened.set()
    came: list[Any] = []

    def make(first: bool, **_: Any) -> treadle.TaskSampler:
        return treadle.tasks.GymTaskSampler(lambda: Door(knocked, opened) if first else Door(None, None))

    args = [{"first": True}, {"first": False}]
    with treadle.VectorSampledTasks(
        make, args, max_processes=1, worker_options=treadle.WorkerOptions(backend="thread")
    ) as tasks:
        knocked.clear()
        opened.clear()
        thread = threading.Thread(target=lambda: came.append(tasks.step([0, 0])))
        thread.start()
        assert knocked.wait(30)
        try:
            for call in TASK_CALLS.values():
                with pytest.raises(AlreadyPending, match="another call of this vector is under way"):
                    call(tasks)
        finally:
            opened.set()
            thread.join(30)
        assert [result.observation["observation"].tolist() for result in came[0]] == [[1.0], [1.0]]
        assert [result.observation["observation"].tolist() for result in tasks.step([0, 0])] == [[2.0], [2.0]]
        assert tasks.num_unpaused_tasks == 2
