"""Workers that are worn out: environments that take more and more memory, simulators that fail after so many episodes.

What a worker has taken is its private memory (RssAnon of Linux: what it has written that no file and no other process
shares; the pool's own shared memory does not count). One that is over the limit, or has played its number of episodes,
is *retired* between two episodes: it is asked to close its environments and end, and another is started in its place.
That is no failure: no restart is counted, and nothing is lost. One that is over the hard limit is killed at once, which
is a death as any other: what follows is what the pool's `on_failure` says.

Memory is looked at a few times a second, when the caller waits for workers or steps them, and before a worker that has
ended an episode gets another one. What each episode has added says how many more a worker is given at a time: those
that it has room for, so that it is retired soon after the limit, and not killed for what it was given in advance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import UsageError, Where, WorkerDied
from treadle.pool.life import ALIVE

if TYPE_CHECKING:
    from treadle.pool.options import PoolOptions
    from treadle.pool.worker import Worker

EVERY = 0.25  # seconds between two looks
HARD = 2  # times the limit, unless a hard limit is given
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
MANY = 1 << 62
STATM = "/proc/{}/statm"


def as_bytes(given: Any) -> int:
    """Bytes: a whole number of them, or a text such as "2GB" (10^9) or "1.5 GiB" (2^30). Raises UsageError."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) *([kmgt]i?)?b?", given.strip().lower()) if isinstance(given, str) else None
    size = float(found[1]) * UNITS[found[2] or ""] if found else given
    if isinstance(size, bool | str) or not isinstance(size, int | float) or not size >= 1 or size != size // 1:
        raise UsageError(f"memory_limit is a number of bytes or a text such as '2GB' or '500 MiB', got {given!r}")
    return int(size)


def limits_of(given: Any) -> tuple[int, int]:
    """The soft and the hard limit that `memory_limit` says. Raises UsageError."""
    soft, hard = given if isinstance(given, tuple | list) and len(given) == 2 else (given, None)
    low = as_bytes(soft)
    high = HARD * low if hard is None else as_bytes(hard)
    if high < low:
        raise UsageError(f"memory_limit: the hard limit comes second and is the larger one, got {given!r}")
    return low, high


def shown(size: float) -> str:
    """A number of bytes for people."""
    for name, unit in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} bytes"


def private_memory(pid: int) -> int | None:
    """Bytes of memory that a process shares with no file and no other process (RssAnon); None: it is gone, or this is
    no Linux."""
    try:
        words = Path(STATM.format(pid)).read_text().split()
    except OSError:
        return None
    return (int(words[1]) - int(words[2])) * PAGE


def _page() -> int:
    import resource

    return resource.getpagesize()


PAGE = _page()


@dataclass
class Seen:
    """What is known of a worker's memory: at the first look and at the latest; bytes, and how many episodes were known
    to have been begun by then."""

    first: int
    played: int
    now: int
    played_now: int

    @property
    def growth(self) -> float | None:
        """Bytes that each episode has added; None: there was none between the two looks."""
        played = self.played_now - self.played
        return max(0.0, (self.now - self.first) / played) if played > 0 else None


class Wear:
    """Args:
        options: of the pool.

    Attributes:
        most: episodes that a worker plays; None: any number.
        able: can a worker be worn out at all?
        played: how many episodes a worker has begun since it started; the schedule tells.
    """

    def __init__(self, options: PoolOptions) -> None:
        self.most = options.max_episodes_per_worker
        self.soft: int | None = None
        self.hard: int | None = None
        if options.memory_limit is not None:
            self.soft, self.hard = limits_of(options.memory_limit)
        self.able = self.soft is not None or self.most is not None
        self.played: Callable[[Worker], int] = lambda worker: 0
        self._seen: dict[int, Seen] = {}  # by pid
        self._growth = 0.0  # bytes that each episode added to the worker that was looked at last
        self._next = 0.0

    def look(self, workers: Sequence[Worker], now: float) -> list[Worker]:
        """Look at the workers' memory, if it is time to; returns those that are over the hard limit."""
        if self.soft is None or now < self._next:
            return []
        self._next = now + EVERY
        assert self.hard is not None
        there = [(worker, seen) for worker in workers if (seen := self._look_at(worker)) is not None]
        self._seen = {worker.pid or -1: seen for worker, seen in there}
        return [worker for worker, seen in there if seen.now > self.hard and worker.stalled is None]

    def _look_at(self, worker: Worker) -> Seen | None:
        """What is known of a worker's memory after a look at it; None: nothing is there to be seen."""
        used = None if worker.pid is None or worker.state not in ALIVE else private_memory(worker.pid)
        if worker.pid is None or used is None:
            return None
        played = self.played(worker)
        seen = self._seen.setdefault(worker.pid, Seen(used, played, used, played))
        seen.now, seen.played_now = used, played
        if seen.growth is not None:
            self._growth = seen.growth
        return seen

    def _seen_of(self, worker: Worker) -> Seen | None:
        """What is known of a worker's memory since its last episode; None: nothing."""
        seen = self._seen.get(worker.pid or -1)
        if self.soft is None or (seen is not None and self.played(worker) == seen.played_now):
            return seen
        return self._look_at(worker)

    def begin(self, workers: Sequence[Worker]) -> None:
        """Look at workers that have just been built. Raises UsageError where one has more than the limit already: so
        would the next one, and the next."""
        self.look(workers, EVERY)
        self._next = 0.0
        for worker in workers:
            seen = self._seen.get(worker.pid or -1)
            if seen is not None and self.soft is not None and seen.now > self.soft:
                raise UsageError(
                    f"memory_limit (--memory-limit) of {shown(self.soft)} is less than worker {worker.index} has "
                    f"before it plays: {shown(seen.now)} of private memory"
                )

    def worn(self, worker: Worker) -> str:
        """Why a worker is to be retired, in words; "": it is not."""
        seen = self._seen_of(worker)
        if seen is not None and self.soft is not None and seen.now > self.soft:
            return f"it has {shown(seen.now)} of private memory (memory_limit {shown(self.soft)}){self._added(worker)}"
        if self.most is not None and self.played(worker) >= self.most:
            return f"it has played {self.played(worker):,} episodes (max_episodes_per_worker={self.most})"
        return ""

    def left(self, worker: Worker, ahead: int = 0, at_once: int = 1) -> int:
        """How many more episodes a worker may be given that has yet to begin `ahead` of those it was given, and plays
        so many `at_once`, which are not given in advance."""
        if self.worn(worker):
            return 0
        most = MANY if self.most is None else max(0, self.most - self.played(worker) - ahead)
        seen = self._seen.get(worker.pid or -1)
        if seen is None or self.soft is None:
            return most
        growth = self._growth if seen.growth is None else seen.growth  # a new worker is as others are
        room = math.ceil((self.soft - seen.now) / growth) if growth else MANY
        return min(most, max(0, max(at_once, room) - ahead))

    def _added(self, worker: Worker) -> str:
        """How much each episode has added, where episodes are known and there were some between two looks."""
        seen = self._seen[worker.pid or -1]
        if not seen.growth:
            return ""
        return f", {shown(seen.growth)} more with each of {seen.played_now - seen.played:,} episodes"

    def too_large(self, worker: Worker, where: Where) -> WorkerDied:
        """The error of a worker that is over the hard limit."""
        used = self._seen[worker.pid or -1].now
        message = (
            f"{where}: the worker was killed: {shown(used)} of private memory, the hard limit is "
            f"{shown(self.hard or 0)}{self._added(worker)}"
        )
        return WorkerDied(message, where=where, signal="SIGKILL", out_of_memory=True)
