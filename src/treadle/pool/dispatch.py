"""Dispatch: sending requests to workers and hearing from them; everything a pool does is made of these two.

`send` hands a numbered request to one worker and never waits; `poll` returns the next events: a reply, a failure, a
restarted worker. Here is where a worker's death is *observed*: after its last replies have been drained. What it means
is `life.py`'s table, what to do about it `failure.py`'s.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from numbers import Real
from time import monotonic
from typing import Any, Self

from treadle.errors import BrokenPool, ClosedPool, UsageError, WorkerError
from treadle.pool import bell, failure, life, open_pools
from treadle.pool.arena import too_many_files
from treadle.pool.bell import SLICE
from treadle.pool.failure import Policy
from treadle.pool.ground import Grounding
from treadle.pool.interrupts import Later
from treadle.pool.life import Event, State
from treadle.pool.member import Answered, Failed, Member, Owed, PoolEvent
from treadle.pool.messages import Op, Request
from treadle.pool.roster import FAREWELL, Roster, partition

log = logging.getLogger("treadle")

Order = tuple[Member, Any, tuple[int, ...]]  # whom to send a request, its payload, about which slots

BACKENDS = ("process", "thread", "serial")
STILL_WAITING = 60.0  # seconds without an answer and without a limit, after which one warning is given


class Dispatch:
    """The caller's side of many workers: sends to them, hears from them, watches and ends them. See `Pool`."""

    def __init__(
        self,
        factories: Sequence[Callable[[], Any]],
        *,
        backend: str = "process",
        workers: int | None = None,
        inline: int = 0,
        start_method: str | None = None,
        preload: Sequence[str] | None = None,
        start_timeout: float = 120.0,
        step_timeout: float | None = None,
        close_timeout: float = 5.0,
        on_failure: str = "raise",
        max_restarts: int | None = 3,
        worker_output: str = "prefix",
        rows: bool = True,
        copy: bool = True,
        blocks: int = 6,
    ) -> None:
        self._closed = True  # until there is something to close
        self._lock = threading.RLock()
        self.n = len(factories)
        _check(factories, backend, workers, inline, on_failure, worker_output)
        check_seconds("step_timeout", step_timeout, none=True)
        check_seconds("start_timeout", start_timeout)
        check_seconds("close_timeout", close_timeout, zero=True)
        if backend == "process":
            from treadle.pool import process

            start_method = start_method or process.default_start_method()
            process.check_start_method(start_method)
        if inline == self.n:  # no worker, so nothing that workers need
            backend = "serial"
        self.backend, self.start_method = backend, start_method
        self.step_timeout, self.close_timeout = step_timeout, close_timeout
        self.policy, self.max_restarts = Policy(on_failure), max_restarts
        self._pid = os.getpid()
        self._last_id = 0
        self.broken: WorkerError | None = None
        self.overruns = 0  # requests that took longer than step_timeout where it cannot be enforced
        cores = bell.cores()
        inline = self.n if backend == "serial" else inline
        shares = partition(self.n - inline, workers or min(cores, max(1, self.n - inline)), inline)
        # threads share one interpreter: the one that tries keeps the one it waits for from running
        longest = (0, 0) if backend == "thread" else bell.who_tries(len(shares), inline, cores, rows)
        self.grounding = Grounding(self.n, rows=rows, copy=copy, blocks=blocks, shared=backend == "process")
        self.roster = Roster(backend, start_method, preload, self.grounding, longest, start_timeout)
        self.members = self.roster.members
        self._remote = backend != "serial" and not inline
        self._closed = False
        open_pools.note(self)
        try:
            self.roster.equip(worker_output)
            for index, slots in enumerate(shares):
                self.roster.add(index, slots, [factories[s] for s in slots])
            # without rows nothing is gained by stepping slots together, and each is a worker that is asked by itself
            mine = [(s,) for s in range(inline)] if not rows else [tuple(range(inline))] if inline else []
            for index, slots in enumerate(mine, len(shares)):
                self.roster.add(index, slots, [factories[s] for s in slots], inline=True)
            self.roster.launch()
            self.descriptions = self.roster.start()
            self._waiting = bell.Waiting(self.grounding.pool_bell, longest[0])
        except BaseException as error:
            try:
                self.roster.end_building()
            finally:
                self.close(min(self.close_timeout, FAREWELL))
            if (limited := too_many_files(error)) is not None:
                raise limited from error
            raise

    # -- sending and receiving ---------------------------------------------------------------------------------------

    def in_slot_order(self) -> list[Member]:
        return self.roster.in_slot_order()

    @property
    def latest_id(self) -> int:
        """Of the latest request."""
        return self._last_id

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def send(
        self,
        member: Member,
        op: Op,
        payload: Any = None,
        block: int = -1,
        slots: Sequence[int] | None = None,
    ) -> int:
        """Send a request; returns its number. Raises ClosedPool, BrokenPool or UsageError; never waits."""
        return self.send_all(op, [(member, payload, tuple(slots or member.slots))], block)[0]

    def send_all(
        self,
        op: Op,
        orders: Sequence[Order],
        block: int = -1,
        expect: Callable[[Member, int, tuple[int, ...]], object] | None = None,
    ) -> list[int]:
        """Send each of several members a request: all or, when one of them cannot be sent, none.

        `expect` is told (member, number, slots) of each before it is sent: an interrupt (Ctrl-C) between the two leaves
        an answer awaited that may never come, which is found out, and never one that nobody waits for.
        """
        with self._lock:  # against a `close` from another thread
            self.check()
            packed: list[Any] = []
            try:
                for member, payload, _ in orders:
                    self._check_free(member)
                    packed.append(member.pack(payload))
            except BaseException:
                for each in packed:
                    if each is not None:
                        each.discard()
                raise
            ids = []
            for (member, payload, slots), each in zip(orders, packed, strict=True):
                if op is not Op.STEP or len(slots) < len(member.slots):
                    member.asides += 1
                if op is Op.STREAM and member.worker.line is not None:
                    member.worker.line.one_to_one = False
                request = Request(self.next_id(), op, payload, block)
                if expect is not None:
                    expect(member, request.id, slots)
                member.send(request, each, slots, None if op is Op.STREAM else self.step_timeout)
                ids.append(request.id)
            return ids

    @staticmethod
    def _check_free(member: Member) -> None:
        if member.state not in life.ALIVE:
            raise UsageError(f"worker {member.index} takes no requests: it is {member.state.value}")
        line = member.worker.line
        if line is not None and len(member.owed) >= line.depth - 2:
            raise UsageError(f"worker {member.index} owes {len(member.owed)} answers: take them first")

    def poll(self, timeout: float | None = 0.0, hear: Callable[[PoolEvent], None] | None = None) -> list[PoolEvent]:
        """The events that are there, waiting up to `timeout` seconds (None: for ever) for the first.

        `hear` is given each of them at once. Where no environments run in the caller, Ctrl-C waits until it has noted
        them; else, and without it, what was heard when an interrupt comes may be lost.
        """
        deadline = None if timeout is None else monotonic() + timeout
        undivided = hear is not None and self._remote
        while True:
            with self._lock, Later() if undivided else nullcontext():  # the lock: against a `close` from elsewhere
                if self._closed:
                    self.check()
                events = self._replies() or self._watch()
                if hear is not None:
                    for event in events:
                        hear(event)
            if events or not self.expects:
                return events
            left = SLICE if deadline is None else min(SLICE, deadline - monotonic())
            if left <= 0:
                return []
            starting = [m for m in self.members if m.state is State.STARTING]
            if starting and self.backend == "process":
                self.roster.sleep_on(starting, min(left, 0.005))
                self.grounding.pool_bell.acquire(False)
            else:
                self._waiting.ring(left)

    @property
    def expects(self) -> bool:
        """Can there be further events: does a worker owe an answer, or is one being started?"""
        return any(m.owed or m.state is State.STARTING or m.restart_at is not None for m in self.members)

    def _replies(self) -> list[PoolEvent]:
        events: list[PoolEvent] = []
        for member in self.members:
            if not member.owed:
                continue
            owed, began = member.owed[0], member.turn
            while (reply := member.worker.take()) is not None:
                if owed.limit is not None and member.worker.in_caller and monotonic() - began > owed.limit:
                    self._overran(member, owed, monotonic() - began, owed.limit)
                if member.settle(reply):
                    events.append(Answered(member, reply))
                elif reply.last:
                    self.grounding.release(reply.id)
                if member.inline:  # its takes are its steps: one at a time, so that streams interleave
                    break
            else:
                member.forget_if(member.worker.idle())
        return events

    def _watch(self) -> list[PoolEvent]:
        """Deaths, missed deadlines, restarts that are due. Called when no reply is there."""
        events: list[PoolEvent] = []
        now = monotonic()
        for member in self.members:
            if member.state in life.ALIVE and not member.inline and member.worker.ended():
                last = self._replies()  # it may have answered before it died
                if last:
                    return events + last
                events.append(self._bury(member))
            elif member.owed and (found := self._overdue(member, now)) is not None:
                events.append(found)
            elif member.state is State.STARTING and member.worker is not None:
                events.extend(self.roster.restarted(member))
            elif member.restart_at is not None and now >= member.restart_at:
                self.roster.restart(member)
        return events

    def _overdue(self, member: Member, now: float) -> PoolEvent | None:
        owed = member.owed[0]
        streams = owed.request.op is Op.STREAM
        if streams and member.got_on(now):
            return None
        elapsed, limit = now - member.turn, self.step_timeout if streams else owed.limit
        if limit is None:
            if elapsed > STILL_WAITING and member.warned != owed.request.id:
                member.warned = owed.request.id
                where, stack = self.grounding.at_work(member), member.worker.stack()
                log.warning("%s: no answer for %.0f s, and no step_timeout is set. Stack:\n%s", where, elapsed, stack)
            return None
        if elapsed <= limit:
            return None
        if member.worker.in_caller:
            self._overran(member, owed, elapsed, limit)
            return None
        if streams:
            if member.stalled is None:
                stack = member.worker.stack()
                member.stalled = failure.late(self.grounding.at_work(member), elapsed, limit, stack, killed=True)
                member.worker.kill(signal.SIGKILL)  # its death is the next thing we see
            return None
        if owed.request.id in member.late:
            if elapsed > limit + failure.grace(limit):
                log.warning("%s", failure.late(self.grounding.at_work(member), elapsed, limit, "", killed=True))
                member.worker.kill(signal.SIGKILL)  # its death is the next thing we see
            return None
        where = self.grounding.at_work(member)
        error = failure.late(where, elapsed, limit, member.worker.stack())
        failed = member.failed(error, tuple(member.owed))
        self.give_up(member)
        return failed

    def give_up(self, member: Member) -> None:
        """Drop the answers to all that a member owes when they come; their rows are out of service until then."""
        for each in member.owed:
            member.late.add(each.request.id)
            self.grounding.withhold(each.request)
        if member.owed:
            member.see(Event.DEADLINE)

    def _overran(self, member: Member, owed: Owed, elapsed: float, limit: float) -> None:
        """A deadline can only be measured where the caller itself, or a thread of it, does the work."""
        if member.overran != owed.request.id:
            member.overran = owed.request.id
            self.overruns += 1
            if self.overruns == 1:
                where = self.grounding.at_work(member, owed)
                log.warning(
                    "%s: %.1f s and more, the limit is %g s. In the caller's own process no deadline is enforced: "
                    "results come when they come (`overruns` counts on; this is said once)",
                    where,
                    elapsed,
                    limit,
                )

    # -- failure -----------------------------------------------------------------------------------------------------

    def _bury(self, member: Member) -> Failed:
        owed = tuple(o for o in member.owed if o.request.id not in member.late)
        error = self.roster.died(member, self.grounding.at_work(member), self.policy)
        if member.stalled is not None:
            error = member.stalled
        failed = member.failed(error, owed)
        for each in member.owed:
            self.grounding.release(each.request.id)
        member.owed.clear()
        member.late.clear()
        member.see(Event.DIED)
        member.barren += 1
        if self.policy is Policy.RAISE:
            self.broken = self.broken or error
        return failed

    @property
    def restarts(self) -> tuple[int, ...]:
        """How often each slot's worker was started anew."""
        return tuple(len(member.restarts) for member in self.in_slot_order() for _ in member.slots)

    def restart(self, member: Member, delay: float = 0.0) -> None:
        """Start a dead member anew, after `delay` seconds; `poll` tells when it is ready."""
        member.restart_at = monotonic() + delay
        if delay <= 0:
            self.roster.restart(member)

    def drop(self, member: Member) -> None:
        """Give a dead member up for good."""
        member.see(Event.DROP)

    def check(self) -> None:
        """Raise ClosedPool or BrokenPool when there is nothing more to be had."""
        if self._pid != os.getpid():
            raise UsageError("this pool belongs to the process that made it, not to a fork of it")
        if self._closed:
            raise ClosedPool("the pool is closed")
        if self.broken is not None:
            raise BrokenPool(f"the pool is broken by: {self.broken}", where=self.broken.where) from self.broken

    # -- the end -----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed

    def disown(self) -> None:
        """In a fork: it belongs to the parent."""
        self._closed = True  # what keeps the fast lane of `step` from being taken
        self._lock = threading.RLock()

    def close(self, timeout: float | None = None) -> None:
        """End all workers: ask, wait, SIGTERM to the groups, 1 s, SIGKILL. Idempotent; from any thread, at any time.

        Takes at most `timeout` (default `close_timeout`) + 1 s, however stuck the workers are.
        """
        if self._closed or self._pid != os.getpid():
            return
        with self._lock:
            if self._closed:
                return
            left: list[Member] = []
            try:
                self._closed = True
                open_pools.forget(self)
                deadline = monotonic() + (self.close_timeout if timeout is None else timeout)
                left = [m for m in self.members if m.state not in (State.DEAD, State.GONE)]
                for member in self.members:
                    member.see(Event.CLOSE)
                self.roster.end(left, deadline)
            except BaseException:  # a second Ctrl-C, say: no more patience, but nothing stays behind
                self.roster.end(left or self.members, 0.0)
                raise
            finally:
                for member in self.members:
                    member.see(Event.CLOSED)
                    member.owed.clear()  # and with it what requests took along: the files of parcels
                self.grounding.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._pid == os.getpid():
            import warnings

            warnings.warn("a treadle pool was dropped without close(); its workers are killed", ResourceWarning, 2)
            self.close(0.0)


def _check(factories: Any, backend: str, workers: int | None, inline: int, on_failure: str, worker_output: str) -> None:
    n = len(factories)
    if n == 0:
        raise UsageError("a pool needs at least one slot")
    if backend not in BACKENDS:
        raise UsageError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise UsageError(f"workers must be a positive integer or None, got {workers!r}")
    if not 0 <= inline <= n:
        raise UsageError(f"inline must be between 0 and the number of slots ({n}), got {inline!r}")
    if on_failure not in {p.value for p in Policy}:
        raise UsageError(f"on_failure must be 'raise', 'restart' or 'drop', got {on_failure!r}")
    if worker_output not in ("prefix", "label", "keep", "raw"):
        raise UsageError(f"worker_output must be 'prefix', 'label', 'keep' or 'raw', got {worker_output!r}")


def check_seconds(name: str, seconds: Any, *, none: bool = False, zero: bool = False) -> None:
    """Raises UsageError for what is no time to wait."""
    if none and seconds is None:
        return
    if (
        not isinstance(seconds, Real)
        or isinstance(seconds, bool)
        or not (float(seconds) > 0 or (zero and seconds == 0))
    ):
        some = " or None" if none else ""
        raise UsageError(f"{name} must be {'at least' if zero else 'more than'} 0 seconds{some}, got {seconds!r}")
