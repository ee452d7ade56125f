"""The processor time of processes, as the kernel counts it, and workers that are worn out.

Workers wear out where environments take ever more memory, or simulators fail after many episodes.

A worker's memory is its private memory: RssAnon of Linux, which it has written and shares with no file and no other
process. The pool's own shared memory does not count. A worker that is over the limit, or has played its number of
episodes, is *retired* between two episodes. It is asked to close its environments and end, and another is started in
its place. That is not a failure: no restart is counted, and nothing is lost. Memory is read between episodes alone, so
a worker that has a limit gets at most one round of episodes in advance.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from time import monotonic, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.checks import ends_of
from treadle.errors import UsageError
from treadle.memory.arena import text_of
from treadle.worker.life import ALIVE

if TYPE_CHECKING:
    from treadle.worker.options import PoolOptions
    from treadle.worker.worker import Worker


MANY = 1 << 62
STATM = "/proc/{}/statm"


def shown(size: float) -> str:
    """Return a number of bytes as text for people."""
    for name, unit in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} bytes"


def private_memory(pid: int) -> int | None:
    """Return the bytes that a process shares with no file and no other process (RssAnon).

    None: the process is gone, or this is not Linux.
    """
    words = text_of(STATM.format(pid)).split()
    return (int(words[1]) - int(words[2])) * mmap.PAGESIZE if words else None


class Wear:
    """Decides which workers are worn out.

    Args:
        options: of the pool.

    Attributes:
        most: episodes that a worker plays; None: any number.
        limit: bytes of private memory; None: any number.
        able: True if a worker can be worn out at all.
        played: returns how many episodes a worker has begun since it started; the schedule sets it.
    """

    def __init__(self, options: PoolOptions) -> None:
        self.most, self.limit = ends_of(options.recycle_after)
        self.able = self.limit is not None or self.most is not None
        self.played: Callable[[Worker], int] = lambda worker: 0

    def begin(self, workers: Sequence[Worker]) -> None:
        """Check workers that have just been built.

        Raises UsageError if one has more memory than the limit already: so would each of its successors.
        """
        for worker in workers:
            if self.limit is not None and (used := self._used(worker)) > self.limit:
                raise UsageError(
                    f"recycle_after of {shown(self.limit)} is less than worker {worker.index} has "
                    f"before it plays: {shown(used)} of private memory"
                )

    def worn(self, worker: Worker) -> str:
        """Return in words why a worker is to be retired; "": it is not."""
        if self.limit is not None and (used := self._used(worker)) > self.limit:
            return f"it has {shown(used)} of private memory (recycle_after {shown(self.limit)})"
        if self.most is not None and self.played(worker) >= self.most:
            return f"it has played {self.played(worker):,} episodes (recycle_after={self.most})"
        return ""

    def left(self, worker: Worker, ahead: int, at_once: int) -> int:
        """Return how many more episodes a worker may be given.

        Args:
            ahead: episodes that it was given and has yet to begin or end.
            at_once: episodes that it plays at the same time.
        """
        most = MANY if self.most is None else max(0, self.most - self.played(worker) - ahead)
        room = MANY if self.limit is None else max(0, 2 * at_once - ahead)
        return 0 if self.worn(worker) else min(most, room)

    def _used(self, worker: Worker) -> int:
        """Return the bytes of a worker's private memory; 0 where it has no process."""
        return 0 if worker.pid is None or worker.state not in ALIVE else private_memory(worker.pid) or 0


def times_of_thread(task: str) -> tuple[float, float]:
    """Return the seconds that a thread has run so far, and those that it has waited for a core.

    (0, 0) for a thread that has just ended, on a kernel without these figures, and outside Linux.

    Args:
        task: the thread's folder in /proc.
    """
    try:
        with open(f"{task}/schedstat") as file:
            ran, stood, *_ = file.read().split()
    except OSError:
        return 0.0, 0.0
    return int(ran) * 1e-9, int(stood) * 1e-9


def times_of(pid: int | None) -> tuple[float, float]:
    """Return the seconds that a process's threads have run so far, and those that they have waited for a core."""
    tasks = f"/proc/{pid}/task"
    threads = os.listdir(tasks) if os.path.isdir(tasks) else []
    times = [times_of_thread(f"{tasks}/{thread}") for thread in threads]
    return sum(ran for ran, _ in times), sum(stood for _, stood in times)


def used() -> float | None:
    """Return the mean seconds that this process's processors were busy so far, with any program; None: unknown."""
    try:
        with open("/proc/stat") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
    except OSError:
        return None
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    # user, nice, system, idle, iowait, irq, softirq, steal
    ticks = [sum(map(int, words[1:4] + words[6:9])) for words in lines if words[0] in mine]
    return sum(ticks) / len(ticks) / os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """How the worker processes of a pool have used the cores.

    Attributes:
        ran, stood: seconds on cores, and seconds waiting for one; sums over all threads.
        threads: of a worker that compute, in the mean.
        own: seconds on cores of the calling thread.
        line: the fraction of the calling thread's time on cores and waiting for them that it waited, 0 to 1.
        others: cores that other programs used, in the mean.
    """

    ran: float
    stood: float
    threads: int
    own: float
    line: float
    others: float


class Usage:
    """Measures the share of the cores that a pool's worker processes get, from its construction on.

    `pool`: the pool; workers that it gets meanwhile count from their beginning.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._before = self._read()
        self._clocks = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float, float, float]:
        return monotonic(), used() or 0.0, process_time(), *times_of_thread("/proc/thread-self")

    def _read(self) -> dict[str, tuple[float, float]]:
        found = {}
        for worker in self._pool.workers:
            tasks = f"/proc/{worker.pid}/task"
            if worker.pid and worker.pid != os.getpid() and worker.node is None and os.path.isdir(tasks):
                found.update({f"{tasks}/{each}": times_of_thread(f"{tasks}/{each}") for each in os.listdir(tasks)})
        return found

    def before(self) -> float:
        """Return the seconds that the processes had been on cores before the construction, in all."""
        return sum(ran for ran, _ in self._before.values())

    def since(self) -> Used:
        """Return the use of the cores from the construction until now."""
        before, processes, in_all = self._before, dict[str, list[float]](), (0.0, 0.0)
        for task, times in self._read().items():
            ran, stood = (max(0.0, now - then) for now, then in zip(times, before.get(task, (0.0, 0.0)), strict=True))
            processes.setdefault(task.rpartition("/")[0], []).append(ran)
            in_all = in_all[0] + ran, in_all[1] + stood
        threads = [sum(ran > COMPUTES * max(each) for ran in each) for each in processes.values() if max(each) > 0]
        elapsed, busy, own, ran, stood = (now - then for now, then in zip(self._now(), self._clocks, strict=True))
        others = (busy * len(os.sched_getaffinity(0)) - own - in_all[0]) / max(elapsed, 1e-9)
        mean = max(1, round(sum(threads) / len(threads))) if threads else 1
        return Used(*in_all, mean, ran, stood / max(ran + stood, 1e-9), max(0.0, others))


COMPUTES = 0.2  # fraction of the time of a worker's busiest thread; threads that ran less do not count as computing


def stalled() -> float:
    """Return the seconds so far in which some program waited for memory; 0.0 where the system does not count them."""
    for path in ("/sys/fs/cgroup/memory.pressure", "/proc/pressure/memory"):
        try:
            with open(path) as file:
                return int(file.readline().rpartition("total=")[2]) * 1e-6
        except (OSError, ValueError):
            continue
    return 0.0
