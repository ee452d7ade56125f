"""The worker group: starts, awaits, replaces and ends all workers of a pool.

Starting is parallel: all workers are started, then all hellos are awaited under one deadline. Ending is a ladder under
one deadline: ask, wait, SIGTERM to the groups, SIGKILL to the groups, reap.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np

from treadle.errors import StartupFailed, StartupRefused, TaskRaised, UsageError, Where, WorkerError
from treadle.interrupts import undisturbed
from treadle.memory.arena import too_many_files
from treadle.pool import failure, tracing
from treadle.wire.bell import SLICE
from treadle.wire.messages import Hello
from treadle.worker.backends import kind_of
from treadle.worker.life import Event, RestartPolicy, State
from treadle.worker.options import PoolOptions
from treadle.worker.worker import Common, SerialWorker, Worker

log = logging.getLogger("treadle")

TERM_SECONDS, KILL_SECONDS = 0.75, 5.0
THREAD_SECONDS = 0.4  # seconds that a thread gets to end once it has stopped waiting for its environment
FAREWELL = 1.0  # seconds that workers get to close their slots when the pool cannot be started


class WorkerGroup:
    """All workers of a pool.

    Args:
        options: of the pool.

    Attributes:
        lock: held while requests are sent and answers taken, against a `close` from another thread.
        closed: True once the pool is closed.
        kind: the class of its workers, the caller's own share apart.
        workers: the workers, in the order in which they were started.
    """

    def __init__(self, options: PoolOptions) -> None:
        self.start_timeout = options.start_timeout
        self.lock, self.closed = threading.RLock(), False
        self.kind = kind_of(options.backend)
        self._common, self._own = self.kind.common_of(options), Common(options)
        self._added: list[Worker] = []
        self.workers: list[Worker] = []
        self.restarts = 0

    def in_slot_order(self) -> list[Worker]:
        return sorted(self.workers, key=lambda worker: worker.slots[0])

    def add(self, slots: tuple[int, ...], factories: Sequence[Callable[[], Any]], *, inline: bool = False) -> Worker:
        """Return a new worker, which `start` starts. Raises whatever pickling its factories raises."""
        alien = inline and not self.kind.inline  # the caller's own share beside workers of another backend
        kind, common = (SerialWorker, self._own) if alien else (self.kind, self._common)
        factories = [factories[slot] for slot in slots]
        spec = common.spec(len(self._added), slots, factories)
        if tracing.current is not None:
            spec = replace(spec, trace=tracing.current.directory)
        self._added.append(kind(spec, factories, common))
        return self._added[-1]

    def start_extra(self, worker: Worker) -> None:
        """Start a worker that was added to a group at work; `restarted` reports when it is ready."""
        worker.extra, worker.began = True, monotonic()
        self._start_one(worker)

    def _start_one(self, worker: Worker) -> None:
        """Start a worker, again or for the first time (which gives it its place in `workers`)."""

        def make() -> Worker:
            worker.start()
            if worker not in self.workers:
                self.workers.append(worker)
            return worker

        try:
            if worker.starts_here:
                make()
            else:
                undisturbed(make, lambda made: made.abandon())
        except OSError as error:
            if (limited := too_many_files(error)) is not None:
                raise limited from error
            raise

    def start(self) -> list[Any]:
        """Start all workers, wait for every hello, and return one description a slot.

        Raises StartupFailed with all that went wrong, or if preparing what the workers share takes too long.
        """
        self._common.prepare()
        for worker in self._added:
            self._start_one(worker)
        limit = self.start_timeout
        deadline = monotonic() + limit
        hellos: dict[int, Hello] = {}
        failures: list[WorkerError] = []
        waiting = list(self.workers)
        while waiting:
            for worker in list(waiting):
                ended = worker.ended()  # asked first: a hello may come just before the end
                hello = worker.hello()
                if hello is not None:
                    waiting.remove(worker)
                    worker.see(Event.HELLO)
                    if hello.failed:  # it closes what it has built, and ends by itself
                        slot, raised = hello.failed
                        if all(each.where.slot != slot for each in failures):  # slots built together report one failure
                            failures.append(failure.task_error(raised, worker.at(slot)))
                    else:
                        hellos[worker.index] = hello
                elif ended:
                    waiting.remove(worker)
                    failures.append(self.died(worker, _building(worker)))
            if waiting and monotonic() >= deadline:
                for worker in waiting:
                    where, ready, n = _building(worker), len(hellos), len(self.workers)
                    failures.append(failure.slow_start(where, limit, worker.stack(), ready, n, worker.slow))
                break
            if waiting:
                self.sleep_on(waiting, min(SLICE, max(0.0, deadline - monotonic())))
        if failures:
            raise _startup_failed(failures)
        return [d for worker in self.in_slot_order() for d in hellos[worker.index].descriptions]

    def sleep_on(self, workers: list[Worker], timeout: float, *, closing: bool = False) -> None:
        from treadle.worker.forkserver import wait_readable

        fds = [fd for worker in workers for fd in worker.fds(closing=closing)]
        if fds:
            wait_readable(fds, timeout)
        else:
            time.sleep(min(timeout, 0.001))  # threads building their slots: nothing to poll

    def died(self, worker: Worker, where: Where, policy: RestartPolicy = RestartPolicy.RAISE) -> WorkerError:
        """Bury a worker that has ended; return the error with its end, and with what can be done under the `policy`."""
        report = worker.bury()
        if report.at is not None:
            where = worker.at(where.slot, report.at.phase, report.at.step, report.at.episode, item=report.at.item)
        return failure.died(where, report, policy)

    def restart(self, worker: Worker) -> None:
        """Start a dead worker again; `restarted` reports when it is ready.

        If it cannot be started, for lack of descriptors for example, it stays dead and due to be started.
        """
        worker.restart_at = monotonic()
        self._start_one(worker)
        worker.restarted()
        self.restarts += 1

    def restarted(self, worker: Worker) -> WorkerError | bool:
        """Return True if a worker that is starting again is ready; an error: it has failed once more, and is dead."""
        ended = worker.ended()  # asked first: a hello may come just before the end
        hello = worker.hello()
        where = _building(worker)
        if hello is None and ended:
            error = self.died(worker, where, RestartPolicy.RESTART)
            worker.failed(error)
            worker.see(Event.DIED)
            return error
        if hello is None:
            elapsed = monotonic() - worker.began
            if elapsed > self.start_timeout and worker.failure is None:  # once: it takes a moment to die
                worker.failure = failure.late(where, elapsed, self.start_timeout, "", killed=True)
                log.warning("%s", worker.failure)
                worker.kill(signal.SIGKILL)
            return False
        if hello.failed:
            slot, raised = hello.failed
            self._await_ends([worker], monotonic() + FAREWELL)  # it closes what it has built
            worker.bury()
            error = failure.task_error(raised, worker.at(slot))
            worker.failed(error)
            worker.see(Event.DIED)
            return error
        worker.see(Event.HELLO)
        worker.extra = False
        return True

    def end_building(self) -> None:
        """Terminate workers that are still building their slots: they have nothing to close, and read no requests."""
        for worker in self.workers:
            if worker.state is State.STARTING:
                worker.kill(signal.SIGTERM)

    def end(self, left: list[Worker], deadline: float) -> None:
        """Climb the ladder with the workers that still run, then bury all."""
        for worker in left:
            worker.ask()
        left = self._await_ends(left, deadline)
        for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            for worker in left:
                worker.kill(number)
            left = self._await_ends(left, monotonic() + (THREAD_SECONDS if self.kind.in_caller else seconds))
        if left:
            log.warning("closing: worker %s did not end", ", ".join(str(m.index) for m in left))
        for worker in self.workers:
            for slot, raised in worker.last_words().items():
                log.warning("%s", failure.task_error(raised, worker.at(slot)))
            worker.bury()
        self._common.close()

    def _await_ends(self, workers: list[Worker], deadline: float) -> list[Worker]:
        """Return the workers that have not ended by the deadline. Looks again as soon as one ends."""
        left = [m for m in workers if not m.ended()]
        while left and monotonic() < deadline:
            for worker in left:  # a worker that waits to send something must not wait for ever
                if worker.owed:
                    worker.drain()
            self.sleep_on(left, min(SLICE, max(0.0, deadline - monotonic())), closing=True)
            left = [m for m in left if not m.ended()]
        return left


def _building(worker: Worker) -> Where:
    return worker.at(worker.building(), "init")


def partition(n: int, workers: int, first: int = 0) -> list[tuple[int, ...]]:
    """Return contiguous shares of slots first..first+n-1: at most one a slot, nearly equal, the longer ones first."""
    shares = np.array_split(np.arange(first, first + n), max(1, min(workers, n)))
    return [tuple(share.tolist()) for share in shares if len(share)]


def _startup_failed(failures: list[WorkerError]) -> StartupFailed:
    first = failures[0]
    more = f" ({len(failures)} workers failed; see .failures)" if len(failures) > 1 else ""
    fields = {"where": first.where, "remote_traceback": first.remote_traceback, "failures": tuple(failures)}
    if isinstance(first, TaskRaised) and all(isinstance(failure, UsageError) for failure in failures):
        error: StartupFailed = StartupRefused(f"{first.error_message} ({first.where})", **fields)
        error.__cause__ = first.__cause__  # the failure between the two would repeat it
    else:
        error = StartupFailed(f"{first}{more}", **fields)
        error.__cause__ = first
    return error
