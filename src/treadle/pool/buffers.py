"""Borrowed memory: a buffer is handed out as arrays, and used again when nobody holds them any more.

Fresh copies of large results cost more than everything else on their way (page faults on new memory), and plain views
are overwritten under the reader. A buffer that is lent is in between.

Who holds what is one rule. An array that is lent is a fresh one over raw memory, and not a view of another array: every
view, slice, torch tensor or pickle buffer that is made of it holds the array itself (numpy does not look through a base
that is not an array), so a weak reference to it says whether anybody holds any of it. And what a worker may still write
to is in use, too, whoever holds it: a buffer to which a late answer may come is pinned, and one that went to workers
with requests waits for them (`Writers`).

Small arrays (flags, rewards, the observations of small environments) are copied all the same: a copy costs less than
lending. So whoever collects rewards in a list does not keep the images of the same batches from being written.

Two kinds are here: what steps are written to (`BatchBuffers`), and memory of any size that goes to workers with a
request and comes back with the answer (`BufferPool`). The results of samplers are elsewhere.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from treadle.errors import ArenaError
from treadle.pool.arena import Arena, Field, view

if TYPE_CHECKING:
    from treadle.pool.rows import BlockFields, RolloutFields

# bytes up to which a copy (0.15 us) costs less than an array over the memory and a reference to it (0.3 us)
SMALL = 4096
BYTES = np.dtype(np.uint8)


class Writers(Protocol):
    """Requests whose workers may write to a buffer."""

    @property
    def over(self) -> bool:
        """Has every one of them been answered, or its worker buried?"""


class Buffer:
    """Some memory, and who has it.

    Attributes:
        lent: references to the arrays over it that were handed out.
        pins: why it must not be used, whoever holds it: numbers of blocks that a late worker may still write to.
        writers: the requests whose workers may write to it; None: there are none.
    """

    def __init__(self) -> None:
        self.lent: list[weakref.ref[np.ndarray]] = []
        self.pins: set[int] = set()
        self.writers: Writers | None = None

    @property
    def free(self) -> bool:
        """Does nobody hold anything of it, and is nobody going to write to it?"""
        for ref in self.lent:
            if ref() is not None:
                return False
        return not self.pins and (self.writers is None or self.writers.over)

    def lend(self, array: np.ndarray) -> np.ndarray:
        """An array over it is handed out."""
        self.lent = [*(ref for ref in self.lent if ref() is not None), weakref.ref(array)]
        return array


# -- what steps are written to -----------------------------------------------------------------------------------------


class RolloutMemory(Buffer):
    """The memory of one rollout: arrays [steps, n, ...] in a segment of their own."""

    def __init__(self, arena: Arena, fields: RolloutFields, segment: int) -> None:
        super().__init__()
        self.fields, self.segment, self._arena = fields, segment, arena
        row = fields_of(fields.block(fields.first))
        self._rows = [(f.shape, f.dtype, *arena.buffer(f), f.dtype.itemsize * math.prod(f.shape)) for f in row]

    def arrays(self, fields: Sequence[Field | None]) -> list[Any]:
        """Fresh arrays over some of its fields, the caller's to keep; None for None."""
        arrays = [None if field is None else self._arena.array(field) for field in fields]
        self.lent += [weakref.ref(array) for array in arrays if array is not None]
        return arrays

    def rows(self, block: int) -> list[np.ndarray]:
        """What one of its blocks has of what a batch is made of; nothing is noted."""
        t = block - self.fields.first
        return [np.ndarray(s, d, memory, start + t * stride) for s, d, memory, start, stride in self._rows]


class BatchBuffers:
    """Blocks 0..count-1 of one pool; the last is the spare that is only ever copied from: when the caller keeps more
    batches than there are blocks, it gets real copies. Blocks with higher numbers are those of rollouts.

    Args:
        fields: for each block the fields handed out, all blocks alike.

    Attributes:
        aimed: the block that requests go to, whatever is free; see `rollouts.py`.
        copies: batches that had to be copied because all blocks were held.
    """

    def __init__(self, arena: Arena, fields: list[list[Field]]) -> None:
        self._recipes = [[(f.shape, f.dtype, *arena.buffer(f)) for f in block] for block in fields]
        # how each array is made: a copy of one that is there, or a new one over the block, which is then lent
        self._large = [i for i, f in enumerate(fields[0]) if math.prod(f.shape) * f.dtype.itemsize > SMALL]
        new: Callable[..., np.ndarray] = np.ndarray
        self._makers: list[list[Callable[[], np.ndarray]]] = [
            [partial(new, *recipe) if i in self._large else new(*recipe).copy for i, recipe in enumerate(block)]
            for block in self._recipes
        ]
        self.spare = len(fields) - 1
        self.blocks = [Buffer() for _ in fields]
        self.rollouts: list[RolloutMemory] = []
        self._latest: RolloutMemory | None = None
        self.aimed: int | None = None
        self.copies = 0

    def take(self) -> int:
        """The block for the next request: the lowest free one, so that a short ring stays in the cache."""
        if self.aimed is not None:
            return self.aimed
        for number, block in enumerate(self.blocks):
            for ref in block.lent:
                if ref() is not None:
                    break
            else:
                if not block.pins:
                    return number
        return self.spare

    def hand_out(self, block: int) -> list[np.ndarray]:
        """The block's arrays, the caller's to keep."""
        if block > self.spare:
            if self._latest is None or block not in self._latest.fields:
                self._latest = self.rollout_of(block)
            arrays = self._latest.rows(block)
            # rewards and flags of one step go no further than the rollout that is made of them
            self._latest.lent += map(weakref.ref, arrays[:-3])
            return arrays
        arrays = list(map(call, self._makers[block]))
        if block != self.spare:
            self.blocks[block].lent = (
                list(map(weakref.ref, map(arrays.__getitem__, self._large))) if self._large else []
            )
            return arrays
        self.copies += 1
        for i in self._large:
            arrays[i] = arrays[i].copy()
        return arrays

    def peek(self, block: int) -> list[np.ndarray]:
        """The block's arrays, not lent: read and let go before the next request."""
        if block > self.spare:
            return self.rollout_of(block).rows(block)
        return [np.ndarray(*recipe) for recipe in self._recipes[block]]

    def rollout_of(self, block: int) -> RolloutMemory:
        """The rollout that a block belongs to."""
        return next(rollout for rollout in self.rollouts if block in rollout.fields)

    def pin(self, block: int) -> None:
        """A late worker may still write here: keep the block out of service."""
        (self.blocks[block] if block <= self.spare else self.rollout_of(block)).pins.add(block)

    def unpin(self, block: int) -> None:
        """It has answered, or is dead. Idempotent."""
        for buffer in (*self.blocks, *self.rollouts):
            buffer.pins.discard(block)


def fields_of(block: BlockFields) -> list[Field]:
    """What is handed out of a block: observation leaves, rewards, the two end flags."""
    leaves = [field for field in block.observations if field is not None]
    return [*leaves, block.rewards, block.terminated, block.truncated]


# -- memory that goes to workers with a request -----------------------------------------------------------------------


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
        """What lies at a place, as an array: the memory itself, or a copy of less than `least` bytes."""
        array = np.ndarray(shape, dtype, self._raw, at)
        return array.copy() if array.nbytes < least else self.lend(array)


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
        self.buffers: list[ArenaBuffer] = []

    def take(self, nbytes: int) -> ArenaBuffer | None:
        """A buffer of at least so many bytes; None when there is none to be had.

        It is the same one again until it has `writers`, or something of it is held.
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
