"""The bell: how one side wakes the other, and how long it looks before it sleeps.

A bell is a counting semaphore without an owner, so nobody's death can leave it locked. A ring is only a hint (counts
may be too high after a death): the truth is always the request id in the arena.

Waking a sleeping process costs 45 to 90 us here whatever primitive is used, a failed try 60 to 80 ns, so both sides
first try for a while and then sleep. Trying pays only while every runnable process has a core of its own; beyond that
the one that tries keeps the one it waits for from running, and costs milliseconds. `spins` decides.

Semaphores live in the arena (`sem_init` with pshared=1 through ctypes, driven through multiprocessing's own
SemLock): no name to leak in /dev/shm, nothing to pickle. Zeroed memory without `sem_init` would hang. Where sem_init
does not work for shared memory (macOS), a pipe is the bell.
"""

from __future__ import annotations

import ctypes
import os
import queue
import select
import sys
from typing import Any, Protocol

import numpy as np

from treadle.pool.arena import Arena, Field

CELL = 64  # bytes reserved for a semaphore; glibc's sem_t takes 32

SLICE = 0.05  # seconds that one sleep lasts at most: between them somebody looks at the processes
SPIN_TRIES = 1500  # past about 1,500 tries (100 us) no further gain was measured, below 200 none


class Bell(Protocol):
    """SemLock has this shape already."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool: ...
    def release(self) -> Any: ...


def arena_bells_work() -> bool:
    return sys.platform.startswith("linux")


def init_cell(arena: Arena, field: Field) -> None:
    """Make the cell a semaphore of value 0. Again after a death: a stale waiter makes every release dearer."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sem_init(ctypes.c_void_p(_address(arena, field)), 1, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"sem_init: {os.strerror(code)}")


def arena_bell(arena: Arena, field: Field) -> Bell:
    """The semaphore in an initialised cell. Valid as long as somebody holds the mapping (arrays over it do)."""
    from _multiprocessing import SemLock

    return SemLock._rebuild(_address(arena, field), 1, 2**31 - 1, None)


def _address(arena: Arena, field: Field) -> int:
    return int(np.ndarray(1, np.uint8, *arena.buffer(field)).ctypes.data)


class PipeBell:
    """A bell made of a pipe: slower (about 2 us a ring), but everywhere. Both ends travel as descriptors."""

    def __init__(self, read: int, write: int) -> None:
        self.read, self.write = read, write
        os.set_blocking(read, False)
        os.set_blocking(write, False)

    @classmethod
    def new(cls) -> PipeBell:
        return cls(*os.pipe())

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if blocking:
            select.select([self.read], [], [], timeout)
        try:
            return bool(os.read(self.read, 1))
        except BlockingIOError:
            return False

    def release(self) -> None:
        try:
            os.write(self.write, b"!")
        except BlockingIOError:
            return  # 64 KiB of rings are waiting: the other side is going to wake up all right

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


class LocalBell:
    """A bell between threads. A `threading.Semaphore` would do, but for interrupts: it takes its lock in Python, and an
    interrupt just then leaves it locked for ever. A SimpleQueue is all C."""

    def __init__(self) -> None:
        rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._put, self._get = rings.put, rings.get

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        try:
            self._get(blocking, timeout)
        except queue.Empty:
            return False
        return True

    def release(self) -> None:
        self._put(None)


def local_bell() -> Bell:
    """A bell between threads."""
    return LocalBell()


def cores() -> int:
    """Processors this process may use: its affinity, and the cgroup's quota where there is one (at least 1)."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            count = min(count, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return max(1, count)
    return max(1, count)


def spins(workers: int, inline: int, cores: int, lockstep: bool = True) -> tuple[int, int]:
    """Tries before sleeping, as (caller, worker). Pure.

    With inline slots the caller is one more runnable process. Without, it has nothing to do while its workers step,
    so with as many workers as cores it sleeps at once and the workers, whose next order comes soon, do the trying.
    That is so in lockstep; what else workers are asked comes later than it pays to try.
    """
    if inline or not lockstep:
        return (SPIN_TRIES, SPIN_TRIES) if workers + 1 <= cores else (0, 0)
    if workers + 1 <= cores:
        return SPIN_TRIES, SPIN_TRIES
    return (0, SPIN_TRIES) if workers <= cores else (0, 0)


def await_bell(bell: Bell, tries: int, timeout: float) -> bool:
    """Try, then sleep up to `timeout` seconds. True when the bell rang."""
    acquire = bell.acquire
    for _ in range(tries):
        if acquire(False):
            return True
    return acquire(True, timeout)
