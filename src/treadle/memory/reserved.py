"""Address space by the gigabyte, of which only the written part becomes memory: for arrays that grow in place."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.memory.arena import NO_RESERVE
from treadle.memory.lent import Buffer

SIZES = (1 << 36, 1 << 32, 1 << 28)  # bytes to ask for, the most first
LEAST = 1 << 16  # bytes of an array's first piece from which on a buffer pays
SPARE = 1 << 26  # bytes that a result's memory keeps for later results, beyond what it needs


def reserved(*, huge: bool = False) -> mmap.mmap:
    """Return as much address space as the system gives, which becomes memory when it is written.

    Raises MemoryError. `huge`: in large pages.
    """
    for nbytes in SIZES:
        with contextlib.suppress(OSError, OverflowError):  # a limit on address space: try less
            memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
            if huge and hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without them
                    memory.madvise(mmap.MADV_HUGEPAGE)
            return memory
    raise MemoryError(f"cannot reserve {SIZES[-1] >> 20} MiB of address space")


class ResultBuffer(Buffer):
    """The memory of one result's array.

    Attributes:
        filled: bytes in use.
        touched: bytes that have become memory.
        dtype, row: the dtype of the pieces, and the shape of one row.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memory = reserved(huge=True)
        self.filled = self.touched = 0
        self.dtype: Any = None
        self.row: tuple[int, ...] = ()

    def begin(self, array: np.ndarray) -> None:
        """Begin a result whose pieces have this array's dtype and shape of a row. Nothing is copied yet."""
        self.filled, self.dtype, self.row = 0, array.dtype, array.shape[1:]

    def add(self, array: np.ndarray) -> np.ndarray | None:
        """Append a copy and return it; None: the array has another dtype or shape of a row, or no room is left."""
        start = self.filled
        if array.dtype != self.dtype or array.shape[1:] != self.row or start + array.nbytes > len(self.memory):
            return None
        copy = np.ndarray(array.shape, array.dtype, self.memory, start)
        copy[...] = array
        self.filled += array.nbytes
        self.touched = max(self.touched, self.filled)
        return copy

    def whole(self, pieces: Sequence[np.ndarray]) -> np.ndarray | None:
        """Return pieces as one lent array; None unless they are the copies of `add`, from the first one on."""
        at = np.frombuffer(self.memory, np.uint8, 1).__array_interface__["data"][0]
        for piece in pieces:
            if piece.__array_interface__["data"][0] != at or piece.dtype != self.dtype or piece.shape[1:] != self.row:
                return None
            at += piece.nbytes
        array = self.lend(np.ndarray((sum(map(len, pieces)), *self.row), self.dtype, self.memory))
        self._trim(array.nbytes)
        return array

    def _trim(self, needed: int) -> None:
        """Give back the memory that one large result has left behind."""
        keep = -(-2 * needed // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.touched - keep > SPARE and hasattr(mmap, "MADV_DONTNEED"):
            self.memory.madvise(mmap.MADV_DONTNEED, keep, -(-(self.touched - keep) // mmap.PAGESIZE) * mmap.PAGESIZE)
            self.touched = keep


class ResultBuffers:
    """Buffers of private memory. An array in one is an ordinary array, which its holder may keep for ever.

    The size of a result is not known beforehand, so it lies in reserved address space that becomes memory when it is
    written. A learner asks for the next batch while it holds the last one, and drops that when the next is there. So
    two buffers take turns, and the pages of a large batch are new only twice. First touches of new memory cost more
    than copying into memory that is there. On virtual machines that hand free pages back to their host it is twenty
    times as much. Samples of raw Pong (1.2 GB a batch) come 2.2 times as fast as without (2 workers, 2 cores,
    2026-11-22).
    """

    def __init__(self) -> None:
        self._buffers: dict[Any, list[ResultBuffer]] = {}  # by the key of the array
        self._filling: dict[Any, ResultBuffer] = {}

    def begin(self) -> None:
        """Begin a new result."""
        self._filling = {}

    def lay(self, key: Any, array: np.ndarray) -> np.ndarray:
        """Add the next piece of the result's array `key`, and return the piece or its copy.

        A copy lies in the buffer, or in memory of its own if it does not fit there. An array of objects, and a small
        first piece, are returned as they are.
        """
        buffer = self._filling.get(key)
        if buffer is None:
            if array.nbytes < LEAST or array.dtype.hasobject:
                return array
            buffer = self._filling[key] = self._free(key)
            buffer.begin(array)
        copy = buffer.add(array)
        return np.copy(array) if copy is None else copy

    def joined(self, pieces: Sequence[np.ndarray]) -> np.ndarray | None:
        """Return pieces of `lay` as one array; None unless they are those of one buffer, from its first one on."""
        for buffer in self._filling.values():
            if buffer.free and (found := buffer.whole(pieces)) is not None:
                return found
        return None

    def _free(self, key: Any) -> ResultBuffer:
        """Return a free buffer, or a new one. At most one other free buffer is kept for its turn."""
        known = self._buffers.get(key, [])
        free = [each for each in known if each.free]
        buffer = free.pop(0) if free else ResultBuffer()
        self._buffers[key] = [*(each for each in known if not each.free), buffer, *free[:1]]
        return buffer

    def clear(self) -> None:
        """Forget all buffers. Arrays that are still held keep their memory."""
        self._buffers, self._filling = {}, {}
