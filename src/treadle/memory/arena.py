"""The arena: shared memory that holds every number of fixed shape.

A pool has one memfd, mapped segment by segment. It is allocated for real with posix_fallocate, so a full machine is an
error now, not a SIGBUS later. It never has a name in the file system: when the last process is gone, so is the memory.
It grows by segments: earlier arrays stay where they are, and a worker maps a new segment on the first message that
refers to it. Mappings are never closed explicitly, because arrays that were handed out may outlive the pool. Each array
holds its mapping, and the last array to go unmaps it. A mapping holds no descriptor (`map_file`), so a pool's
descriptors are closed with it, even while its arrays are held.

A pool without processes uses anonymous memory (`shared=False`).
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import resource
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import ArenaError, ClosedPool, TooManyFiles, UsageError
from treadle.whole_file import why

ALIGN = 64
PAGE = mmap.ALLOCATIONGRANULARITY


@dataclass(frozen=True, slots=True)
class Field:
    """The place of one array: segment number, offset in it (bytes), dtype, shape."""

    segment: int
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    def row(self, index: int) -> Field:
        """Return the place of row `index` of the array."""
        shape = self.shape[1:]
        stride = self.dtype.itemsize * math.prod(shape)
        return Field(self.segment, self.offset + index * stride, self.dtype, shape)

    def rows(self, count: int) -> Field:
        """Return the place of the first `count` rows."""
        return Field(self.segment, self.offset, self.dtype, (count, *self.shape[1:]))


class Plan:
    """Collects the fields of one segment before it is allocated."""

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.nbytes = 0

    def add(self, dtype: Any, shape: tuple[int, ...], align: int = ALIGN) -> Field:
        dtype = np.dtype(dtype)
        offset = -(-self.nbytes // align) * align
        self.nbytes = offset + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        return Field(self.segment, offset, dtype, tuple(shape))


class Arena:
    """A growing shared memory file and this process's mappings of it."""

    def __init__(self, *, shared: bool = True, fd: int | None = None) -> None:
        """Make a new arena, or open the one that another process made.

        Args:
            shared: False: anonymous memory, for a pool without processes.
            fd: the file of another process's arena; `forget` closes it. None: make a new arena.

        Raises TooManyFiles.
        """
        self.fd = fd if fd is not None else (anonymous_file() if shared else -1)
        self._size = 0
        self._maps: list[mmap.mmap | None] = []  # None: dropped
        self.segments: list[tuple[int, int]] = []  # (offset in the file, bytes)

    def plan(self) -> Plan:
        """Return a plan for the next segment; pass it to `grow` before planning another."""
        return Plan(len(self.segments))

    def grow(self, plan: Plan) -> None:
        """Allocate and map the planned segment, zeroed. Raises ArenaError when there is not enough memory."""
        nbytes = max(PAGE, -(-plan.nbytes // PAGE) * PAGE)
        available = memory_available()
        if available is not None and nbytes > available:  # allocating beyond the limit may wake the OOM killer
            raise _no_room(nbytes, available, "not enough memory")
        offset = self._size
        if self.fd >= 0:
            try:
                os.posix_fallocate(self.fd, offset, nbytes)
            except OSError as error:
                raise _no_room(nbytes, None, why(error)) from error
        self._size += nbytes
        self._map(offset, nbytes)

    def join(self, segments: list[tuple[int, int]]) -> None:
        """Map those of `segments`, the list of another process, that this arena does not have yet. Raises OSError."""
        for offset, nbytes in segments[len(self.segments) :]:
            self._map(offset, nbytes)

    def array(self, field: Field) -> np.ndarray:
        """Return a fresh array over a field: it keeps the mapping alive, and what is written to it is in the arena.

        Raises ClosedPool after `forget`, and ArenaError for a segment that was dropped.
        """
        return np.ndarray(field.shape, field.dtype, self._mapped(field.segment), field.offset)

    def buffer(self, field: Field) -> tuple[mmap.mmap, int]:
        """Return a field's mapping and offset, for callers that make arrays by the thousand. Raises as `array`."""
        return self._mapped(field.segment), field.offset

    def drop(self, segment: int) -> None:
        """Give a segment's memory back, for all processes: no array over it may be used any more."""
        mapping, self._maps[segment] = self._maps[segment], None
        if mapping is not None and self.fd >= 0:
            mapping.madvise(mmap.MADV_REMOVE)

    def _mapped(self, segment: int) -> mmap.mmap:
        if segment >= len(self._maps):
            raise ClosedPool("the pool is closed, and its memory with it")
        mapping = self._maps[segment]
        if mapping is None:
            raise ArenaError(f"segment {segment} of the shared memory was given back")
        return mapping

    def forget(self) -> None:
        """Close the file and drop the mappings; arrays that are still held keep theirs. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._maps = []

    def _map(self, offset: int, nbytes: int) -> None:
        self._maps.append(map_file(self.fd, nbytes, offset=offset) if self.fd >= 0 else mmap.mmap(-1, nbytes))
        self.segments.append((offset, nbytes))


def view(array: np.ndarray) -> Any:
    """Return a memoryview of an array: the quickest way to write single numbers."""
    return memoryview(array)  # type: ignore[arg-type]


def anonymous_file(label: str = "treadle") -> int:
    """Return a descriptor of a file in memory without a name; /proc shows `label`. Raises TooManyFiles."""
    try:
        return os.memfd_create(label, os.MFD_CLOEXEC)
    except OSError as error:
        if (limited := too_many_files(error)) is not None:
            raise limited from error
        raise


def closed_by_others(error: BaseException) -> UsageError | None:
    """Return the error for a worker whose own descriptor other code has closed; None for any other error."""
    if not isinstance(error, OSError) or error.errno != errno.EBADF:
        return None
    return UsageError(
        "the environment or the policy has closed descriptors that it has not opened, in this episode or in one "
        f"shortly before it ({error}). Look for os.closerange, or for a library that makes itself a daemon"
    )


def too_many_files(error: BaseException) -> TooManyFiles | None:
    """Return the error that names the limit, for the system's error of too many descriptors; None for any other."""
    if type(error) is not OSError or error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if error.errno == errno.ENFILE:
        why = "this machine has as many open as it may (/proc/sys/fs/file-max)"
    else:
        why = f"this process may have {limit} (ulimit -n), and has them"
    return TooManyFiles(
        f"Too many open files: {why}. Raise the limit, close some, or use fewer workers: each takes about six",
        limit=limit,
        errno=error.errno,
    )


MAP_FIXED = 0x10  # on Linux and macOS; the module does not name it
# Linux's value on every common processor; the module does not name it in all versions
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform.startswith("linux") else 0)


def map_file(fd: int, nbytes: int, *, offset: int = 0, flags: int = mmap.MAP_SHARED) -> mmap.mmap:
    """Return a mapping of a file that holds no descriptor: `fd` may be closed while arrays over it are held.

    Raises OSError.
    """
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, nbytes, flags=flags, offset=offset, trackfd=False)
    # Before that version a mapping of a file duplicates the descriptor and keeps it. A mapping of memory without a file
    # has no descriptor, and in the end unmaps whatever lies at its address: so the file is laid over it.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if _mmap()(start, nbytes, protection, flags | MAP_FIXED, fd, offset) != start:
        code = ctypes.get_errno()
        raise OSError(code, f"mmap: {os.strerror(code)}")
    return memory


@cache
def _mmap() -> Any:
    """Return the C library's mmap."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    number = ctypes.c_int
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long)
    return function


def _no_room(asked: int, available: int | None, why: str) -> ArenaError:
    there = "" if available is None else f" and {available / 2**20:,.0f} MiB are available"
    return ArenaError(
        f"shared memory: {asked / 2**20:,.1f} MiB asked{there} ({why}); use fewer environments, smaller observations "
        "or fewer blocks",
        asked=asked,
        available=available,
    )


def memory_available() -> int | None:
    """Return the bytes that can be allocated without swapping or reaching the cgroup's limit; None: unknown."""
    found = [n for n in (_meminfo(), _cgroup_room()) if n is not None]
    return min(found) if found else None


def _meminfo() -> int | None:
    text = text_of("/proc/meminfo")
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_room() -> int | None:
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        top, now = text_of(limit).strip(), text_of(used).strip()
        if top.isdigit() and now.isdigit():
            return max(0, int(top) - int(now))
    return None


def text_of(path: str | Path) -> str:
    """Return the text of a kernel's file; "": it does not exist or cannot be read."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
