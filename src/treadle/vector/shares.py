"""Who steps which slots: what "auto" stands for.

An environment that computes wants a core: as many workers as cores, the caller's own share counted. One that waits
leaves its core idle, so each has a worker of its own, and none is the caller's, where its wait would stop everything.

Workers are worth having while they save more than they cost. A batch that is over before a sleeping worker has begun
(50 to 100 us) is stepped in the caller alone. So are batches of a few milliseconds where a second core is not to be
had, because another program runs there or because of a policy's own threads: in lockstep the slowest decides, and
who shares a core is late by whole time slices. Longer batches gain all the same.

The functions here are pure: `probe.py` measures, and the vector asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from treadle.checks import check_whole, check_workers
from treadle.errors import UsageError
from treadle.worker.options import MOST_WORKERS

# Below these, more workers cost more than they gain: to wake one takes up to 100 us of a core, whatever it does then.
WAITING_SHARE, WAITING_SECONDS = 0.5, 200e-6

# Of the time in which the caller and one worker both compute they stand in line for a core: hardly ever where they have
# one each, a third of it where a stranger computes as well, half of it where there is one core.
CROWDED_SHARE = 0.15
CROWDED_SECONDS = 4e-3  # a batch from here on gains as much by more processes as it loses in line
# The threads of torch (OpenMP) go on trying for about so long after a policy has been asked, each on a core. A worker
# that shares a core with one gets half of it, and first has to wait for the end of a time slice.
THREADS_SECONDS, SLICE_SECONDS = 7e-3, 3e-3


@dataclass(frozen=True)
class Measured:
    """How an environment spends its steps, and what there is to step it with.

    Attributes:
        step: seconds of wall time a step, standing in line for a core not counted.
        share: which part of it was waiting, 0 to 1.
        wake: seconds until a worker that sleeps has begun with what it is asked.
        stood: which part of the time the caller and a worker stood in line while both computed, 0 to 1.
    """

    step: float
    share: float
    wake: float = 0.0
    stood: float = 0.0

    @property
    def waits(self) -> bool:
        """Does it wait rather than compute, and long enough for a worker of its own to pay?"""
        return self.share >= WAITING_SHARE and self.share * self.step >= WAITING_SECONDS

    def crowd_matters(self, n: int) -> bool:
        """Would n slots be stepped elsewhere if the caller and a worker had to stand in line?"""
        return not self.waits and self.wake < n * self.step < CROWDED_SECONDS


class Why(Enum):
    """What decides how many cores are worth using."""

    COMPUTE = auto()  # all of them
    WAIT = auto()  # the environments leave theirs idle
    SHORT = auto()  # a batch takes less time than waking a worker
    CROWDED = auto()  # others compute where a worker would
    THREADS = auto()  # a policy's threads do


def worth_using(n: int, cores: int, found: Measured | None, threads: int) -> tuple[int, Why]:
    """How many of the `cores` n slots are to be stepped on, the caller's own counted, and why. Pure.

    `found`: None: nothing is known. `threads`: that a policy in the caller computes with, 1 or more.
    """
    if found is None or cores < 2:
        return cores, Why.COMPUTE
    if found.waits:
        return cores, Why.WAIT
    batch = n * found.step
    if batch <= found.wake:
        return 1, Why.SHORT
    if found.stood >= CROWDED_SHARE and found.crowd_matters(n):
        return 1, Why.CROWDED
    if threads > 1 and batch * (1 - 1 / cores) < min(THREADS_SECONDS, SLICE_SECONDS + batch / cores):
        return max(1, cores - (threads - 1)), Why.THREADS
    return cores, Why.COMPUTE


def matters(n: int, backend: str, workers: int | str | None, inline: int | str, cores: int, guarded: bool) -> bool:
    """Does it matter to `choose_shares` how environments spend their steps? Then it is worth measuring. Pure."""
    if workers != "auto" or backend != "process":
        return False
    own = inline if isinstance(inline, int) else 0
    if n - own > cores - (own > 0):
        return True
    return inline == "auto" and not guarded and n > 1 and cores > 1


def choose_shares(
    n: int,
    backend: str,
    workers: int | str | None,
    inline: int | str,
    *,
    guarded: bool,
    cores: int,
    waits: bool = False,
    using: int | None = None,
) -> tuple[int | None, int]:
    """(workers, inline) for a pool of n slots; the first `inline` slots are the caller's. Pure.

    "auto" slots in the caller: an equal share, where the workers are processes and leave it a core. All of them where
    `workers` is "auto" as well and one core is all that is to be used: then there are no processes. None when `guarded`
    (a deadline or a policy for failures is given, which the caller's own slots cannot have), or when the environments
    wait.
    "auto" workers: one a core, the caller's share counted; where the environments wait one a slot, of processes up to
    MOST_WORKERS.

    `using`: of the cores, how many are worth using for slots in the caller and beside it (`worth_using`); None: all.

    Raises UsageError for anything that is neither "auto" nor a number in range.
    """
    if isinstance(workers, str) and workers != "auto":
        raise UsageError(f"workers must be a positive integer, None or 'auto', got {workers!r}")
    if isinstance(inline, str) and inline != "auto":
        raise UsageError(f"inline must be an integer of at least 0 or 'auto', got {inline!r}")
    check_workers(None if isinstance(workers, str) else workers)
    check_whole(0, none=False, inline=0 if isinstance(inline, str) else inline)
    using = cores if using is None else using
    if isinstance(inline, str):
        if backend != "process" or guarded or waits:
            inline = 0
        elif workers == "auto":
            inline = n // min(using, n)
            cores = using
        else:
            others = min(n, cores) if workers is None else int(workers)
            inline = n // (others + 1) if others < cores else 0
    if workers == "auto":
        most = cores - 1 if inline else cores
        if waits:
            most = n if backend == "thread" else MOST_WORKERS
        workers = max(1, min(n - inline, most))
    return (int(workers) if workers is not None else None), inline
