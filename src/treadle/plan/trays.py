"""Trays: memory in which the states and observations of chunks go out and come back.

What a message of some size costs is new memory: a file for it, its pages on both sides, and giving them back again. So
a batch has a block of the pool's memory, and each of its chunks a part of it, its tray: the caller lays the states
there that the items begin in, and the worker steps straight into it. Blocks are used again, so their pages are there
and often in the cache.

How much an item needs is known after the first batch, which goes by message, as everything does that does not fit.
Observations of some size are handed out as they lie there; their block is free when nobody holds them any more.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from treadle.errors import ArenaError
from treadle.plan.exchange import Exchange
from treadle.plan.packed import Packed
from treadle.pool.arena import Arena, Field, view

MOST_BYTES = 256 * 2**20  # of all blocks together
MOST_BLOCKS = 32  # each is a mapping of its own
LEAST_BYTES = 256 * 2**10  # of one
LEASED = 16 * 2**10  # bytes of a chunk's observations that are handed out as they lie; fewer are copied
SPARE = 1.25  # states vary in size
ALIGN = 64
BYTES = np.dtype(np.uint8)


class Laid(NamedTuple):
    """States of one kind that lie in a tray, one after the other from `at`."""

    kind: str
    sizes: list[int]
    at: int


class Shown(NamedTuple):
    """Observations that lie in a tray."""

    dtype: str | np.dtype  # itself where it is structured: its `str` says nothing of the fields
    shape: tuple[int, ...]
    at: int


@dataclass(frozen=True)
class Tray:
    """A chunk's part of a block, as it travels: bytes `start` to `end` are for what comes back.

    `segments`: of the arena, when the block was new.
    """

    segment: int
    segments: list[tuple[int, int]]
    start: int
    end: int

    def __reduce__(self) -> tuple[Any, ...]:
        return Tray, (self.segment, self.segments, self.start, self.end)

    def without_room(self) -> Tray:
        """The same, but what comes back goes by message: somebody else may still write here."""
        return Tray(self.segment, self.segments, self.end, self.end)

    def opened(self, arena: Arena) -> Any:
        """The block's memory, in the process that asks."""
        arena.join(self.segments)
        return view(arena.array(Field(self.segment, 0, BYTES, (self.segments[self.segment][1],))))


def lay(memory: Any, at: int, kind: str, data: Sequence[bytes]) -> Laid:
    """Put states into memory."""
    joined = b"".join(data)
    memory[at : at + len(joined)] = joined
    return Laid(kind, [len(each) for each in data], at)


def lift(memory: Any, laid: Laid) -> Packed:
    """Copy states out of memory."""
    kind, sizes, at = laid
    data = memory[at : at + sum(sizes)].tobytes()
    return Packed(kind, [data[end - size : end] for size, end in zip(sizes, accumulate(sizes))])


class Room:
    """A worker's side of a tray.

    Args:
        memory: the block's.
        tray: the chunk's part.
    """

    def __init__(self, memory: Any, tray: Tray) -> None:
        self._memory, self._at, self._end = memory, tray.start, tray.end
        self._shown: Shown | None = None
        self.needed = 0  # bytes that what was asked for takes

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """An array in the tray; None when it does not fit. To be asked once."""
        nbytes = dtype.itemsize * int(np.prod(shape))
        self.needed += nbytes + ALIGN
        at = -(-self._at // ALIGN) * ALIGN
        if at + nbytes > self._end:
            return None
        self._shown, self._at = Shown(dtype.str if dtype.names is None else dtype, shape, at), at + nbytes
        return np.ndarray(shape, dtype, self._memory, at)

    def observations(self, values: Any) -> Any:
        """What is sent of observations: where they lie, if they are rows of the array (no list: see `Column`)."""
        if self._shown is None or not isinstance(values, np.ndarray):
            return values
        return self._shown._replace(shape=values.shape)

    def states(self, kind: str, data: list[bytes]) -> Laid | None:
        """Put states into the tray; None when they do not fit."""
        nbytes = sum(map(len, data))
        self.needed += nbytes
        return None if self._at + nbytes > self._end else lay(self._memory, self._at, kind, data)


class Use:
    """What a batch has given its workers to write to, while any of them may. Begins now.

    Who is at work on what says the pool, and not the batch, which may be cut short at any moment (Ctrl-C).
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._after, self._upto = exchange.pool.calls.last_id, sys.maxsize

    def sent(self) -> None:
        """No more requests belong to it."""
        self._upto = self._exchange.pool.calls.last_id

    @property
    def over(self) -> bool:
        """Has every request of it, those that were given up included, been answered, or its worker buried?"""
        return not self._exchange.owes(self._after, self._upto)


class Block:
    """The caller's side of a batch's trays. `use`: of the batch that it was last given to."""

    def __init__(self, arena: Arena, nbytes: int) -> None:
        plan = arena.plan()
        field = plan.add(BYTES, (nbytes,))
        arena.grow(plan)
        self.segment, self.segments = field.segment, list(arena.segments)
        self._buffer = arena.buffer(field)[0]  # no array or view: a lease is the only array between it and a row
        self.memory = view(arena.array(field))
        self.nbytes = nbytes
        self.use: Use | None = None
        self._leased: list[weakref.ref[np.ndarray]] = []

    @property
    def free(self) -> bool:
        """Is no worker using it, and is nothing of it held any more?"""
        return (self.use is None or self.use.over) and all(ref() is None for ref in self._leased)

    def unpack(self, done: Any) -> None:
        """Take out what a chunk has laid here; large observations stay, as long as somebody holds them."""
        if isinstance(done.states, Laid):
            done.states = lift(self.memory, done.states)
        if isinstance(done.observations, Shown):
            dtype, shape, at = done.observations
            array = np.ndarray(shape, dtype, self._buffer, at)
            if array.nbytes < LEASED:
                array = array.copy()
            else:
                self._leased = [*(ref for ref in self._leased if ref() is not None), weakref.ref(array)]
            done.observations = array


class Trays:
    """The blocks of a pool.

    Args:
        arena: to lay them in.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._blocks: list[Block] = []
        self._total = 0

    def take(self, nbytes: int) -> Block | None:
        """A block of at least so many bytes; None when there is none to be had: then everything goes by message.

        It is the same one again until it has a `use`, or something of it is held.
        """
        fitting = [block for block in self._blocks if block.nbytes >= nbytes and block.free]
        if fitting:
            return min(fitting, key=lambda each: each.nbytes)
        size = max(LEAST_BYTES, 1 << (nbytes - 1).bit_length())
        if self._total + size > MOST_BYTES or len(self._blocks) >= MOST_BLOCKS:
            return None
        try:
            block = Block(self._arena, size)
        except ArenaError:
            return None
        self._total += size
        self._blocks.append(block)
        return block
