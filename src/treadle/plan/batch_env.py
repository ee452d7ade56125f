"""`BatchEnv`: several external processes as one environment that steps batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from treadle.errors import UsageError
from treadle.plan.batcher import Batcher
from treadle.plan.external import ExternalProcess
from treadle.plan.orders import orders_of


class BatchEnv:
    """Args:
        envs: the processes.
        blocking: have one work at a time.

    Raises ValueError (UsageError) when their observation or action spaces differ.
    """

    def __init__(self, envs: Sequence[ExternalProcess], blocking: bool = False, **store: Any) -> None:
        self._envs = list(envs)
        if not self._envs:
            raise UsageError("a batch environment needs at least one process")
        self._blocking = blocking
        for what in ("observation_space", "action_space"):
            first = getattr(self._envs[0], what)
            for index, env in enumerate(self._envs):
                if (other := getattr(env, what)) != first:
                    raise UsageError(f"process {index} has the {what} {other}, process 0 has {first}: they must agree")
        self.batcher = Batcher([(e._exchange, e._slot) for e in self._envs], one_by_one=blocking, **store)

    def __len__(self) -> int:
        return len(self._envs)

    def __getitem__(self, index: int) -> ExternalProcess:
        return self._envs[index]

    def __getattr__(self, name: str) -> Any:
        """An attribute of the first environment."""
        if name.startswith("_") or "_envs" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._envs[0], name)

    def make_transitions(
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | str | None = None, repeat: int = 1
    ) -> tuple[Any, ...]:
        """A batch of steps; see `VectorizedEnv.step_batch`."""
        return self.batcher.steps(orders_of(actions, states, dt, return_state, repeat))

    def sync_states(self, state: Any, blocking: bool = True) -> None:
        """Put every environment into one state. All have it when this returns; `blocking`: one after the other."""
        if blocking:
            for env in self._envs:
                env.set_state(state)
            return
        promises = [env.set_state(state, blocking=False) for env in self._envs]
        errors = [promise.exception() for promise in promises]
        for error in errors:
            if error is not None:
                raise error

    def reset(self, indices: Iterable[int] | None = None, return_states: bool = True) -> tuple[np.ndarray, ...]:
        """Reset all environments, or some.

        Returns arrays with an entry for each: (states,) observations [k, ...], infos object[k].
        """
        chosen = range(len(self._envs)) if indices is None else [int(index) for index in indices]
        if not chosen:
            raise UsageError("no environment to reset: give at least one index")
        for index in chosen:
            if not -len(self._envs) <= index < len(self._envs):
                raise IndexError(f"there is no process {index} to reset: there are {len(self._envs)}")
        if self._blocking:
            results = [self._envs[index].reset(return_states=return_states) for index in chosen]
        else:
            promises = [self._envs[index].reset(return_states=return_states, blocking=False) for index in chosen]
            errors = [promise.exception() for promise in promises]
            for error in errors:
                if error is not None:
                    raise error
            results = [promise.result() for promise in promises]
        *states, observations, infos = zip(*results, strict=True)
        return *(_array(list(column)) for column in states), np.stack(observations), _array(list(infos), loose=True)

    def close(self) -> None:
        """End all processes. Idempotent."""
        self.batcher.close()
        for env in self._envs:
            env.close()


def _array(values: list[Any], *, loose: bool = False) -> np.ndarray:
    """One array of values: of theirs where they are arrays, else of objects."""
    if not loose and isinstance(values[0], np.ndarray):
        return np.stack(values)
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = value
    return array
