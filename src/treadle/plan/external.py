"""`ExternalProcess`: one environment in another process, with the environment's own interface."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Self

import gymnasium as gym

from treadle.checks import check_names
from treadle.interrupts import Closes
from treadle.plan.futures import Future, Workers
from treadle.plan.items import Method, PlanOp, Work, WorkDone, columns, items_of, state_batch
from treadle.worker.options import WorkerOptions, chosen


class ExternalProcess(Closes):
    """Runs an environment with the interface of `PlanEnv` in another process, and forwards calls to it.

    An exception of the environment is raised here, as TaskRaised and as its own type; the worker goes on.

    Args:
        constructor: makes the environment in the other process. Any callable, including lambdas.
        step_timeout, on_failure, worker_options: as for `ParallelEnv`.
        **unknown: refused; the error names the nearest argument.
    """

    def __init__(
        self,
        constructor: Callable[[], Any],
        *,
        step_timeout: float | None = None,
        on_failure: str = "raise",
        worker_options: WorkerOptions | None = None,
        **unknown: Any,
    ) -> None:
        check_names(type(self), unknown)
        pool = {"step_timeout": step_timeout, "on_failure": on_failure, **chosen(worker_options)}
        self._workers, self._slot, self._owner = Workers(constructor, 1, **pool), 0, True

    @classmethod
    def of(cls, workers: Workers, slot: int) -> Self:
        """Make an `ExternalProcess` of one slot of workers that another object closes."""
        self = cls.__new__(cls)
        self._workers, self._slot, self._owner = workers, slot, False
        return self

    @cached_property
    def observation_space(self) -> gym.Space:
        """The environment's observation space, requested once."""
        return self._get("observation_space")

    @cached_property
    def action_space(self) -> gym.Space:
        """The environment's action space, requested once."""
        return self._get("action_space")

    def __getattr__(self, name: str) -> Any:
        """Return the environment's attribute; a method becomes a function that calls it in the other process.

        Raises AttributeError if the environment has no such attribute, and for names with a leading underscore.
        """
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._get(name)

    def _get(self, name: str) -> Any:
        found = self._workers.ask(self._slot, PlanOp.GET, (name,))()
        return partial(self._now, name) if isinstance(found, Method) else found

    def _now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return self.call(name, *args, **kwargs)()

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Future:
        """Call a method of the environment and return a future of its result."""
        return self._workers.ask(self._slot, PlanOp.CALL, (name, *args), kwargs)

    def step(
        self, action: Any, state: Any = None, dt: int = 1, blocking: bool = True, return_state: bool | None = None
    ) -> Any:
        """Call the environment's `step`; with blocking=False, return a future of its result."""
        future = self.call("step", action=action, state=state, dt=dt, return_state=return_state)
        return future() if blocking else future

    def step_batch(
        self, actions: Any, states: Any = None, dt: Any = None, return_state: bool | None = None, blocking: bool = True
    ) -> Any:
        """Step many items, one after the other in the other process. `dt` None: 1.

        Returns a tuple of lists, (states,) observations, rewards, terminals, truncateds, infos; with blocking=False, a
        future of it.
        """
        items = items_of(actions, states, 1 if dt is None else dt, return_state)
        given = None if items.states is None else state_batch(items.states)
        work = Work(0, items.actions, items.dts, given, items.return_state)

        def unpacked(done: WorkDone) -> tuple[list[Any], ...]:
            if done.failed is not None:
                self._workers.raise_failed(self._slot, *done.failed, len(items))
            return columns([done], items.return_state)

        future = self._workers.ask(self._slot, PlanOp.WORK, (work,), then=unpacked)
        return future() if blocking else future

    def reset(self, blocking: bool = True, return_states: bool = False) -> Any:
        """Reset the environment; with blocking=False, return a future of the result.

        Returns (observation, info), or with `return_states` (state, observation, info).
        """
        future = self.call("reset", return_state=return_states)
        return future() if blocking else future

    def set_state(self, state: Any, blocking: bool = True) -> Any:
        """Put the environment into a state and return None; with blocking=False, return a future of None."""
        future = self._workers.ask(self._slot, PlanOp.CALL, ("set_state", state), then=lambda _: None)
        return future() if blocking else future

    def close(self) -> None:
        """End the process, within 6 s whatever the environment does. Idempotent."""
        if self._owner:
            self._workers.close()

    def __repr__(self) -> str:
        return f"ExternalProcess(slot {self._slot})"
