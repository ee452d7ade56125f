"""Calls of a vector to its environments besides steps: methods, attributes and states, of all slots or of some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from treadle.errors import StateError, UsageError
from treadle.vector.core import Core, one_at_a_time
from treadle.vector.env_slot import REFUSED, EnvOp, SlotState
from treadle.vector.orders import chosen_slots
from treadle.vector.traced import traced

Function = Callable[..., Any]  # of an environment and more arguments


class SlotCalls(gym.vector.VectorEnv):
    """A Gymnasium vector whose environments are slots of a pool: what is asked of them besides stepping.

    Every method raises ClosedVector and AlreadyPending. If an environment raises, it raises a WorkerError: a TaskRaised
    that is also of the original's type.
    """

    def __init__(self, core: Core) -> None:
        self._core, self._pool, self._lockstep, self._turns = core, core.pool, core.lockstep, core.turns
        self.num_envs = core.pool.n

    @one_at_a_time
    def call(self, name: str | Function, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return an attribute of every environment, looked up through its wrappers; a method is called. If `name` is a
        function, it is called with the (wrapped) environment, in that environment's process.

        Returns one result a slot; results must pickle. Raises UsageError for `reset`, `step` and `close`.
        """
        self._turns.check_free("call_async")
        return tuple(self._lockstep.call(EnvOp.CALL, _callable(name), args, kwargs))

    @one_at_a_time
    def call_async(self, name: str | Function, /, *args: Any, **kwargs: Any) -> None:
        """Begin a `call`; `call_wait` returns its result."""
        self._turns.check_free("call_async")
        self._lockstep.post_call(EnvOp.CALL, _callable(name), args, kwargs)
        self._turns.state = AsyncState.WAITING_CALL

    @one_at_a_time
    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The result of `call_async`; `timeout` in seconds, None: for ever.

        Raises WaitTimeout (the call is still pending then), NothingPending, and what `call` raises.
        """
        return tuple(self._turns.wait(AsyncState.WAITING_CALL, timeout))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The same as `call(name)`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment; a list or tuple has one value for each slot."""
        self.set_attr_at(range(self.num_envs), name, values)

    @overload
    def call_at(self, slots: int, name: str | Function, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def call_at(self, slots: Sequence[int], name: str | Function, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]: ...
    @one_at_a_time
    def call_at(self, slots: int | Sequence[int], name: str | Function, /, *args: Any, **kwargs: Any) -> Any:
        """Do a `call` in one slot and return its result, or in some and return a tuple in the order of `slots`."""
        chosen = chosen_slots(slots, self.num_envs)
        self._turns.check_free("call_async")
        results = self._lockstep.call(EnvOp.CALL, _callable(name), args, kwargs, slots=chosen)
        return results[0] if isinstance(slots, int | np.integer) else tuple(results)

    def get_attr_at(self, slots: int | Sequence[int], name: str) -> Any:
        """`get_attr` of one slot, or of some: see `call_at`."""
        return self.call_at(slots, name)  # type: ignore[arg-type]  # one overload or the other

    @one_at_a_time
    def set_attr_at(self, slots: int | Sequence[int], name: str, values: Any) -> None:
        """`set_attr` in one slot, or in some; a list or tuple has one value for each of them."""
        chosen = chosen_slots(slots, self.num_envs)
        if not isinstance(values, list | tuple):
            values = [values] * len(chosen)
        if len(values) != len(chosen):
            raise UsageError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {len(chosen)} environments."
            )
        self._turns.check_free("set_attr")
        self._lockstep.call_each({slot: (EnvOp.SET_ATTR, (name, own), {}) for slot, own in zip(chosen, values)})

    def render(self) -> tuple[Any, ...]:
        """Return a tuple with one frame for each slot, or whatever the render mode gives."""
        return self.call("render")

    @contextmanager
    def trace(self, path: str | Path) -> Iterator[None]:
        """Write all that happens in the block to a file that Perfetto shows; with the suffix .gz it is compressed.

        The caller, each worker and each slot have lanes: see `docs/slow.md`. The last 100,000 events of each process
        are kept; those of a worker that dies are lost. Raises UsageError (no such folder, or a call is pending) and
        OSError.
        """
        self._turns.check_free("trace")
        with traced(self, self._core, Path(path)):
            yield

    # -- states --------------------------------------------------------------------------------------------------------

    @one_at_a_time
    def get_states(self) -> tuple[SlotState, ...]:
        """Return the complete state of every slot: the state of its environment, wrappers and generators, and whether
        its episode has just ended. States pickle, and any slot of a vector of the same environments takes them.

        Raises StateError (as TaskRaised) for an environment that cannot be captured.
        """
        self._turns.check_free("call_async")
        return tuple(self._lockstep.call(EnvOp.GET_STATE))

    @one_at_a_time
    def set_states(self, states: Sequence[SlotState], slots: Sequence[int] | None = None) -> None:
        """Put every slot, or some slots, into a state.

        Args:
            states: one for each slot.
            slots: numbers of the slots; None: all.

        Raises UsageError for a wrong number of states, and in SAME_STEP mode for states of ended episodes; StateError
        for a state of another environment.
        """
        chosen = list(range(self.num_envs)) if slots is None else chosen_slots(slots, self.num_envs)
        if len(states) != len(chosen):
            raise UsageError(f"{len(states)} states for {len(chosen)} slots")
        given = dict(zip(chosen, states, strict=True))
        for slot, state in given.items():
            if not isinstance(state, SlotState):
                raise StateError(f"slot {slot}: give what get_states() returned, not {type(state).__name__}")
        over = [slot for slot, state in given.items() if state.over]
        if over and self._core.mode is AutoresetMode.SAME_STEP:
            raise UsageError(
                f"the episodes of the states for slots {over} have ended, and a vector in SAME_STEP holds no ended "
                "episode. Take them one step later, or make this vector in the mode of theirs"
            )
        self._turns.check_free("call_async")
        self._lockstep.call_each({slot: (EnvOp.SET_STATE, (state,), {}) for slot, state in given.items()})
        self._lockstep.placed(given)


def _callable(name: str | Function) -> str | Function:
    if not isinstance(name, str) and not callable(name):
        raise UsageError(f"what is called is named by a text, or is a function of the environment, got {name!r}")
    if name in REFUSED:
        raise UsageError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
    return name
