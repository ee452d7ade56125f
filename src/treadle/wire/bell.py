"""The bell: how one side wakes the other, and how long it looks before it sleeps.

A bell is a counting semaphore without an owner, so a death cannot leave it locked. A ring is only a hint (counts may be
too high after a death): the request id in the arena is what counts.

Waking a sleeping process costs 45 to 90 us here whatever primitive is used. So both sides first try for a while and
then sleep: `Waiting`. `who_tries` decides which side may try, `Rhythm` for how long.

Semaphores live in the arena (`sem_init` with pshared=1 through ctypes, driven through multiprocessing's own SemLock).
They have no name to leak in /dev/shm, and are not pickled. Zeroed memory without `sem_init` would hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from treadle.memory.arena import Arena, Field

CELL = 64  # bytes reserved for a semaphore; glibc's sem_t takes 32

SLICE = 0.05  # seconds that one sleep lasts at most: between sleeps the caller looks at the processes
LOOKS = range(200)  # looks between two glances at the clock: 5 to 10 us
SHARED = 100_000  # ns: the longest usual wait in which the caller tries on a core that it shares with its workers

LONGEST = 1_000_000  # ns: waits that usually take longer are slept through
MARGIN = 50_000  # ns to try beyond one and a half times the usual
FIRST = 100_000  # ns: the usual wait before anything is known
OVERDUE = 2_000_000  # ns beyond the usual: a scheduler's turn is 3 to 4 ms, a reset or a collection of garbage less
HELD_UP = 1_000_000  # ns at once that another program has had the core: the other side's share is shorter, or long
SHORT_REST, LONG_REST = 2_000_000, 512_000_000  # ns without trying, after a first sign and after many
SOON = 40_000_000  # ns beside four times the rest, after which other programs have had their turn again

give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Bell(Protocol):
    """A bell. SemLock has this interface already."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool: ...
    def release(self) -> Any: ...


def init_cell(arena: Arena, field: Field) -> None:
    """Make the cell a semaphore of value 0, again after a death: a stale waiter makes every release cost more."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sem_init(ctypes.c_void_p(_address(arena, field)), 1, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"sem_init: {os.strerror(code)}")


def arena_bell(arena: Arena, field: Field) -> Bell:
    """Return the semaphore in an initialised cell. Valid while the mapping is held (arrays over it hold it)."""
    from _multiprocessing import SemLock

    return SemLock._rebuild(_address(arena, field), 1, 2**31 - 1, None)


def _address(arena: Arena, field: Field) -> int:
    return int(np.ndarray(1, np.uint8, *arena.buffer(field)).ctypes.data)


class LocalBell:
    """A bell between threads.

    It is a SimpleQueue, which is all C. A `threading.Semaphore` takes its lock in Python, and an interrupt just then
    leaves it locked for ever.
    """

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


def cores() -> int:
    """Return how many processors this process may use: its affinity, and the cgroup's quota if any (at least 1)."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(count, quota() or count))


def quota(root: str = "/sys/fs/cgroup") -> int | None:
    """Return the processors that the cgroup's quota of time comes to (at least 1), version 2 or 1; None: no quota."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):  # of the other version, or "max" instead of a number
            time, period = (int(word) for name in names for word in Path(root, name).read_text().split())
            return max(1, round(time / period)) if time > 0 and period > 0 else None
    return None


def who_tries(workers: int, inline: int, cores: int, lockstep: bool = True) -> tuple[int, int]:
    """Return how long a wait may usually take (ns) to be worth trying, as (caller's, workers'). Pure.

    A side that tries needs a core. With inline slots the caller is one more that runs. Without them it has nothing to
    do while its workers step; where it has as many workers as cores it tries in short waits only. That holds for
    lockstep; answers to other requests come too late for trying to pay.
    """
    if workers + 1 <= cores:
        return LONGEST, LONGEST
    return (SHARED, LONGEST) if workers <= cores and lockstep and not inline else (0, 0)


class Rhythm:
    """How long to try before sleeping, learnt from the length of the waits so far. Pure.

    Caller and worker wait for one another by turns, and a wait mostly lasts about as long as the ones before. The
    worker waits while the caller works between two steps (its policy). The caller waits for as long as its workers take
    longer than itself. A side that tries for somewhat longer than that is awake when the wait is over, and saves waking
    up (45 to 90 us here). A side that would have to try for longer than about a millisecond sleeps at once: waking up
    is a small part of that.

    Trying pays only while there is a core for it. Two signs show that there is none. In a turn the side that tries does
    not run: another program has its core. Or a wait takes milliseconds longer than usual: the other side has no core.
    After a sign the side does not try for a while, and after another sign soon afterwards for four times as long.

    Args:
        longest: ns; waits that usually take longer are slept through. 0: all are.

    Attributes:
        budget: ns to try in the next wait; 0: sleep at once.
    """

    __slots__ = ("_longest", "_rest", "_until", "_usual", "budget")

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._usual = min(FIRST, longest)
        self.budget = 2 * self._usual
        self._rest = SHORT_REST
        self._until = 0  # when trying begins again

    def note(self, now: int, waited: int, tried: int, held_up: int) -> None:
        """Note a wait that has ended.

        Args:
            now: ns on any clock, not before the previous note's.
            waited: ns that it took.
            tried: ns of it, from its beginning, that were spent trying.
            held_up: the longest time for which another program had the core, in ns.
        """
        longest, usual = self._longest, self._usual
        if not longest:
            return
        self._usual = usual = usual + ((min(waited, 2 * longest) - usual) >> 3)
        if tried and (held_up > HELD_UP or (tried < waited and waited > usual + OVERDUE)):
            soon = now - self._until < 4 * self._rest + SOON
            self._rest = min(4 * self._rest, LONG_REST) if soon else SHORT_REST
            self._until = now + self._rest
        resting = now < self._until or usual > longest
        self.budget = 0 if resting else usual + (usual >> 1) + MARGIN


class Waiting:
    """How one side waits for the other: it tries for as long as its rhythm allows, then it sleeps.

    While it tries it gives way (`sched_yield`) every few microseconds. Two sides that wait for one another may be on
    one core, although another one is idle, and would take turns of a millisecond. Where other programs want the core,
    giving way holds the side up for milliseconds; then the rhythm stops trying.
    """

    __slots__ = ("_acquire", "rhythm")

    def __init__(self, bell: Bell, longest: int = 0) -> None:
        self.rhythm = Rhythm(longest)
        self._acquire = bell.acquire

    def until(self, words: Any, at: int, number: int, timeout: float) -> bool:
        """Wait until words[at] == number. Returns False if the bell did not ring for `timeout` seconds."""
        acquire, rhythm, clock = self._acquire, self.rhythm, perf_counter_ns
        budget = rhythm.budget
        if budget:
            for _ in LOOKS:  # most waits of small environments are over by then: the rhythm need not learn from them
                if words[at] == number:
                    acquire(False)
                    return True
        began = now = clock()
        end, held_up = began + budget, 0
        while now < end:
            give_way()
            before, now = now, clock()
            if now - before > held_up:
                held_up = now - before
            for _ in LOOKS:
                if words[at] == number:
                    acquire(False)
                    rhythm.note(now, now - began, now - began, held_up)
                    return True
        rung = True
        while rung and words[at] != number:
            rung = acquire(True, timeout)
        woken = clock()
        rhythm.note(woken, woken - began, now - began, held_up)
        return rung or words[at] == number

    def ring(self, timeout: float) -> bool:
        """Wait for a ring, whatever it means. Returns False if none came for `timeout` seconds."""
        acquire, rhythm, clock = self._acquire, self.rhythm, perf_counter_ns
        began = now = clock()
        end, held_up = began + rhythm.budget, 0
        rung = False
        while now < end and not rung:
            rung = any(acquire(False) for _ in LOOKS)
            give_way()
            before, now = now, clock()
            held_up = max(held_up, now - before)
        tried = now - began
        rung = rung or acquire(True, timeout)
        woken = clock()
        rhythm.note(woken, woken - began, tried, held_up)
        return rung
