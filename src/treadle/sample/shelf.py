"""Memory for large results: filled while they arrive, and used again when nobody holds the arrays in it any more.

What arrives is copied to where it is to lie in the result at once, so that the memory it came in is free for what comes
next, and the result is there when the last of it is. How large it gets nobody knows, so it lies in reserved address
space that becomes memory when it is written.

A learner asks for the next batch while it holds the last one, and drops that when the next is there. So two regions
take turns, and the pages of a large batch are new only twice. First touches of new memory cost more than copying into
memory that is there: on virtual machines that hand free pages back to their host, twenty times as much.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.sample.reserve import reserved

LEAST = 1 << 16  # bytes of a piece of an array from which on it is worth it
SPARE = 1 << 26  # bytes beyond what it needs that a result's memory may keep for later ones


class _Region:
    """One result's memory. `filled`: bytes in use; `touched`: bytes that have become memory."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.filled = self.touched = 0
        self.dtype: Any = None
        self.row: tuple[int, ...] = ()
        self.holder: weakref.ref[np.ndarray] | None = None

    @property
    def held(self) -> bool:
        return self.holder is not None and self.holder() is not None

    def begin(self, array: np.ndarray) -> None:
        """It is to hold arrays like this one."""
        self.filled, self.dtype, self.row, self.holder = 0, array.dtype, array.shape[1:], None

    def add(self, array: np.ndarray) -> np.ndarray | None:
        """A copy behind what is there; None: it does not belong there, or there is no more room."""
        start = self.filled
        if array.dtype != self.dtype or array.shape[1:] != self.row or start + array.nbytes > len(self.memory):
            return None
        copy = np.ndarray(array.shape, array.dtype, self.memory, start)
        copy[...] = array
        self.filled += array.nbytes
        self.touched = max(self.touched, self.filled)
        return copy

    def whole(self, pieces: Sequence[np.ndarray]) -> np.ndarray | None:
        """The pieces as one array, if they are what was added from the beginning on; it is held from now on."""
        at = np.frombuffer(self.memory, np.uint8, 1).__array_interface__["data"][0]
        for piece in pieces:
            if piece.__array_interface__["data"][0] != at or piece.dtype != self.dtype or piece.shape[1:] != self.row:
                return None
            at += piece.nbytes
        # a fresh array over the region: all views, tensors and buffers made from it hold it, and not only the memory
        array = np.ndarray((sum(map(len, pieces)), *self.row), self.dtype, self.memory)
        self.holder = weakref.ref(array)
        self._trim(array.nbytes)
        return array

    def _trim(self, needed: int) -> None:
        """Give back what one large result has left behind."""
        keep = -(-2 * needed // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.touched - keep > SPARE and hasattr(mmap, "MADV_DONTNEED"):
            self.memory.madvise(mmap.MADV_DONTNEED, keep, -(-(self.touched - keep) // mmap.PAGESIZE) * mmap.PAGESIZE)
            self.touched = keep


class Shelf:
    """Regions of private memory. An array in one is an ordinary array, which its holder may keep for ever."""

    def __init__(self) -> None:
        self._regions: dict[Any, list[_Region]] = {}  # by what is laid there
        self._filling: dict[Any, _Region] = {}

    def begin(self) -> None:
        """A new result."""
        self._filling = {}

    def lay(self, key: Any, array: np.ndarray) -> np.ndarray:
        """The next piece of the result's array `key`: as it is if it is small, else a copy, where it belongs."""
        region = self._filling.get(key)
        if region is None:
            if array.nbytes < LEAST or array.dtype.hasobject:
                return array
            region = self._filling[key] = self._free(key)
            region.begin(array)
        copy = region.add(array)
        return np.copy(array) if copy is None else copy

    def joined(self, pieces: Sequence[np.ndarray]) -> np.ndarray | None:
        """Pieces that were laid, as one array; None if they were not, or are not all."""
        for region in self._filling.values():
            if not region.held and (found := region.whole(pieces)) is not None:
                return found
        return None

    def _free(self, key: Any) -> _Region:
        """A region that nobody holds; of those that are left one is kept for its turn, and no hoard."""
        known = self._regions.get(key, [])
        free = [region for region in known if not region.held]
        region = free.pop(0) if free else _Region(reserved(huge=True))
        self._regions[key] = [*(r for r in known if r.held), region, *free[:1]]
        return region

    def clear(self) -> None:
        """Give back what nobody holds, and keep nothing from now on."""
        self._regions, self._filling = {}, {}


__all__ = ["Shelf"]
