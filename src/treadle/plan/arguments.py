"""What a batch asks for, checked before anything is sent: every mistake names its item."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np

from treadle.errors import UsageError

HANDLE = "handle"


@dataclass(frozen=True)
class Items:
    """A checked batch.

    Attributes:
        actions: n of them, an array or a list.
        states: one for every `repeat` items, or None.
        dts: int[n].
        return_state: False, True or "handle".
        repeat: how many consecutive items begin in the same state.
    """

    actions: Sequence[Any] | np.ndarray
    states: list[Any] | None
    dts: list[int]
    return_state: bool | str
    repeat: int = 1

    def __len__(self) -> int:
        return len(self.dts)


def items_of(
    actions: Any, states: Any, dt: Any, return_state: bool | str | None, repeat: int = 1, *, store: bool = True
) -> Items:
    """Check a batch's arguments; `store`: is there one for handles? Raises UsageError naming the item that is wrong."""
    actions = as_items(actions, "actions")
    n = len(actions)
    if n == 0:
        raise UsageError("an empty batch: give at least one action")
    repeat = repeat if type(repeat) is int and repeat > 0 else whole(repeat, "repeat")
    checked = states_of(states, n, repeat)
    wanted = state_wanted(return_state, checked is not None)
    if wanted == HANDLE and not store:
        raise UsageError("handles name rows of a store, which a ParallelEnv has")
    return Items(actions, checked, dts_of(dt, n), wanted, repeat)


def as_items(values: Any, what: str, each: str = "item") -> Any:
    """Something with a length and items; iterators become lists."""
    if isinstance(values, np.ndarray):
        if values.ndim == 0:
            raise UsageError(f"{what} must be a sequence, one for each {each}; got a single value")
        return values
    if isinstance(values, list | tuple):
        return values
    try:
        return list(values)
    except TypeError:
        raise UsageError(f"{what} must be a sequence, one for each {each}; got {type(values).__name__}") from None


def states_of(states: Any, n: int, repeat: int) -> list[Any] | None:
    """The states of n items; None where there is none at all."""
    if states is None:
        if repeat != 1:
            raise UsageError("repeat says how many actions begin in one state: it needs states")
        return None
    given = list(as_items(states, "states"))
    if n != len(given) * repeat:
        times = f" x repeat={repeat}" if repeat != 1 else ""
        raise UsageError(f"{len(given)} states{times} for {n} actions: item {min(n, len(given) * repeat)} has no pair")
    missing = list(map(is_, given, itertools.repeat(None)))
    if True not in missing:
        return given
    if False not in missing:
        return None
    item = missing.index(True) * repeat
    raise UsageError(f"item {item} has no state and others have: give all items a state, or none")


def dts_of(dt: Any, n: int) -> list[int]:
    """How often each of n items applies its action."""
    values: list[Any]
    if isinstance(dt, np.ndarray) and dt.ndim == 0:
        dt = dt.item()
    if isinstance(dt, np.ndarray | list | tuple):
        values = dt.tolist() if isinstance(dt, np.ndarray) else list(dt)
        if len(values) != n:
            raise UsageError(f"{len(values)} dts for {n} actions: item {min(n, len(values))} has no pair")
    else:
        return [whole(dt, "dt", 0)] * n
    return [whole(v, "dt", i) for i, v in enumerate(values)]


def whole(value: Any, what: str, item: int | None = None) -> int:
    """A whole number, at least 1. Raises UsageError, which says what it is, and of which item."""
    if type(value) is int and value > 0:
        return value
    if item is not None:
        what = f"{what} of item {item}"
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, float | np.number) and float(value).is_integer():
        number = int(value)
    else:
        raise UsageError(f"{what} must be a positive integer, got {value!r}")
    if number < 1:
        raise UsageError(f"{what} must be at least 1, got {number}")
    return number


def state_wanted(return_state: bool | str | None, given: bool) -> bool | str:
    """The rule of `return_state`: None means that a state comes back where one was given."""
    if return_state is None:
        return given
    if return_state == HANDLE or isinstance(return_state, bool | np.bool_):
        return return_state if return_state == HANDLE else bool(return_state)
    raise UsageError(f"return_state must be True, False, None or 'handle', got {return_state!r}")
