"""Memory for large results, used again when nobody holds the arrays in it any more.

A learner asks for the next batch while it holds the last one, and drops that when the next is there. So two regions
take turns, and the pages of a large batch are new only twice. First touches of new memory cost more than copying into
memory that is there: on virtual machines that hand free pages back to their host, ten times as much.
"""

from __future__ import annotations

import math
import mmap
import weakref
from typing import Any

import numpy as np

LEAST = 16 << 20  # bytes of an array from which on it is worth it
SLACK = 8  # a region is larger than what it is made for by one part in so many


class Shelf:
    """Regions of anonymous memory. An array in one is an ordinary array, which its holder may keep for ever."""

    def __init__(self) -> None:
        self._regions: list[tuple[mmap.mmap, weakref.ref[np.ndarray]]] = []

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray | None:
        """An array whose contents are anything; None: too small to be worth it."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < LEAST or dtype.hasobject:
            return None
        region = self._free(nbytes) or mmap.mmap(-1, nbytes + nbytes // SLACK)
        # a fresh array over the region: all views, tensors and buffers made from it hold it, and not only the region
        array = np.ndarray(shape, dtype, region)
        self._regions.append((region, weakref.ref(array)))
        return array

    def _free(self, nbytes: int) -> mmap.mmap | None:
        """A region that nobody holds, if one is large enough; those that are not are given back."""
        free = [region for region, held in self._regions if held() is None]
        self._regions = [(region, held) for region, held in self._regions if held() is not None]
        fits = sorted((region for region in free if nbytes <= len(region) <= 4 * nbytes), key=len)
        nothing: weakref.ref[Any] = weakref.ref(_Gone())
        self._regions += [(region, nothing) for region in fits[1:2]]  # one more for its turn, no hoard
        return fits[0] if fits else None

    def clear(self) -> None:
        """Give back what nobody holds, and keep nothing from now on."""
        self._regions = []


class _Gone:
    """Stands for an array that is not there any more."""
