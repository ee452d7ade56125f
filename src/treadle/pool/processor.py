"""The processor time of processes, as the kernel counts it."""

from __future__ import annotations

import os
from time import monotonic, process_time
from typing import Any, NamedTuple


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
    """Return the mean seconds that this process's allowed processors were busy so far, with any program; None:
    unknown."""
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
