"""Address space by the gigabyte, of which only what is written becomes memory: for arrays that grow in place."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from typing import TypeVar

from treadle.pool.arena import NO_RESERVE

T = TypeVar("T")

SIZES = (1 << 36, 1 << 32, 1 << 28)  # bytes to ask for, the most first


def reserved(*, huge: bool = False) -> mmap.mmap:
    """As much address space as can be had, which becomes memory when it is written; `huge`: in large pages.

    Raises MemoryError.
    """
    memory = the_most(lambda nbytes: mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE))
    if memory is None:
        raise MemoryError(f"cannot reserve {SIZES[-1] >> 20} MiB of address space")
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def the_most(make: Callable[[int], T]) -> T | None:
    """What `make` makes of as many bytes as it can; None when it refuses all sizes."""
    for nbytes in SIZES:
        try:
            return make(nbytes)
        except (OSError, OverflowError):
            continue  # a limit on address space, or on the size of files: ask for less
    return None
