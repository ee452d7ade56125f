"""A joint request: one request to several workers that is on its way, and what has come of it so far.

It is the tag of its requests (`calls.py`). In partial batches several may be under way at once, about different slots,
and a worker may owe answers to more than one. Whichever is waited for hears all events, and gives the others theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Protocol

from treadle.checks import check_seconds
from treadle.errors import WorkerError
from treadle.lockstep.slots import Seen
from treadle.pool.calls import Calls
from treadle.pool.events import Done, Event, InFlight, Lost
from treadle.pool.layout import share_of
from treadle.spaces import Mailed
from treadle.wire.messages import Extras, Op
from treadle.worker.life import ALIVE, RestartPolicy
from treadle.worker.worker import Order, Worker

LAST_CALL = 1.0  # seconds that the other workers get to answer once one has failed


class AfterDeath(Protocol):
    """How joint requests go on after a worker's death."""

    def lost(self, joint: JointRequest, event: Lost) -> None:
        """A worker has died, and is replaced or dropped, while this joint request and its others were under way."""

    def broken(self, error: WorkerError) -> None:
        """A worker has died, and nobody takes its place."""

    def begin_due(self, joint: JointRequest) -> None:
        """Ask fresh workers for the episodes that are to begin with them, in this joint request and its others."""


def orders_of(workers: Sequence[Worker], asked: dict[int, Any]) -> list[Order]:
    """What each worker is sent when slots are asked (slot -> order)."""
    mine = [(worker, {slot: asked[slot] for slot in worker.slots if slot in asked}) for worker in workers]
    return [(worker, orders, tuple(orders)) for worker, orders in mine if orders]


def step_orders(workers: Sequence[Worker], mailed: Mailed | None) -> list[Order]:
    """What each worker is sent for a step of all slots; `mailed`: n values of each action leaf that goes by message."""
    orders: list[Order] = []
    for worker in workers:
        lo, hi = worker.slots[0], worker.slots[-1] + 1
        orders.append((worker, None if mailed is None else (None, share_of(mailed, lo, hi)), worker.slots))
    return orders


def tell(waiting: JointRequest, event: Event) -> None:
    """Give the news of a pool that steps to the joint requests that are their tags. `waiting`: one of them, which is
    told of every death."""
    recovery = waiting.recovery
    if isinstance(event, Done):
        event.tag.answered(event)
    elif isinstance(event, Lost) and recovery is not None and event.verdict is not RestartPolicy.RAISE:
        recovery.lost(waiting, event)
    elif isinstance(event, Lost):
        if recovery is not None:
            recovery.broken(event.error)
        for tag in {*event.tags, *(() if event.worker.state in ALIVE else (waiting,))}:
            tag.fail(event.error, [call for call in event.calls if call.tag is tag])


@dataclass(eq=False, slots=True)
class JointRequest:
    """Attributes:
    op, block, slots: what was asked, where rows go (-1: nowhere), of which slots.
    posted: somebody is going to wait for it; else it was interrupted, if it is still open.
    extras: what answers have said beyond their rows.
    others: the joint requests that are under way beside it.
    recovery: what goes on after a worker's death; None: a death is the end. The rest is its notes on this one:
    begins: slot -> (seed, options) of the episodes that begin in it, made again by a fresh worker when one dies.
    unsent: those of `begins` that a fresh worker has yet to be asked for.
    cut: slots whose episode was cut, as this joint request's batch tells.
    lost: slots whose worker died without owing anything of this joint request -> what it has seen.
    void: slots that were dropped in it and had no episode to be cut.
    told: errors of workers that died in a call.
    before: slot -> episodes it had begun when its next one was asked for.
    """

    op: Op
    block: int
    slots: tuple[int, ...]
    posted: bool = False
    others: Callable[[], Iterable[JointRequest]] = tuple
    recovery: AfterDeath | None = None
    extras: list[Extras] = field(default_factory=list)
    begins: dict[int, Any] = field(default_factory=dict)
    unsent: set[int] = field(default_factory=set)
    cut: set[int] = field(default_factory=set)
    lost: dict[int, Seen] = field(default_factory=dict)
    void: set[int] = field(default_factory=set)
    told: list[WorkerError] = field(default_factory=list)
    before: dict[int, int] = field(default_factory=dict)
    _given_up: list[Worker] = field(default_factory=list)
    _failures: list[WorkerError] = field(default_factory=list)
    _cut_short: set[int] = field(default_factory=set)
    _spoiled: set[int] = field(default_factory=set)

    def fail(self, error: WorkerError, lost: Iterable[InFlight] = ()) -> None:
        """This failure, which these requests are lost to, ends it: the others get a last call, from when it is
        waited for."""
        self._failures.append(error)
        for call in lost:
            self._spoiled.update(call.slots if call.op in (Op.STEP, Op.RESET) else ())

    def collect(self, calls: Calls, timeout: float | None = None) -> None:
        """Wait for one answer of each worker, and (see `recovery`) for fresh workers in the place of dead ones.

        Raises TimeoutError after `timeout` seconds, with everything as it was: call again to go on. When a worker
        fails for good the others get a last call; then the failure is raised, and what has not come is given up.
        """
        check_seconds("timeout", timeout, none=True, zero=True)
        deadline = None if timeout is None else monotonic() + timeout
        last_call, recovery, hear = None, self.recovery, partial(tell, self)
        while True:
            if recovery is not None and not self._failures:
                recovery.begin_due(self)
            changing = recovery is not None and not self._failures and calls.changing
            if not changing and not calls.awaited(self):
                break
            if self._failures and last_call is None:
                last_call = monotonic() + LAST_CALL
            until = deadline if last_call is None else last_call
            if calls.poll(None if until is None else max(0.0, until - monotonic()), hear):
                continue
            if last_call is not None:
                break
            if deadline is not None and monotonic() >= deadline:
                slots = sorted(self.unsent.union(self.cut, *(call.slots for call in calls.awaited(self))))
                raise TimeoutError(f"no answer from slots {slots} within {timeout:g} s; it is still awaited")
        if self._failures:
            self._give_up(calls)
            first, *others = self._failures
            for other in others:
                first.add_note(f"and: {str(other).splitlines()[0]}")
            raise first

    def _give_up(self, calls: Calls) -> None:
        """What has not come will not be waited for, nor what else those who owe it owe."""
        lost = calls.abandon(self)
        self._given_up += {call.worker.index: call.worker for call in lost}.values()
        for other in {call.tag for call in lost} - {self}:
            other.fail(self._failures[0], [call for call in lost if call.tag is other])

    def answered(self, event: Done) -> None:
        """Note an answer."""
        if event.reply.extras is not None:
            self.extras.append(event.reply.extras)
        if event.cut:
            self._cut_short.update(event.call.slots)

    def raise_told(self) -> None:
        """Raise the error of a worker that died in a call, with the results of the others."""
        for error in self.told[:1]:
            error.partial = self.results()
            for other in self.told[1:]:
                error.add_note(f"and: {str(other).splitlines()[0]}")
            raise error

    def stale(self) -> set[int]:
        """Slots that may have moved without anybody seeing it."""
        gone = [worker.slots for worker in self._given_up]
        return self._spoiled.union(self.cut, self.unsent, self.void, self.moved_unseen(), *gone)

    def moved_unseen(self) -> set[int]:
        """Slots that must be reset when it is over: they have raised, or an interrupt has cut them short."""
        if self.op is Op.CALL:
            return set(self._cut_short)
        return {slot for each in self.extras for slot in each.raised}

    def results(self) -> dict[int, Any]:
        """slot -> result of a call, as far as they have come."""
        return {slot: value for each in self.extras for slot, value in each.infos.items()}
