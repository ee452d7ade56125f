"""Lent memory: a buffer is handed out as arrays, and used again once none of them is held.

Fresh copies of large results cost more than everything else on their way (page faults on new memory). Plain views are
overwritten under the reader. A lent buffer avoids both.

One rule says which buffers are in use. A lent array is a fresh array over raw memory, not a view of another array.
Every view, slice, torch tensor or pickle buffer made of it holds the array itself. (NumPy does not look through a base
that is not an array.) So a weak reference to it shows whether any part of it is held. Memory that a worker may still
write to is in use, too, whether held or not. A buffer to which a late answer may come is pinned, and one that went to
workers with requests waits for them (`Buffer.written`).

This file also has memory of any size that goes to workers with a request and comes back with the answer (`BufferPool`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from treadle.errors import ArenaError
from treadle.memory.arena import Arena, Field, view

BYTES = np.dtype(np.uint8)
references = partial(map, weakref.ref)  # to each of several lent arrays


class Buffer:
    """Some memory, and the arrays and workers that use it.

    Attributes:
        lent: references to the arrays over it that were handed out.
        pins: numbers of blocks that a late worker may still write to; while there are any it must not be used.
        written: returns True once every request whose worker may write to it is answered, or its worker buried; None:
            it went with no request.
    """

    def __init__(self) -> None:
        self.lent: list[weakref.ref[np.ndarray]] = []
        self.pins: set[int] = set()
        self.written: Callable[[], bool] | None = None

    @property
    def free(self) -> bool:
        """True if no array over it is held, and no worker may still write to it."""
        for ref in self.lent:
            if ref() is not None:
                return False
        return not self.pins and (self.written is None or self.written())

    def lend(self, array: np.ndarray) -> np.ndarray:
        """Note that an array over it is handed out, and return the array."""
        self.lent = [*(ref for ref in self.lent if ref() is not None), weakref.ref(array)]
        return array


# -- memory that goes to workers with a request -----------------------------------------------------------------------


class Region(NamedTuple):
    """A part of a buffer, as it travels: bytes `start` to `end` - 1 of the arena's segment `segment`.

    `segments`: (offset in the file, bytes) of each of the arena's segments when the buffer was made.
    """

    segment: int
    segments: list[tuple[int, int]]
    start: int
    end: int

    def opened(self, arena: Arena) -> Any:
        """Return the whole buffer's memory, in the calling process."""
        arena.join(self.segments)
        return view(arena.array(Field(self.segment, 0, BYTES, (self.segments[self.segment][1],))))


class ArenaBuffer(Buffer):
    """Memory in the arena, in a segment of its own."""

    def __init__(self, arena: Arena, nbytes: int) -> None:
        super().__init__()
        plan = arena.plan()
        field = plan.add(BYTES, (nbytes,))
        arena.grow(plan)
        self.nbytes, self.segment, self.segments = nbytes, field.segment, list(arena.segments)
        self.memory = view(arena.array(field))
        self._raw = arena.buffer(field)[0]

    def array(self, shape: tuple[int, ...], dtype: Any, at: int, least: int) -> np.ndarray:
        """Return the array at a place: over the memory itself, or a copy if it has less than `least` bytes."""
        array = np.ndarray(shape, dtype, self._raw, at)
        return array.copy() if array.nbytes < least else self.lend(array)


class BufferPool:
    """Buffers of any size in an arena.

    Args:
        arena: where they lie.
        least: bytes of the smallest.
        most: bytes of all together.
        count: how many there may be.
    """

    def __init__(self, arena: Arena, *, least: int, most: int, count: int) -> None:
        self._arena, self._least, self._most, self._count = arena, least, most, count
        self.buffers: list[ArenaBuffer] = []

    def take(self, nbytes: int) -> ArenaBuffer | None:
        """Return a buffer of at least `nbytes` bytes; None when there is none and no room for another.

        It is the same one again until requests go with it, or an array over it is held.
        """
        best: ArenaBuffer | None = None
        for buffer in self.buffers:
            if buffer.nbytes >= nbytes and (best is None or buffer.nbytes < best.nbytes) and buffer.free:
                best = buffer
        if best is not None:
            return best
        size = max(self._least, 1 << (nbytes - 1).bit_length())
        if sum(buffer.nbytes for buffer in self.buffers) + size > self._most or len(self.buffers) >= self._count:
            return None
        try:
            buffer = ArenaBuffer(self._arena, size)
        except ArenaError:
            return None
        self.buffers.append(buffer)
        return buffer
