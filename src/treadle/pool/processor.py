"""What processes have had of the processors, as the kernel counts it."""

from __future__ import annotations

import os


def times_of_thread(task: str) -> tuple[float, float]:
    """Seconds that a thread has run so far, and that it has stood in line for a core; `task`: its folder in /proc.

    (0, 0) for a thread that has just ended, on a kernel without these figures, and where there is no Linux.
    """
    try:
        with open(f"{task}/schedstat") as file:
            ran, stood, *_ = file.read().split()
    except OSError:
        return 0.0, 0.0
    return int(ran) * 1e-9, int(stood) * 1e-9


def times_of(pid: int | None) -> tuple[float, float]:
    """Seconds that a process's threads have run so far, and that they have stood in line for a core."""
    tasks = f"/proc/{pid}/task"
    threads = os.listdir(tasks) if os.path.isdir(tasks) else []
    times = [times_of_thread(f"{tasks}/{thread}") for thread in threads]
    return sum(ran for ran, _ in times), sum(stood for _, stood in times)


def used() -> float | None:
    """Seconds that the processors which this process may use were busy so far, with whatever program, in the mean; None
    where nobody says."""
    try:
        with open("/proc/stat") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
    except OSError:
        return None
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    # user, nice, system, idle, iowait, irq, softirq, steal
    ticks = [sum(map(int, words[1:4] + words[6:9])) for words in lines if words[0] in mine]
    return sum(ticks) / len(ticks) / os.sysconf("SC_CLK_TCK")
