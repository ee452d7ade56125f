"""The parts of a batch: its items as they are asked for, and the chunks of them as they travel.

Items are checked before anything is sent: every mistake names its item. A chunk (`Work`) may come with a region of
memory: states go out and come back there, and the worker writes observations straight into it. What a message of some
size costs is new memory: a file for it, its pages on both sides, and giving them back again; a region's pages are there
and often in the cache. How much an item needs is known after the first batch, which goes by message, as everything does
that does not fit.
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
AT_ONCE = 1 << 16  # bytes of states up to which one copy more is quicker than a piece at a time
CHUNK_SECONDS = 0.010
LEAST_SECONDS = 0.0004  # a chunk that is shorter costs more, in caller and worker, than it saves
MOST = 8  # chunks a slot


@dataclass(frozen=True)
class Items:
    """A checked batch.

    Attributes:
        actions: n of them, an array or a list.
        states: one for every `repeat` items, or None.
        dts: int[n].
        return_state: are the states that they lead to wanted?
        repeat: how many consecutive items begin in the same state.
    """

    actions: Sequence[Any] | np.ndarray
    states: list[Any] | None
    dts: list[int]
    return_state: bool
    repeat: int = 1

    def __len__(self) -> int:
        return len(self.dts)


def items_of(actions: Any, states: Any, dt: Any, return_state: bool | None, repeat: int = 1) -> Items:
    """Check a batch's arguments. Raises UsageError naming the item that is wrong."""
    actions = as_items(actions, "actions")
    n = len(actions)
    if n == 0:
        raise UsageError("an empty batch: give at least one action")
    repeat = repeat if type(repeat) is int and repeat > 0 else whole(repeat, "repeat")
    checked = states_of(states, n, repeat)
    return Items(actions, checked, dts_of(dt, n), state_wanted(return_state, checked is not None), repeat)


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


def state_wanted(return_state: bool | None, given: bool) -> bool:
    """The rule of `return_state`: None means that a state comes back where one was given."""
    if return_state is None:
        return given
    if isinstance(return_state, bool | np.bool_):
        return bool(return_state)
    raise UsageError(f"return_state must be True, False or None, got {return_state!r}")


def even_chunks(n: int, slots: int) -> list[tuple[int, int]]:
    """At most one chunk a slot, all as long as the first but for the last: how items that go on are dealt."""
    size = -(-n // slots)
    return [(start, min(n, start + size)) for start in range(0, n, size)]


def balanced_chunks(n: int, slots: int, seconds: float | None) -> list[tuple[int, int]]:
    """Chunks for items that may go anywhere. `seconds`: what one takes; None: not known.

    Without knowledge there are two a slot, and with it as many as take CHUNK_SECONDS each, from one to MOST a slot.
    What takes less than LEAST_SECONDS for each slot is left to a few of them.
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


# -- how a chunk travels --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateBatch:
    """States of one kind as they travel: most of what is sent of them would be the kind, again and again."""

    kind: str
    data: list[bytes]

    def __iter__(self) -> Iterator[EnvState]:
        return map(EnvState, itertools.repeat(self.kind), self.data)


def packed(states: list[Any]) -> Any:
    """States as they travel best."""
    if set(map(type, states)) != {EnvState}:
        return states
    kinds = set(map(_kind_of, states))
    return StateBatch(kinds.pop(), list(map(_data_of, states))) if len(kinds) == 1 else states


_kind_of, _data_of = attrgetter("kind"), attrgetter("data")


class LaidStates(NamedTuple):
    """States of one kind that lie in memory, one after the other from `at`."""

    kind: str
    sizes: list[int]
    at: int


class LaidRows(NamedTuple):
    """Observations that lie in memory."""

    dtype: str | np.dtype  # itself where it is structured: its `str` says nothing of the fields
    shape: tuple[int, ...]
    at: int


def lay(memory: Any, at: int, states: StateBatch) -> LaidStates:
    """Put states into memory."""
    sizes, end = list(map(len, states.data)), at
    for data in [b"".join(states.data)] if sum(sizes) < AT_ONCE else states.data:
        memory[end : end + len(data)] = data
        end += len(data)
    return LaidStates(states.kind, sizes, at)


def lift(memory: Any, laid: LaidStates, *, apart: bool = False) -> StateBatch:
    """Copy states out of memory; `apart`: large ones one by one. All at once takes a copy more, but where the C library
    has not been told to keep freed memory (see `worker/child.py`) a large block that is freed tells it so."""
    kind, sizes, at = laid
    data = memory[at : at + sum(sizes)]
    if not apart or len(data) < AT_ONCE:
        data = bytes(data)
    parts = map(data.__getitem__, map(slice, accumulate(sizes, initial=0), accumulate(sizes)))
    return StateBatch(kind, list(map(bytes, parts)))  # of bytes that makes no copy


@dataclass
class Work:
    """A chunk of a batch: consecutive items, for one slot.

    Attributes:
        first: the number of its first item in the batch.
        actions, dts: one for each item. Of a rollout: one sequence for each item, and no dts.
        states: the states that the items begin in, each for the items whose number has it as its quotient by `repeat`;
            `base` is the quotient of the first. None: items go on from one another.
        return_state: are the states that the items lead to wanted?
        region: memory for what comes back; `states` may lie in its buffer.
    """

    first: int
    actions: Sequence[Any] | np.ndarray
    dts: list[int]
    states: Any
    return_state: bool
    repeat: int = 1
    base: int = 0
    rollout: str | None = None  # None: a batch of steps; else which observations are wanted: "none", "last", "all"
    region: Region | None = None

    def __len__(self) -> int:
        return len(self.actions)

    def __reduce__(self) -> tuple[Any, ...]:
        return Work, tuple(self.__dict__.values())  # half the time that a dataclass takes by itself


@dataclass
class Done:
    """The results of a chunk, in columns.

    Attributes:
        failed: the item that raised, and why; those after it were not tried.
        room: bytes of a region that it takes.
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
        return Done, tuple(self.__dict__.values())  # as above

    def __deepcopy__(self, memo: dict[int, Any]) -> Done:
        """Within one process replies are copied; here only infos and foreign states may be the environment's still."""
        states = self.states if isinstance(self.states, StateBatch) else copy.deepcopy(self.states, memo)
        return replace(self, states=states, infos=copy.deepcopy(self.infos, memo))


def columns(dones: Sequence[Done], with_states: bool) -> tuple[list[Any], ...]:
    """A batch's result, one list a part, in item order."""
    return tuple(joined(dones, part) for part in (PARTS if with_states else PARTS[1:]))


def joined(dones: Sequence[Done], part: str) -> list[Any]:
    """One part of a batch's result, in item order."""
    return list(chain.from_iterable(map(attrgetter(part), dones)))


PARTS = ("states", "observations", "rewards", "terminals", "truncateds", "infos")


class Ask:
    """Operations of the slot. The names are no identifiers, so no method of an environment is hidden.

    No enum: one of these is in every request, and a member takes several times as long as text to pickle.
    """

    GET = "treadle: get attribute"
    CALL = "treadle: call method"
    WORK = "treadle: work"


class Method:
    """In the place of an attribute that can be called: it stays where it is."""
