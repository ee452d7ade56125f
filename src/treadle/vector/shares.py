"""The meaning of "auto": which process steps which slots.

An environment that computes needs a core: "auto" makes as many workers as cores, with the caller's own share. An
environment that waits leaves its core idle. So each has a worker of its own, and none is the caller's, where its wait
would stop all others.

Workers pay while they save more than they cost. A batch that ends before a sleeping worker begins (50 to 100 us) is
stepped in the caller alone. So is a batch of a few milliseconds where another program, or a policy's own threads, leave
no second core free. In lockstep the slowest worker decides, and one that shares a core is late by whole time slices.
Longer batches gain all the same.

Three measurements come before the choice.

Waiting or computing: the wall time of the first steps in which the process neither ran nor waited for a core. The work
of the environment's own children counts as waiting, since it goes on beside all else. Time in line for a core does not
count, so a busy machine makes an environment look neither patient nor slow.

A free second core: the caller computes for a moment while the worker steps. The kernel measures how long each of them
stood in line. (The load average covers the last minute, often the program's own imports. The list of running processes
covers too short a moment.)

The time to wake a worker: it is asked a few times after it has gone to sleep, and says when it began.

The steps are those of an environment built for this, in a worker that is thrown away. The vector's own environments
are never touched: a step would move their random streams, and a stepped environment cannot move to another process.
The price is one environment's start.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from itertools import cycle
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np

from treadle.checks import check_whole, check_workers
from treadle.errors import UsageError, WorkerTimeout
from treadle.memory.rows import row_writers
from treadle.pool.events import Done, Event, Lost
from treadle.pool.pool import Pool
from treadle.pool.processor import times_of, times_of_thread
from treadle.program.base import Program
from treadle.spaces import Layout
from treadle.wire import bell
from treadle.worker.options import MOST_WORKERS, PoolOptions

log = logging.getLogger("treadle")

# Below these, more workers cost more than they gain: to wake one takes up to 100 us of a core, whatever it does then.
WAITING_SHARE, WAITING_SECONDS = 0.5, 200e-6

# Of the time in which the caller and one worker both compute they stand in line for a core: hardly ever where they have
# one each, a third of it where a stranger computes as well, half of it where there is one core.
CROWDED_SHARE = 0.15
CROWDED_SECONDS = 4e-3  # a batch from here on gains as much by more processes as it loses in line
# The threads of torch (OpenMP) go on trying for about so long after a policy has been asked, each on a core. A worker
# that shares a core with one gets half of it, and first has to wait for the end of a time slice.
THREADS_SECONDS, SLICE_SECONDS = 7e-3, 3e-3

STEPS, SECONDS = 64, 0.1  # as many steps as are measured, and how long at most; at least one step
WARM = 32  # of them are not counted if there are more: what is run for the first time takes up to twice as long
LIMIT = 5.0  # seconds for a reset and a step, and for all others; then what they have cost so far decides
BESIDE = 0.015  # seconds that the caller computes beside it: some of the scheduler's time slices
LOOKS, BETWEEN = 3, 0.02  # how often, at most, and how many seconds lie between
WAKES, ASLEEP = 9, 0.0015  # how often a worker is woken, and after how many seconds it has gone to sleep
MARGIN = 1.5  # a step that took so many times as long or as short, and two choices are level where they differ
THREADS_OF = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # of libraries, where torch is not there
GRAPHICS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # there a policy computes, if there is one


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
        """Return True if it waits rather than computes, and long enough for a worker of its own to pay."""
        return self.share >= WAITING_SHARE and self.share * self.step >= WAITING_SECONDS

    def crowd_matters(self, n: int) -> bool:
        """Return True if time in line of the caller and a worker would change who steps n slots."""
        return not self.waits and self.wake < n * self.step < CROWDED_SECONDS


class Why(Enum):
    """The reason for the number of cores that are worth using."""

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


def level(n: int, cores: int, found: Measured | None, threads: int) -> bool:
    """Does the choice hang on a difference that one start measures and the next does not? Pure."""
    if found is None:
        return False
    near = (replace(found, step=found.step * times) for times in (1 / MARGIN, MARGIN))
    return any(worth_using(n, cores, each, threads) != worth_using(n, cores, found, threads) for each in near)


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
    """Return (workers, inline) for a pool of n slots; the first `inline` slots are the caller's. Pure.

    "auto" slots in the caller: an equal share, where the workers are processes and leave it a core. All slots, without
    processes, where `workers` is "auto" as well and one core is to be used. No slot when the environments wait, or when
    `guarded`: a deadline or a policy for failures is given, which the caller's own slots cannot have.

    "auto" workers: one a core, with the caller's share. Where the environments wait, one a slot; of processes, up to
    MOST_WORKERS.

    `using`: number of cores that are worth using for slots in the caller and beside it (`worth_using`); None: all.

    Raises UsageError for a value that is neither "auto" nor a number in range.
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


def shares_of(
    slots: Sequence[Callable[[], Program]],
    pool: PoolOptions,
    workers: int | str | None,
    inline: int | str,
    guarded: bool,
) -> tuple[tuple[int | None, int], str]:
    """(workers, inline), measured where that matters, and why. `guarded`: see `choose_shares`."""
    n, cores = len(slots), bell.cores()
    choose = partial(choose_shares, n, pool.backend, workers, inline, guarded=guarded, cores=cores)
    if matters(n, pool.backend, workers, inline, cores, guarded):
        found, threads = measure(slots[0], n, pool), policy_threads()
        using, why = worth_using(n, cores, found, threads)
        shares = choose(waits=why is Why.WAIT, using=using)
        return shares, tell(found, n, *shares, why, threads, level(n, cores, found, threads))
    shares = choose(waits=pool.backend == "thread")  # whoever asks for threads has environments that wait
    if own := shares[1]:
        log.info("slots 0 to %d of %d are stepped in the caller's own process (inline=%d)", own - 1, n, own)
    return shares, ""


# -- what is measured -------------------------------------------------------------------------------------------------


def measure(factory: Callable[[], Program], n: int, options: PoolOptions | None = None) -> Measured | None:
    """Build a slot in a worker process, reset it with seed 0, step it with random actions, and throw it away.

    Args:
        factory: of a program that runs an environment.
        n: how many slots there are going to be: whether a second core is to be had is looked at where it matters.
        options: start_method, preload, start_timeout and worker_output of it count.

    Returns:
        None when it raised or died on the way: the vector's own slots will say so where it matters.

    Raises:
        StartupFailed: it cannot be built.
    """
    options = replace(
        options or PoolOptions(),
        backend="process",
        on_failure="raise",
        step_timeout=LIMIT,
        close_timeout=2.0,
        max_restarts=3,
        brief=True,
    )
    pool = Pool([lambda: _Probe(factory(), n)], workers=1, rows=False, options=options)
    patience = None
    try:
        pid = pool.workers[0].pid
        for name in ("prepare", "steps"):
            began, busy = perf_counter(), sum(times_of(pid))
            event = _asked(pool, name)
            if isinstance(event, Lost) and isinstance(event.error, WorkerTimeout):
                patience = 0.0
                return _measured(perf_counter() - began, sum(times_of(pid)) - busy, 1)
            if (said := _said(event)) is None:
                return None
        found = replace(_measured(*said), wake=_time_to_wake(pool))
        return replace(found, stood=_time_in_line(pool)) if found.crowd_matters(n) else found
    finally:
        pool.close(patience)


def _asked(pool: Pool, name: str) -> Event:
    pool.ask(name)
    return pool.answers(name)[0]


def _said(event: Event) -> Any:
    """Return the result of a call; None where it raised or the worker died."""
    if isinstance(event, Done) and event.reply.extras is not None:
        return event.reply.extras.infos.get(0)
    return None


def _time_to_wake(pool: Pool) -> float:
    times = []
    for _ in range(WAKES):
        sleep(ASLEEP)
        asked = perf_counter()
        began = _said(_asked(pool, "now"))
        if began is None:
            return 0.0
        times.append(began - asked)
    return median(times)


def _time_in_line(pool: Pool) -> float:
    """Return the share of the time that the caller and a worker stand in line while both compute.

    It is the least of some looks, because another program that ends at once does not count.
    """
    least = 1.0
    for again in range(LOOKS):
        if again:
            sleep(BETWEEN)
        pool.ask("beside")
        own = compute_beside()
        theirs = _said(pool.answers("beside")[0])
        if theirs is None:
            return 0.0
        least = min(least, (own + theirs) / 2)
        if least < CROWDED_SHARE:
            break
    return least


def compute_beside() -> float:
    """Compute for BESIDE seconds; the part of them that this thread stood in line for a core."""
    own = "/proc/thread-self"
    began, stood = perf_counter(), times_of_thread(own)[1]
    while (elapsed := perf_counter() - began) < BESIDE:
        pass
    return (times_of_thread(own)[1] - stood) / elapsed


class _Probe(Program):
    def __init__(self, slot: Program, n: int) -> None:
        self._slot, self._rows = slot, min(n, WARM)  # so many are written to in turn, as a batch's

    def prepare(self) -> bool:
        """The first step imports, compiles, allocates."""
        about = self._slot.describe()
        space: Any = about.action_space
        layout, k = Layout(about.observation_space), self._rows  # type: ignore[arg-type]  # an environment has one
        rows = [np.zeros((k, *(each.shape or ())), each.dtype) if each.fixed else None for each in layout.leaves]
        self._writes = cycle(row_writers(rows, layout, k))
        space.seed(0)
        self._slot.begin(0)
        self._actions = [space.sample() for _ in range(STEPS)]  # some take longer than a step
        self._step(self._actions[0])
        return True

    def steps(self) -> tuple[float, float, int]:
        """Step, reset where an episode ends, and see where the time goes: in the later steps, where there are some.

        Returns: seconds of wall time, standing in line for a core not counted; of them those that this process ran; how
        many steps that were.
        """
        spent = 0.0
        for actions in (self._actions[:WARM], self._actions[WARM:]):
            # the clock comes last: a core may be lost in between, and what is lost there is not the steps'
            stood, ran, began, steps = times_of(os.getpid())[1], process_time(), perf_counter(), 0
            while steps < len(actions) and (steps == 0 or spent + perf_counter() - began < SECONDS):
                self._step(actions[steps])
                steps += 1
            elapsed, ran, stood = perf_counter() - began, process_time() - ran, times_of(os.getpid())[1] - stood
            spent += elapsed
            if spent >= SECONDS:
                break
        return max(elapsed - stood, min(ran, elapsed)), ran, steps

    def beside(self) -> float:
        """As the caller does meanwhile."""
        return compute_beside()

    def now(self) -> float:
        """The same clock as the caller's."""
        return perf_counter()

    def _step(self, action: Any) -> None:
        observation, _, terminated, truncated, _ = self._slot.step(action)
        next(self._writes)(observation)  # of a picture that takes longer than many a step
        if terminated or truncated:
            self._slot.begin()

    def close(self) -> None:
        self._slot.close()


def _measured(elapsed: float, ran: float, steps: int) -> Measured:
    return Measured(elapsed / steps, min(1.0, max(0.0, 1.0 - ran / elapsed)))


def policy_threads() -> int:
    """Return the number of threads that a policy in the caller computes with: torch's, on processors. Before torch is
    imported it is the number in the environment variables of such libraries.

    1 with a graphics processor, and where a variable lets idle threads (OpenMP's) sleep.
    """
    torch = sys.modules.get("torch")
    threads = getattr(torch, "get_num_threads", None)  # it may be half imported
    if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive" or any(map(os.path.exists, GRAPHICS)):
        return 1
    if threads is not None:
        return max(1, int(threads()))
    said = (os.environ.get(name, "").partition(",")[0] for name in THREADS_OF)
    return max(1, *(int(each) for each in said if each.isdecimal()), 1)


def tell(
    found: Measured | None, n: int, workers: int | None, inline: int, why: Why, threads: int, is_level: bool = False
) -> str:
    """Say through the logger (INFO) what was measured, and what follows from it; returns the text. `is_level`: see
    `level`."""
    if found is None:
        what = "how environments spend a step could not be measured, so they count as computing"
    else:
        does = "wait" if found.waits else "compute"
        what = f"environments {does} (a step took {found.step * 1e3:.3g} ms, {found.share:.0%} of it waiting)"
        batch = n * found.step * 1e3
        if why is Why.SHORT:
            what += f", and {n} of them take {batch:.2g} ms, no longer than waking a worker ({found.wake * 1e3:.2g} ms)"
        elif why is Why.CROWDED:
            what += f", and other programs compute: {found.stood:.0%} of the time was standing in line for a core"
        elif why is Why.THREADS:
            what += f", and a policy has {threads} threads (torch.set_num_threads), which keep cores from workers"
    if inline == n:
        which = f"All {n} slots are the caller's, without workers: what crashes there takes your program with it "
        which += "(workers=1 or more: processes)"
    else:
        which = f"Of {n} slots {inline} are the caller's; workers for the others: {workers}"
    text = f"workers='auto': {what}. {which}" + "; with or without workers is level here" * is_level
    log.info("%s", text)
    return text
