"""The parts of a batch: the caller's items, and the chunks that travel.

Items are checked before anything is sent: every mistake names its item.

A chunk (`Work`) may have a region of memory. States go out and come back there, and the worker writes observations
directly into it. A large message needs new memory: a file, its pages on both sides, and their release. A region's pages
exist already and are often in the cache. The first batch goes by message and shows how much an item needs. Later,
values that do not fit the region also go by message.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.errors import UsageError
from treadle.states.state import EnvState

if TYPE_CHECKING:
    from treadle.memory.lent import Region
    from treadle.wire.messages import Raised

ALIGN = 64
AT_ONCE = 1 << 16  # bytes of states up to which an extra copy is quicker than writing them one by one
CHUNK_SECONDS = 0.010
LEAST_SECONDS = 0.0004  # a shorter chunk costs more, in caller and worker, than it saves
MOST = 8  # chunks a slot


@dataclass(frozen=True)
class Items:
    """A checked batch.

    Attributes:
        actions: an array or list of n actions.
        states: one for every `repeat` items, or None.
        dts: int[n].
        return_state: True if the states after the items are wanted.
        repeat: the number of consecutive items that begin in the same state.
    """

    actions: Sequence[Any] | np.ndarray
    states: list[Any] | None
    dts: list[int]
    return_state: bool
    repeat: int = 1

    def __len__(self) -> int:
        return len(self.dts)


def items_of(actions: Any, states: Any, dt: Any, return_state: bool | None, repeat: int = 1) -> Items:
    """Check a batch's arguments and return its items. Raises UsageError that names the wrong item."""
    actions = as_items(actions, "actions")
    n = len(actions)
    if n == 0:
        raise UsageError("an empty batch: give at least one action")
    repeat = repeat if type(repeat) is int and repeat > 0 else whole(repeat, "repeat")
    checked = states_of(states, n, repeat)
    return Items(actions, checked, dts_of(dt, n), state_wanted(return_state, checked is not None), repeat)


def as_items(values: Any, what: str, each: str = "item") -> Any:
    """Return `values` as a sequence; iterators become lists. Raises UsageError for a single value."""
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
    """Return the states of n items; None if all are missing. Raises UsageError if only some are missing."""
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
    """Return, for each of n items, how often its action is applied."""
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
    """Return `value` as a whole number of at least 1. Raises UsageError that names `what` and `item`."""
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


def state_wanted(return_state: bool | None, given: bool) -> bool:
    """Return True if states are wanted: for `return_state` None, if states were given."""
    if return_state is None:
        return given
    if isinstance(return_state, bool | np.bool_):
        return bool(return_state)
    raise UsageError(f"return_state must be True, False or None, got {return_state!r}")


def even_chunks(n: int, slots: int) -> list[tuple[int, int]]:
    """Return at most one chunk (start, end) a slot, all of one length but for the last.

    Items without states, which continue each other, are cut in this way.
    """
    size = -(-n // slots)
    return [(start, min(n, start + size)) for start in range(0, n, size)]


def balanced_chunks(n: int, slots: int, seconds: float | None) -> list[tuple[int, int]]:
    """Return chunks (start, end) for items that any slot may do. `seconds`: time of one item; None: unknown.

    If the time is unknown, there are two chunks a slot. Otherwise a chunk takes about CHUNK_SECONDS, with one to MOST
    chunks a slot. A batch of less than LEAST_SECONDS a slot goes to fewer slots.
    """
    if seconds is None:
        count = 2 * slots
    else:
        each = min(MOST, max(1, int(n * seconds / slots / CHUNK_SECONDS)))
        count = min(slots * each, max(1, int(n * seconds / LEAST_SECONDS)))
    count = min(n, count)
    chunks, end = [], 0
    for i in range(count):
        start, end = end, n * (i + 1) // count
        chunks.append((start, end))
    return chunks


# -- chunks as messages ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateBatch:
    """States of one kind in a message, which holds the kind once: it would be most of each state's bytes."""

    kind: str
    data: list[bytes]

    def __iter__(self) -> Iterator[EnvState]:
        return map(EnvState, itertools.repeat(self.kind), self.data)


def state_batch(states: list[Any]) -> Any:
    """Return the states as a `StateBatch` if all are `EnvState` of one kind, else unchanged."""
    if set(map(type, states)) != {EnvState}:
        return states
    kinds = set(map(_kind_of, states))
    return StateBatch(kinds.pop(), list(map(_data_of, states))) if len(kinds) == 1 else states


_kind_of, _data_of = attrgetter("kind"), attrgetter("data")


class LaidStates(NamedTuple):
    """The place of states of one kind in memory, one after the other from `at`."""

    kind: str
    sizes: list[int]
    at: int


class LaidRows(NamedTuple):
    """The place of observations in memory."""

    dtype: str | np.dtype  # a structured dtype itself, as its `str` lacks the fields
    shape: tuple[int, ...]
    at: int


def lay(memory: Any, at: int, states: StateBatch) -> LaidStates:
    """Copy states into memory at `at` and return their place."""
    sizes, end = list(map(len, states.data)), at
    for data in [b"".join(states.data)] if sum(sizes) < AT_ONCE else states.data:
        memory[end : end + len(data)] = data
        end += len(data)
    return LaidStates(states.kind, sizes, at)


def lift(memory: Any, laid: LaidStates, *, apart: bool = False) -> StateBatch:
    """Copy states out of memory. `apart`: copy large batches state by state, without an extra copy of the whole.

    The extra copy helps the caller: when the large block is freed, the C library learns to keep freed memory. Workers
    set this at their start (see `worker/child.py`).
    """
    kind, sizes, at = laid
    data = memory[at : at + sum(sizes)]
    if not apart or len(data) < AT_ONCE:
        data = bytes(data)
    parts = map(data.__getitem__, map(slice, accumulate(sizes, initial=0), accumulate(sizes)))
    return StateBatch(kind, list(map(bytes, parts)))  # bytes() of bytes does not copy


@dataclass
class Work:
    """A chunk of a batch: consecutive items, for one slot.

    Attributes:
        first: the number of its first item in the batch.
        actions, dts: one for each item. In a rollout, `actions` has one sequence for each item.
        states: the states that the items begin in. Item i begins in states[i // repeat - base]. None: each item
            continues the one before.
        return_state: True if the states after the items are wanted.
        repeat: the number of consecutive items that begin in the same state.
        base: the first item's number // repeat.
        rollout: None for a batch of steps, else the observations that are wanted: "none", "last" or "all".
        region: memory for the results; `states` may lie in its buffer.
    """

    first: int
    actions: Sequence[Any] | np.ndarray
    dts: list[int]
    states: Any
    return_state: bool
    repeat: int = 1
    base: int = 0
    rollout: str | None = None
    region: Region | None = None

    def __len__(self) -> int:
        return len(self.actions)

    def __reduce__(self) -> tuple[Any, ...]:
        return Work, tuple(self.__dict__.values())  # half the time of a dataclass's own pickling


@dataclass
class WorkDone:
    """The results of a chunk, in columns.

    Attributes:
        failed: the item that raised, and its exception; later items were not tried.
        room: bytes of a region that the results need.
    """

    states: Any = None
    observations: Any = None
    rewards: Any = None
    terminals: list[bool] = field(default_factory=list)
    truncateds: list[bool] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    seconds: float = 0.0
    room: int = 0
    failed: tuple[int, Raised] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkDone, tuple(self.__dict__.values())  # as above

    def __deepcopy__(self, memo: dict[int, Any]) -> WorkDone:
        """Copy infos and foreign states, which the environment may still use.

        A worker in the caller's process copies its replies; the other values are copies already.
        """
        states = self.states if isinstance(self.states, StateBatch) else copy.deepcopy(self.states, memo)
        return replace(self, states=states, infos=copy.deepcopy(self.infos, memo))


def columns(dones: Sequence[WorkDone], with_states: bool) -> tuple[list[Any], ...]:
    """Return a batch's result, one list a part, in item order."""
    return tuple(joined(dones, part) for part in (PARTS if with_states else PARTS[1:]))


def joined(dones: Sequence[WorkDone], part: str) -> list[Any]:
    """Return one part of a batch's result, in item order."""
    return list(chain.from_iterable(map(attrgetter(part), dones)))


PARTS = ("states", "observations", "rewards", "terminals", "truncateds", "infos")


class PlanOp:
    """Operations of the slot. Their names cannot be identifiers, so they hide no method of an environment.

    They are strings, as one is in every request, and an enum's member takes several times as long to pickle.
    """

    GET = "treadle: get attribute"
    CALL = "treadle: call method"
    WORK = "treadle: work"


class Method:
    """Stands for an attribute that can be called, which stays in the worker."""
