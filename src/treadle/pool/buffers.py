"""Borrowed memory: a buffer is handed out as arrays, and used again when nobody holds them any more.

Who holds what is one rule. An array that is lent is a fresh one over raw memory, and not a view of another array: every
view, slice, torch tensor or pickle buffer that is made of it holds the array itself (numpy does not look through a base
that is not an array), so a weak reference to it says whether anybody holds any of it. And what a worker may still write
to is in use, too, whoever holds it: `Span` says for how long. An array that is so small that a copy costs less than
lending it is copied.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.errors import ArenaError
from treadle.pool.arena import Arena, Field, view

if TYPE_CHECKING:
    from treadle.pool.dispatch import Dispatch

BYTES = np.dtype(np.uint8)


class Region(NamedTuple):
    """A part of a buffer, as it travels: bytes `start` to `end`. `segments`: of the arena, when the buffer was new."""

    segment: int
    segments: list[tuple[int, int]]
    start: int
    end: int

    def opened(self, arena: Arena) -> Any:
        """The whole buffer's memory, in the process that asks."""
        arena.join(self.segments)
        return view(arena.array(Field(self.segment, 0, BYTES, (self.segments[self.segment][1],))))


class Span:
    """The requests that are sent from now on until `end`.

    Who is at work on what says the pool, and not the sender, who may be cut short at any moment (Ctrl-C).
    """

    def __init__(self, pool: Dispatch) -> None:
        self._pool = pool
        self._after, self._upto = pool.latest_id, sys.maxsize

    def end(self) -> None:
        """No more requests belong to it."""
        self._upto = self._pool.latest_id

    @property
    def over(self) -> bool:
        """Has every request of it, those that were given up included, been answered, or its worker buried?"""
        for member in self._pool.members:
            for owed in member.owed:
                if self._after < owed.request.id <= self._upto:
                    return False
        return True


class Buffer:
    """Memory in the arena, in a segment of its own. `writers`: the requests whose workers may write to it."""

    def __init__(self, arena: Arena, nbytes: int) -> None:
        plan = arena.plan()
        field = plan.add(BYTES, (nbytes,))
        arena.grow(plan)
        self.nbytes, self.segment, self.segments = nbytes, field.segment, list(arena.segments)
        self.memory = view(arena.array(field))
        self._raw = arena.buffer(field)[0]
        self.writers: Span | None = None
        self._lent: list[weakref.ref[np.ndarray]] = []

    @property
    def free(self) -> bool:
        """Is no worker using it, and is nothing of it held any more?"""
        for ref in self._lent:
            if ref() is not None:
                return False
        return self.writers is None or self.writers.over

    def lend(self, shape: tuple[int, ...], dtype: Any, at: int, least: int) -> np.ndarray:
        """What lies at a place, as an array: the memory itself, or a copy of less than `least` bytes."""
        array = np.ndarray(shape, dtype, self._raw, at)
        if array.nbytes < least:
            return array.copy()
        self._lent = [*(ref for ref in self._lent if ref() is not None), weakref.ref(array)]
        return array


class BufferPool:
    """Buffers of any size in an arena.

    Args:
        arena: to lay them in.
        least: bytes of the smallest.
        most: bytes of all together.
        count: how many there may be.
    """

    def __init__(self, arena: Arena, *, least: int, most: int, count: int) -> None:
        self._arena, self._least, self._most, self._count = arena, least, most, count
        self.buffers: list[Buffer] = []

    def take(self, nbytes: int) -> Buffer | None:
        """A buffer of at least so many bytes; None when there is none to be had.

        It is the same one again until it has `writers`, or something of it is held.
        """
        best: Buffer | None = None
        for buffer in self.buffers:
            if buffer.nbytes >= nbytes and (best is None or buffer.nbytes < best.nbytes) and buffer.free:
                best = buffer
        if best is not None:
            return best
        size = max(self._least, 1 << (nbytes - 1).bit_length())
        if sum(buffer.nbytes for buffer in self.buffers) + size > self._most or len(self.buffers) >= self._count:
            return None
        try:
            buffer = Buffer(self._arena, size)
        except ArenaError:
            return None
        self.buffers.append(buffer)
        return buffer


__all__ = ["Buffer", "BufferPool", "Region", "Span"]
