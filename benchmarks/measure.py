"""What one timed stretch yields, and the CPU time that it cost.

CPU time is that of this process and of everything that descends from it, read from `/proc` just before and just after
the stretch: a contestant cannot forget a worker. Threads are included. Linux reports other processes in ticks, usually
of 10 ms, which is below 1 % of a core over 2 s.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measure:
    """One timed stretch.

    env_steps: calls of `env.step`; resets are not counted, though the time they take is. wall_s: seconds from the first
    action to the last result. cpu_s: CPU seconds of all processes that took part, the caller included. p50_ms, p99_ms:
    quantiles of a batch's time, where there are batches.
    """

    env_steps: int
    wall_s: float
    cpu_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def steps_per_s(self) -> float:
        return self.env_steps / self.wall_s

    @property
    def cpu_us_per_step(self) -> float:
        """CPU microseconds per env step; infinite when nothing was stepped."""
        return 1e6 * self.cpu_s / self.env_steps if self.env_steps else float("inf")

    @property
    def cores(self) -> float:
        """How many cores were busy on average."""
        return self.cpu_s / self.wall_s


def measure(stretch: Callable[[], tuple[int, float]], pids: Iterable[int] = ()) -> Measure:
    """Runs `stretch`, which returns (env steps, wall seconds), and adds the CPU time.

    pids: workers that do not descend from this process (say, children of a fork server that init has adopted).
    A process that ends during the stretch drops out of the count.
    """
    outside = frozenset(pids)
    before = cpu_by_pid(outside)
    own_before = time.process_time()
    env_steps, wall_s = stretch()
    own = time.process_time() - own_before
    after = cpu_by_pid(outside)
    return Measure(env_steps, wall_s, own + sum(cpu - before.get(pid, 0.0) for pid, cpu in after.items()))


def cpu_by_pid(outside: frozenset[int] = frozenset()) -> dict[int, float]:
    """CPU seconds of every live descendant of this process, and of `outside`."""
    parent: dict[int, int] = {}
    cpu: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it ended between the listing and the reading
            continue
        # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
        fields = stat.rpartition(")")[2].split()
        parent[int(entry.name)] = int(fields[1])
        cpu[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
    me = os.getpid()

    def belongs(pid: int) -> bool:
        while pid in parent and pid not in outside:
            pid = parent[pid]
            if pid == me:
                return True
        return pid in outside

    return {pid: seconds for pid, seconds in cpu.items() if pid != me and belongs(pid)}


def private_mib(pid: int) -> float:
    """MiB of memory that a process shares with nobody; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))) / 1024


def ran(pid: int) -> float:
    """Seconds that a process's main thread has run so far, exactly; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def busy_seconds() -> float:
    """Seconds that all cores together have been at work so far, for anybody, those included that a host took away."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_SECOND
