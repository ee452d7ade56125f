"""Address space by the gigabyte, of which only what is written becomes memory: for arrays that grow in place."""

from __future__ import annotations

import contextlib
import mmap

from treadle.memory.arena import NO_RESERVE

SIZES = (1 << 36, 1 << 32, 1 << 28)  # bytes to ask for, the most first


def reserved(*, huge: bool = False) -> mmap.mmap:
    """As much address space as can be had, which becomes memory when it is written; `huge`: in large pages.

    Raises MemoryError.
    """
    for nbytes in SIZES:
        with contextlib.suppress(OSError, OverflowError):  # a limit on address space: ask for less
            memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
            if huge and hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without them
                    memory.madvise(mmap.MADV_HUGEPAGE)
            return memory
    raise MemoryError(f"cannot reserve {SIZES[-1] >> 20} MiB of address space")
