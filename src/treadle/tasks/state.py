"""The state of a slot that is more than an environment: a task, its sampler, and the environment that they share."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from treadle.errors import StateError
from treadle.states.ale import AleState
from treadle.states.keeper import Keeper
from treadle.states.layers import layers_of
from treadle.states.parts import Fixed, dump, load
from treadle.states.state import EnvState

KIND = "task slot"


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
        """The state of `objects`, which have the "sampler" and the "task".

        They are pickled together, so what they share stays shared; their references to the environment become
        references to the other one. Raises StateError when something cannot be captured.
        """
        env = self._now(objects["sampler"], objects["task"])
        try:
            data = dump(objects, _fixed(env))
        except Exception as error:
            raise StateError(f"the state of the slot ({', '.join(objects)}) cannot be captured: {error}") from error
        kept = pickle.dumps((None if self._keeper is None else self._keeper.get(), data), 5)
        return TaskState(type(objects["sampler"]).__qualname__, EnvState(self._kind, kept))

    def set(self, state: TaskState, sampler: Any, task: Any) -> dict[str, Any]:
        """Put the environment that these two use into its state; returns the objects that go on with it, new ones.

        Raises StateError for a state of another kind of sampler, or environment.
        """
        if not isinstance(state, TaskState) or state.sampler != type(sampler).__qualname__:
            raise StateError(f"this is no state of a {type(sampler).__qualname__}: {state!r}")
        env = self._now(sampler, task)
        if state.state.kind != self._kind:
            raise StateError(f"this is no state of a {self._kind}: {state.state!r}")
        inner, data = pickle.loads(state.state.data)
        if self._keeper is not None:
            self._keeper.set(inner)
        return load(data, _fixed(env))

    @property
    def _kind(self) -> str:
        return KIND if self._keeper is None else f"{KIND} of {self._keeper.kind}"

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


def _fixed(env: gym.Env | None) -> Fixed:
    """The environment's layers, and its spaces: they stay on their side."""
    fixed = Fixed()
    for index, layer in enumerate(layers_of(env) if env is not None else ()):
        fixed.add((index, "action_space"), layer.action_space)
        fixed.add((index, "observation_space"), layer.observation_space)
        fixed.add((index,), layer)
    return fixed
