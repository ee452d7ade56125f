"""The roster: a pool's workers as processes that come and go - launched, awaited, replaced, ended.

Starting is parallel: all are launched, then all hellos are awaited under one deadline. Ending is a ladder under one
deadline: ask, wait, SIGTERM to the groups, SIGKILL to the groups, reap.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from time import monotonic
from typing import Any

from treadle.errors import StartupFailed, StartupRefused, TaskRaised, UsageError, Where, WorkerError
from treadle.pool import carried, failure, modules
from treadle.pool.arena import too_many_files
from treadle.pool.bell import SLICE
from treadle.pool.failure import Policy
from treadle.pool.ground import Grounding
from treadle.pool.interrupts import Missed, undisturbed
from treadle.pool.life import Event, State
from treadle.pool.local import SerialWorker, ThreadWorker
from treadle.pool.member import Member
from treadle.pool.messages import Hello, WorkerSpec
from treadle.pool.modules import Modules
from treadle.pool.stderr import StderrReader

log = logging.getLogger("treadle")

TERM_SECONDS, KILL_SECONDS = 0.75, 5.0
FAREWELL = 1.0  # seconds that workers get to close their slots when the pool cannot be started


class Roster:
    def __init__(
        self,
        backend: str,
        start_method: str | None,
        preload: Sequence[str] | None,
        grounding: Grounding,
        longest: tuple[int, int],
        start_timeout: float,
    ) -> None:
        self.start_timeout = start_timeout
        self.backend, self._start_method = backend, start_method
        self._asked, self._needed = preload, list[str]()  # modules
        self._preload = Modules()
        self._added: list[Member] = []
        self._grounding, self._longest = grounding, longest
        self._reader: StderrReader | None = None
        self._stdout_too = False
        self._carriers: list[carried.Carrier] = []
        self.members: list[Member] = []
        self.restarts = 0

    def in_slot_order(self) -> list[Member]:
        return sorted(self.members, key=lambda member: member.slots[0])

    def equip(self, worker_output: str) -> None:
        """Open what the workers share; `end` closes it."""

        def make() -> None:
            self._stdout_too = worker_output in ("label", "keep")
            if worker_output != "raw":
                self._reader = StderrReader(shown=worker_output != "keep")

        if self.backend == "process":
            undisturbed(make, lambda _: self._put_away())

    def _put_away(self) -> None:
        for carrier in self._carriers:
            carrier.close()
        if self._reader is not None:
            self._reader.close()

    def add(self, index: int, slots: tuple[int, ...], factories: list[Any], *, inline: bool = False) -> None:
        """A new member, whose worker starts with `launch`. Raises whatever pickling its factories raises."""
        spec, carrier = WorkerSpec(index, slots, b""), None
        if not inline and self.backend == "process":
            (programs, found), carrier = carried.packed(modules.dumps, factories, slots, self._start_method)
            spec = WorkerSpec(index, slots, programs, len(carrier.files))
            self._carriers.append(carrier)
            self._needed += found
        self._added.append(Member(spec, factories, None, inline, carrier=carrier))

    def launch(self) -> None:
        """Start the workers of those that were added. Raises StartupFailed when the fork server takes too long."""
        if self._start_method == "forkserver" and self.backend == "process":
            from treadle.pool import forkserver

            found = modules.worth_preloading(self._needed)
            named = modules.named_by_multiprocessing() if self._asked is None else self._asked
            asked = modules.worth_preloading(named, asked=True)
            users = asked.users if self._asked is not None else (*asked.users, *found.users)
            users = forkserver.prepare(tuple(dict.fromkeys(users)), self.start_timeout, asked=self._asked is not None)
            self._preload = Modules(tuple(dict.fromkeys((*found.ours, *asked.ours))), users)
        added, self._added = self._added, []
        for member in added:
            self._employ(member)

    def _employ(self, member: Member) -> None:
        """Give a member a worker, and a new one its place in `members`."""

        def make() -> Any:
            member.worker = self._worker(member)
            if member not in self.members:
                self.members.append(member)
            return member.worker

        try:
            if member.inline or self._start_method == "fork":
                make()  # built by the caller's own thread, or a copy of it
            else:
                undisturbed(make, lambda worker: worker.abandon())
        except OSError as error:
            if (limited := too_many_files(error)) is not None:
                raise limited from error
            raise

    def _worker(self, member: Member) -> Any:
        spec, factories = member.spec, member.factories
        if member.inline:
            return SerialWorker(spec, factories)
        if self.backend == "thread":
            return ThreadWorker(spec, factories)
        from treadle.pool.process import ProcessWorker

        assert self._start_method is not None
        assert member.carrier is not None
        return ProcessWorker(
            spec,
            member.carrier.files,
            self._start_method,
            self._preload,
            self._reader,
            stdout_too=self._stdout_too,
        )

    def start(self) -> list[Any]:
        """Wait for every hello, then lay the ground; returns one description a slot.

        Raises StartupFailed with all that went wrong.
        """
        with Missed() as missed:
            return self._start(missed)

    def _start(self, missed: Missed) -> list[Any]:
        limit = self.start_timeout
        deadline = monotonic() + limit
        hellos: dict[int, Hello] = {}
        failures: list[WorkerError] = []
        waiting = list(self.members)
        while waiting:
            missed.check()
            for member in list(waiting):
                hello = member.worker.hello()
                if hello is not None:
                    waiting.remove(member)
                    member.see(Event.HELLO)
                    if hello.failed:  # it closes what it has built, and ends by itself
                        slot, raised = hello.failed
                        failures.append(failure.task_error(raised, slot, member.shown, hello.pid or None))
                    else:
                        hellos[member.index] = hello
                elif member.worker.ended() and member.worker.hello() is None:
                    waiting.remove(member)
                    failures.append(self.died(member, _building(member)))
            if waiting and monotonic() >= deadline:
                for member in waiting:
                    stack = member.worker.stack()
                    failures.append(failure.slow_start(_building(member), limit, stack, len(hellos), len(self.members)))
                break
            if waiting:
                self.sleep_on(waiting, min(SLICE, max(0.0, deadline - monotonic())))
        if failures:
            raise _startup_failed(failures)
        descriptions = [d for member in self.in_slot_order() for d in hellos[member.index].descriptions]
        undisturbed(lambda: self._found(descriptions), lambda _: self._grounding.clear())
        return descriptions

    def _found(self, descriptions: list[Any]) -> None:
        self._grounding.lay(descriptions, self.members)
        for member in self.members:
            self._grounding.give(member, self._longest)

    def sleep_on(self, members: list[Member], timeout: float, *, closing: bool = False) -> None:
        from treadle.pool.child import wait_readable

        fds = [fd for member in members for fd in member.worker.fds(closing=closing)]
        if fds:
            wait_readable(fds, timeout)
        else:
            time.sleep(min(timeout, 0.001))  # threads building their slots: nothing to poll

    def died(self, member: Member, where: Where, policy: Policy = Policy.RAISE) -> WorkerError:
        """Bury a member that has ended; the error tells how, and what can be done under the `policy`."""
        return failure.died(where, member.worker.bury(), policy)

    def restart(self, member: Member) -> None:
        """Start a dead member anew; `restarted` tells when it is ready. When it cannot be started, because there are no
        descriptors, say, it is dead as before, and due to be started."""
        member.restart_at = monotonic()
        self._employ(member)
        member.restart_at = None
        member.restarts.append(monotonic())
        member.asides = 0
        member.failure = member.stalled = member.beat = None
        self.restarts += 1
        member.see(Event.RESTART)

    def restarted(self, member: Member) -> WorkerError | bool:
        """Is a member ready that is starting again? An error: it has failed once more, and is dead."""
        ended = member.worker.ended()  # asked first: a hello may come just before the end
        hello = member.worker.hello()
        where = _building(member)
        if hello is None and ended:
            error = self.died(member, where, Policy.RESTART)
            member.failed(error)
            member.see(Event.DIED)
            return error
        if hello is None:
            elapsed = monotonic() - member.restarts[-1]
            if elapsed > self.start_timeout and member.failure is None:  # once: it takes a moment to die
                member.failure = failure.late(where, elapsed, self.start_timeout, "", killed=True)
                log.warning("%s", member.failure)
                member.worker.kill(signal.SIGKILL)
            return False
        if hello.failed:
            slot, raised = hello.failed
            self._await_ends([member], monotonic() + FAREWELL)  # it closes what it has built
            member.worker.bury()
            error = failure.task_error(raised, slot, member.shown, hello.pid)
            member.failed(error)
            member.see(Event.DIED)
            return error
        member.see(Event.HELLO)
        undisturbed(lambda: self._grounding.give(member, self._longest), lambda _: None)
        return True

    def end_building(self) -> None:
        """Terminate those that are still building their slots: they have nothing to close, and hear nothing."""
        for member in self.members:
            if member.state is State.STARTING:
                member.worker.kill(signal.SIGTERM)

    def end(self, left: list[Member], deadline: float) -> None:
        """Climb the ladder with the members that still run, then bury all."""
        for member in left:
            member.worker.ask()
        left = self._await_ends(left, deadline)
        for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            for member in left:
                member.worker.kill(number)
            left = self._await_ends(left, monotonic() + (seconds if self.backend == "process" else 0.0))
        if left:
            log.warning("closing: worker %s did not end", ", ".join(str(m.index) for m in left))
        for member in self.members:
            for slot, raised in member.worker.last_words().items():
                log.warning("%s", failure.task_error(raised, slot, member.shown, member.worker.pid))
            member.worker.bury()
        self._put_away()

    def _await_ends(self, members: list[Member], deadline: float) -> list[Member]:
        """Those that have not ended by the deadline. Looks again as soon as one ends."""
        left = [m for m in members if not m.worker.ended()]
        while left and monotonic() < deadline:
            for member in left:  # a worker that waits to send something must not wait for ever
                if member.owed:
                    member.worker.drain()
            self.sleep_on(left, min(SLICE, max(0.0, deadline - monotonic())), closing=True)
            left = [m for m in left if not m.worker.ended()]
        return left


def _building(member: Member) -> Where:
    return Where(member.worker.building(), member.shown, member.worker.pid, "init")


def partition(n: int, workers: int, first: int = 0) -> list[tuple[int, ...]]:
    """Contiguous shares of slots first..first+n-1, as equal as can be, the longer ones first; at most one a slot."""
    if n == 0:
        return []
    workers = min(workers, n)
    size, extra = divmod(n, workers)
    shares, at = [], first
    for i in range(workers):
        end = at + size + (i < extra)
        shares.append(tuple(range(at, end)))
        at = end
    return shares


def _startup_failed(failures: list[WorkerError]) -> StartupFailed:
    first = failures[0]
    more = f" ({len(failures)} workers failed; see .failures)" if len(failures) > 1 else ""
    fields = {"where": first.where, "remote_traceback": first.remote_traceback, "failures": tuple(failures)}
    if isinstance(first, TaskRaised) and all(isinstance(failure, UsageError) for failure in failures):
        error: StartupFailed = StartupRefused(f"{first.error_message} ({first.where})", **fields)
        error.__cause__ = first.__cause__  # the failure between the two says the same once more
    else:
        error = StartupFailed(f"{first}{more}", **fields)
        error.__cause__ = first
    return error
