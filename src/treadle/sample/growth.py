"""Growth of a run: `workers="auto"` watches how workers spend their time, and adds workers.

A run begins with a worker a core, which is right where environments compute. An environment that waits (for a server, a
simulator elsewhere, a device) leaves its core idle. Then the cores have room for more workers: for as many as fill
them, times `DEMAND`, as they do not take turns evenly.

No workers are added where another part sets the pace. Such a part is the cores, where the run fills them, or the
caller, where it is busy with its episodes. Another is a policy in the caller that takes all the time, so that workers
have nothing to do. Few are added at a time, so that their cost shows. Where other programs fill the cores, at most as
many workers are added as there are: environments may have started those programs. No more are added once an addition
gained nothing.

Workers take time to start. With W workers `left` seconds of work remain. So k workers end the run after left * W / k
seconds and the time to start k - W of them. So k = W * sqrt(left / starting W) is best.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from time import monotonic, process_time
from typing import NamedTuple

from treadle.memory.arena import memory_available
from treadle.pool.pool import Pool
from treadle.pool.processor import private_memory, times_of, used
from treadle.wire.bell import cores
from treadle.worker.life import ALIVE
from treadle.worker.worker import Worker

log = logging.getLogger("treadle")

WINDOW, LONGEST, LONGER = 0.15, 10.0, 1.25  # seconds of the first stretch that is looked at and of the last; times
STEPS = 8  # of each worker, without which a stretch says nothing
SHARE = 0.5  # of the memory and of the descriptors that there are
FILES = 6  # descriptors of a worker
WAITS = 0.2  # of a worker's time: what is to be gained by adding workers is no more than that
FULL = 0.8  # of the cores
GAIN = 1.2  # times as many steps, at least, after workers were added: else no more are
AWAY = 0.5  # of the caller's time, from which on the caller sets the pace
DEMAND = 2.0
AT_ONCE = 16  # workers that there may be after one decision, where cores are idle, or twice as many as there were
LEAST = 0.01  # of the cores: so much is used, whatever was measured

Work = Callable[[Worker], tuple[float, int]]


class Clocks(NamedTuple):
    """Clocks read at one moment, in seconds.

    Attributes:
        now: the moment.
        used: of the cores, on average.
        own: of the caller.
        workers: (number, process) -> (at work, on cores, in line for a core, steps made).
    """

    now: float
    used: float
    own: float
    workers: dict[tuple[int, int | None], tuple[float, float, float, int]]


class Growth:
    """Adds workers to a pool at work that has slots left for `later`.

    Args:
        pool: the pool.
        work: returns a worker's seconds with orders, and its steps, both since one moment.

    Attributes:
        due: when to look next (monotonic); inf: no more workers are added.
        away: seconds that the caller spent outside the run since the last look; the caller's code adds them.
    """

    def __init__(self, pool: Pool, work: Work) -> None:
        self._pool, self._work, self._window, self.due = pool, work, WINDOW, 0.0
        self._wanted, self._rate = 0, 0.0  # workers at the last look; steps a second before some were added
        self._starting = sum(times_of(each.pid)[0] for each in pool.workers) / cores()
        self.begin()

    @staticmethod
    def possible(workers: int | None, backend: str, start_method: str | None) -> bool:
        """May there be more than at first? Not of a number that was given, nor copies of a caller with a policy."""
        return workers is None and backend == "process" and start_method != "fork" and used() is not None

    def begin(self) -> None:
        """Look at what comes from now on."""
        self._at, self.away = self._clocks(), 0.0
        self.due = max(self.due, self._at.now + self._window)

    def stop(self) -> None:
        """No more workers are added."""
        self.due = math.inf

    def patience(self, seconds: float | None = None) -> float | None:
        """How long to wait at most: `seconds` (None: for ever), or until the next look."""
        due = max(0.0, self.due - monotonic())
        return seconds if math.isinf(due) else due if seconds is None else min(due, seconds)

    def turn(self, most: float, left: float) -> None:
        """Look, if it is time to, and add workers.

        Args:
            most: so many more have something to do.
            left: seconds, as in `worth_having`.
        """
        if monotonic() < self.due:
            return
        pool, before, now = self._pool, self._at, self._clocks()
        there = before.workers.keys() & now.workers.keys()
        spent = [[b - a for a, b in zip(before.workers[key], now.workers[key], strict=True)] for key in there]
        if pool.calls.growing or len(before.workers) != len(now.workers) or not there:  # all are successors
            self.begin()
            return
        if sum(steps for *_, steps in spent) < STEPS * len(there):
            self.due = now.now + self._window
            return
        self._window = min(LONGEST, LONGER * self._window)
        seconds, have = now.now - before.now, len(there)
        waits = sum(max(0.0, work - ran - stood) for work, ran, stood, _ in spent)
        own = (now.own - before.own + sum(ran for _, ran, _, _ in spent)) / cores()
        shares = (each / seconds for each in (waits / have, own, now.used - before.used, self.away))
        load, rate = Load(have, *shares), sum(steps for *_, steps in spent) / seconds
        seen, most = self._wanted, min(most, pool.later, self._room())
        self._wanted = worth_having(load, have + most, left, self._starting)
        if seen > have and self._wanted > have:  # twice: once may be chance
            if rate < GAIN * self._rate:
                self.stop()
            else:
                self._add(self._wanted - have, load)
                self._rate, self._window = rate, WINDOW
        self.begin()

    def _add(self, count: int, load: Load) -> None:
        log.info(
            "workers='auto': environments wait (%.0f%% of a worker's time), and %.0f%% of the cores are enough for it: "
            "%d workers are added to %d",
            *(100 * load.waits, 100 * load.own, count, load.workers),
        )
        try:
            self._pool.grow(count)
        except Exception as error:  # noqa: BLE001 - no more descriptors, say, or what users' `worker_environ` raises
            log.warning("workers='auto': not so many could be started: %s: %s", type(error).__name__, error)
            self.stop()

    def _room(self) -> float:
        """So many more have room, in the memory if they take as much as the largest does, or as it may."""
        files, memory, workers = getrlimit(RLIMIT_NOFILE)[0], memory_available(), self._pool.workers
        each = max(self._pool.calls.wear.limit or 1, *(private_memory(worker.pid or 0) or 0 for worker in workers))
        return min(
            math.inf if files == RLIM_INFINITY else SHARE * files // FILES - len(workers),
            math.inf if memory is None else SHARE * memory // each,
        )

    def _clocks(self) -> Clocks:
        found = {}
        for worker in self._pool.workers:
            if worker.state in ALIVE:
                work, steps = self._work(worker)
                found[worker.index, worker.pid] = work, *times_of(worker.pid), steps
        return Clocks(monotonic(), used() or 0.0, process_time(), found)


class Load(NamedTuple):
    """The use of a stretch of a run.

    Attributes:
        workers: number of workers that played.
        waits: share of the time, 0 to 1, that an average worker had orders and neither ran nor waited for a core.
        own: share of the cores that workers and caller used, 0 to 1.
        used: share of the cores that all programs used, 0 to 1.
        away: share of the time that the caller spent outside this run, 0 to 1.
    """

    workers: int
    waits: float
    own: float
    used: float = 0.0
    away: float = 0.0


def worth_having(load: Load, most: float, left: float = math.inf, starting: float = 0.0) -> int:
    """Return the best number of workers, at least the present one.

    Args:
        most: the largest number.
        left: seconds that the run takes with the present workers; inf: unknown, or without end.
        starting: seconds that it takes to start as many workers again.
    """
    have = load.workers
    if load.waits < WAITS or load.own > FULL or load.away > AWAY:
        return have
    fill, at_once = DEMAND * have / max(load.own, LEAST), 2 * have if load.used > FULL else max(2 * have, AT_ONCE)
    pays = have * math.sqrt(left / starting) if starting > 0 else math.inf
    return max(have, int(min(fill, pays, at_once, most)))
