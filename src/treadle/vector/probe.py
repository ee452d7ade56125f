"""Does an environment wait or compute? What `workers="auto"` measures before it chooses.

An environment that computes wants a core, so more workers than cores only get in each other's way. One that waits (a
socket, a simulator in a process of its own, a clock) leaves its core idle, so one worker for each lets them wait side
by side. Which kind it is shows in its first steps: the wall time that went by while its process neither ran nor stood
in line for a core. What the environment's own children compute counts as waiting, since it goes on beside everything
else; standing in line does not, so a busy machine does not make an environment look patient.

The steps are those of an environment built for this, in a worker that is thrown away. The vector's own environments
are never touched: a step of theirs would move their random streams, and one that has been stepped cannot move to
another process. The price is one environment's start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

from treadle.errors import WorkerTimeout
from treadle.pool.member import Answered, Failed
from treadle.pool.messages import Op
from treadle.pool.pool import Pool
from treadle.program.base import Description, Program

log = logging.getLogger("treadle")

STEPS, SECONDS = 64, 0.1  # as many steps as are measured, and how long at most; at least one step
LIMIT = 5.0  # seconds for a reset and all steps; then what they have cost so far decides

# Below these, more workers cost more than they gain: to wake one takes up to 100 us of a core, whatever it does then.
WAITING_SHARE, WAITING_SECONDS = 0.5, 200e-6


@dataclass(frozen=True)
class Waiting:
    """How an environment spends its steps.

    Attributes:
        step: seconds of wall time a step.
        share: which part of it was waiting, 0 to 1.
    """

    step: float
    share: float

    @property
    def waits(self) -> bool:
        """Does it wait rather than compute, and long enough for a worker of its own to pay?"""
        return self.share >= WAITING_SHARE and self.share * self.step >= WAITING_SECONDS


def measure_waiting(factory: Callable[[], Program], **options: Any) -> Waiting | None:
    """Build a slot in a worker process, reset it with seed 0, step it with random actions, and throw it away.

    Args:
        factory: of a program that runs an environment.
        **options: start_method, preload, start_timeout, worker_output: as for `Pool`.

    Returns:
        None when it raised or died on the way: the vector's own slots will say so where it matters.

    Raises:
        StartupFailed: it cannot be built.
    """
    pool = Pool([lambda: _Probe(factory())], workers=1, rows=False, step_timeout=LIMIT, close_timeout=2.0, **options)
    patience = None
    try:
        (member,) = pool.members
        began, busy = perf_counter(), sum(times_of(member.worker.pid))
        pool.send(member, Op.CALL, {0: ("measure", (), {})})
        (event,) = pool.poll(None)
        if isinstance(event, Answered) and event.reply.extras is not None:
            found: Waiting | None = event.reply.extras.infos.get(0)
            return found
        if isinstance(event, Failed) and isinstance(event.error, WorkerTimeout):
            patience = 0.0
            return _waiting(perf_counter() - began, sum(times_of(member.worker.pid)) - busy, 1)
        return None
    finally:
        pool.close(patience)


class _Probe(Program):
    def __init__(self, slot: Program) -> None:
        self._slot = slot

    def describe(self) -> Description:
        return Description()

    def measure(self) -> Waiting:
        """Step, reset where an episode ends, and see where the time goes."""
        space: Any = self._slot.describe().action_space
        space.seed(0)
        self._slot.begin(0)
        self._step(space.sample())  # the first step imports, compiles, allocates
        began, busy = perf_counter(), _busy_time()
        steps = 0
        while steps < STEPS and (steps == 0 or perf_counter() - began < SECONDS):
            self._step(space.sample())
            steps += 1
        return _waiting(perf_counter() - began, _busy_time() - busy, steps)

    def _step(self, action: Any) -> None:
        _, _, terminated, truncated, _ = self._slot.step(action)
        if terminated or truncated:
            self._slot.begin()

    def close(self) -> None:
        self._slot.close()


def _waiting(elapsed: float, busy: float, steps: int) -> Waiting:
    return Waiting(elapsed / steps, min(1.0, max(0.0, 1.0 - busy / elapsed)))


def _busy_time() -> float:
    """Seconds that this process's threads have run, or stood in line for a core."""
    return process_time() + times_of(os.getpid())[1]


def times_of(pid: int | None) -> tuple[float, float]:
    """Seconds that a process's threads have run so far, and that they have stood in line for a core.

    From Linux's /proc/PID/task/*/schedstat; (0, 0) where there is none.
    """
    ran = stood = 0
    tasks = f"/proc/{pid}/task"
    for task in os.listdir(tasks) if os.path.isdir(tasks) else ():
        try:
            with open(f"{tasks}/{task}/schedstat") as file:
                fields = file.read().split()
        except OSError:  # a thread that has just ended, or a kernel without these figures
            continue
        ran, stood = ran + int(fields[0]), stood + int(fields[1])
    return ran * 1e-9, stood * 1e-9


def tell(found: Waiting | None, n: int, workers: int | None, inline: int) -> None:
    """Say through the logger (INFO) what was measured, and what follows from it."""
    if found is None:
        what = "how environments spend a step could not be measured, so they count as computing"
    else:
        does = "wait" if found.waits else "compute"
        what = f"environments {does} (a step took {found.step * 1e3:.3g} ms, {found.share:.0%} of it waiting)"
    log.info(
        "workers='auto': %s. Of %d slots %d are the caller's; workers for the others: %s", what, n, inline, workers
    )


__all__ = ["Waiting", "measure_waiting", "tell", "times_of"]
