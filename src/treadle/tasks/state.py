"""What a slot of tasks holds, and how it is kept: `states.tasks` on the sampler, the task and their environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from treadle.errors import StateError
from treadle.states.ale import AleState
from treadle.states.keeper import Keeper
from treadle.states.state import EnvState
from treadle.states.tasks import get_slot_state, set_slot_state


@dataclass(frozen=True)
class TaskState:
    """The state of a slot's program.

    Attributes:
        sampler: name of its sampler's class.
        state: of all that it holds, pickled.
    """

    sampler: str
    state: EnvState


class TaskKeeper:
    """Keeps one slot's state: looks at which environment it uses whenever it is asked."""

    def __init__(self, sampler: Any, task: Any) -> None:
        self._keeper: Keeper | None = None
        env = self._look(sampler, task)
        if env is not None and AleState.fits(getattr(env, "unwrapped", env)):  # it is listened to from the beginning
            self._keeper = Keeper(env)
        self._env = env

    def get(self, objects: dict[str, Any]) -> TaskState:
        """The state of `objects`, which have the "sampler" and the "task". Raises StateError."""
        env = self._now(objects["sampler"], objects["task"])
        return TaskState(type(objects["sampler"]).__qualname__, get_slot_state(objects, env, self._keeper))

    def set(self, state: TaskState, sampler: Any, task: Any) -> dict[str, Any]:
        """Put the environment that these two use into its state; returns the objects that go on with it.

        Raises StateError for a state of another kind of sampler, or environment.
        """
        if not isinstance(state, TaskState) or state.sampler != type(sampler).__qualname__:
            raise StateError(f"this is no state of a {type(sampler).__qualname__}: {state!r}")
        return set_slot_state(state.state, self._now(sampler, task), self._keeper)

    def _now(self, sampler: Any, task: Any) -> gym.Env | None:
        env = self._look(sampler, task)
        if env is None:  # a sampler without a task may hide it: it is the one that was seen last
            env = self._env
        if env is not None and (self._keeper is None or self._keeper.env is not env):
            self._keeper = Keeper(env)
        self._env = env
        return env

    @staticmethod
    def _look(*owners: Any) -> gym.Env | None:
        for owner in owners[::-1]:
            env = getattr(owner, "env", None)
            if isinstance(env, gym.Env):
                return env
        return None
