"""Partial batches: send actions to some slots, receive the rows that are ready first (EnvPool's protocol).

A slot is in one of four states. It is *free* (its last result was received), *out* (it has a request) or *ready* (its
result has arrived). Or it is *stale*: it raised or was late, and only a reset brings it back. `send` takes free slots.
`recv` hands out ready ones in the order in which their workers finished them. So no slot starves: a worker answers in
the order of its requests.

A request is a joint request of its own, about slots of one worker. Where the pool goes on after a worker's death
(on_failure "restart", "drop"), a request to its slots is not lost. It comes as a row that is cut, marked as in lockstep
(`Recovery` keeps the state here, too). A slot without a request at the death has the marks in its next row. A dropped
slot's marked row is its last: nothing more is sent to it.

Results lie in one block of the arena that is kept for this, a row per slot. `recv` copies them out: a slot's row cannot
change before its next `send`. How many slots travel in one request is a compromise: alone, each is ready as soon as it
can be; together, they cost less. Where a step takes long the first is better, else the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import islice
from time import monotonic
from typing import Any

import numpy as np

from treadle.checks import check_seconds, check_whole
from treadle.errors import UsageError, WorkerError
from treadle.interrupts import Later
from treadle.lockstep.batch import ByMessage, News, SlotRows, final_observation
from treadle.lockstep.recover import JointRequest, tell
from treadle.lockstep.slots import Seen, Slot
from treadle.pool import failure
from treadle.pool.events import Done, Event, Lost
from treadle.pool.failure import bad_action
from treadle.spaces import Mismatch
from treadle.vector.core import Core, NothingPending, WaitTimeout
from treadle.vector.infos import FINALS, NEWS, Five, gymnasium_infos
from treadle.vector.orders import chosen_slots
from treadle.wire.info_rows import InfoRows, gathered
from treadle.wire.line import BUSY_NS
from treadle.wire.messages import Op
from treadle.worker.life import ALIVE, RestartPolicy
from treadle.worker.worker import Worker

FREE, OUT, READY, STALE = range(4)
LONG_STEP_NS = 100_000  # steps at least this long travel alone: a request costs about 5 us
OWN = FINALS | {"env_id", "valid"}  # names of columns that `recv` itself makes; and of NEWS, where there may be any


class PartialBatches:
    """The protocol over one pool; made at its first use.

    Attributes:
        batch_size: number of slots that `recv` waits for by default.
        recovery: the lockstep's; None: a death is the end.
    """

    def __init__(self, core: Core, batch_size: int) -> None:
        pool, lockstep = core.pool, core.lockstep
        memory, self._core, self._counts = lockstep.memory, core, core.counts
        self._pool, self._calls, self._lockstep = pool, pool.calls, lockstep
        self.batch_size, self.recovery = batch_size, lockstep.recovery
        self._rows = SlotRows(memory, pool.by_slot, remember=self.recovery is not None)
        self._finals = self._rows.ring.finals
        self._rewards, *self._ends, self._valid = self._rows.ends
        self._state = np.full(pool.n, STALE, np.int8)  # nothing may be stepped before a reset
        self._ready: deque[int] = deque()
        self._infos: dict[int, Any] = {}  # as `InfoRows.rows` has them
        self._told: dict[int, Any] = {}
        self._news: dict[int, News] = {}
        self._errors: deque[WorkerError] = deque()
        self._steps: dict[int, int] = {}
        self._own = OWN if self.recovery is None else OWN.union(NEWS.values())
        # what is under way, and one that hears of deaths of those who owe nothing
        self._joints: set[JointRequest] = set()
        self._heard: deque[Event] = deque()
        self._nobody = JointRequest(Op.CALL, -1, (), others=lambda: list(self._joints), recovery=self.recovery)

    @property
    def open(self) -> bool:
        """Return True if a slot is out or ready, or an error is yet to be raised."""
        return bool(self._ready or self._errors or self._joints)

    def reset(
        self, seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None], slots: Sequence[int]
    ) -> None:
        """Ask for resets. Raises UsageError when a slot is out or ready, BrokenPool after a worker's death."""
        self._begin()
        self._check(slots, "reset", {FREE, STALE})
        self._core.partly = True
        self._counts.resets[slots] += 1
        orders = {slot: (seeds[i], options[i]) for i, slot in enumerate(slots)}
        if self.recovery is not None:
            living = self.recovery.reachable(list(slots))
            orders = {slot: order for slot, order in orders.items() if slot in living}
            self._lockstep._replace(orders.keys())
            self.recovery.note_asked(orders)
        self._post(Op.RESET, orders)

    def send(self, actions: Any, slots: Sequence[int] | None = None) -> None:
        """Ask for steps of free slots (None: all); slots whose drop was reported are left out.

        Raises UsageError or BadAction, and BrokenPool after a worker's death; then nothing was sent.
        """
        self._begin()
        n = self._pool.n
        chosen = list(range(n)) if slots is None else chosen_slots(np.asarray(slots).ravel().tolist(), n)
        self._check(chosen, "step", {FREE})
        try:
            mailed = self._rows.write(actions, chosen)
        except Mismatch as error:
            error.row = None if error.row is None else chosen[error.row]
            raise bad_action(error, len(chosen), actions) from None
        gone, counts = self._lockstep.life.gone, self._counts.singles
        living = [slot for slot in chosen if slot not in gone] if gone else chosen
        if self._lockstep.history is not None:
            self._lockstep.history.add(living, mailed)
        self._post(Op.STEP, dict.fromkeys(living), mailed)
        for slot in living:
            counts[slot] += 1

    def recv(self, least: int | None = None, most: int | None = None, timeout: float | None = None) -> Five:
        """Return an observation tree of [m, ...], rewards, terminated, truncated, infos; see `VectorEnv.recv`.

        Waits until `least` slots are ready (None: `batch_size`), or all that are out when they are fewer, and returns
        at most `most` (None: `least`). Raises NothingPending, WaitTimeout (all rows are kept for the next `recv`), and
        once the error of each slot that failed. It raises BrokenPool when all rows after a worker's death have been
        received.
        """
        if least is not None or most is not None:
            check_whole(min=least, max=most)
        check_seconds("timeout", timeout, none=True, zero=True)
        least = self.batch_size if least is None else least
        most = max(least, 1) if most is None else most
        if most < least:
            raise UsageError(f"recv needs 1 <= min <= max, got min={least}, max={most}")
        self._settle()
        if not self.open:
            self._pool.check()
            raise NothingPending("recv() without anything sent: it would wait for ever", "recv")
        deadline = None if timeout is None else monotonic() + timeout
        while not self._errors and len(self._ready) < least and self._joints:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if self.recovery is not None:
                self.recovery.begin_due(self._nobody)
            heard = self._calls.poll(left, self._noted)
            if self._heard:
                self._settle()
            if not heard and deadline is not None and monotonic() >= deadline:
                raise WaitTimeout(
                    f"{len(self._ready)} of {least} slots were ready within {timeout:g} s; nothing is lost, the next "
                    "recv goes on",
                    limit=timeout,
                )
        if self._errors:
            raise self._errors.popleft()
        found = self._hand_out(list(islice(self._ready, most)))
        if self._lockstep.history is not None and not self.open:
            self._lockstep.history.all_made()
        return found

    def await_also(self, joint: JointRequest) -> None:
        """Wait for another joint request. Slots that become ready meanwhile are kept for the next `recv`."""
        while self._calls.awaits(joint) and self._calls.poll(None, self._noted):
            continue
        self._settle()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Before anything is asked."""
        self._pool.check()
        self._settle()
        if self.recovery is not None and not self.open:
            self._lockstep.life.catch_up(self._calls.last_id)  # it may have stepped in lockstep meanwhile

    def _check(self, slots: Sequence[int], what: str, allowed: set[int]) -> None:
        why = {FREE: "", OUT: "in flight", READY: "ready to be received", STALE: "in need of a reset"}
        bad = [(slot, why[int(self._state[slot])]) for slot in slots if int(self._state[slot]) not in allowed]
        if STALE not in allowed and not self._lockstep.life.plain:
            bad += [(slot, why[STALE]) for slot in self._lockstep.life.of(Slot.WAITS, among=slots)]
        if bad:
            told = ", ".join(f"slot {slot} is {reason}" for slot, reason in bad[:5])
            stale = [slot for slot, reason in bad if reason == why[STALE]]
            hint = f" ({self._calls.reset_of(stale)})" if stale else ""
            raise UsageError(f"cannot {what}: {told}{hint}. Nothing was sent")

    def _post(self, op: Op, orders: dict[int, Any], mailed: ByMessage | None = None) -> None:
        with Later():  # else Ctrl-C would leave requests of which nobody knows
            for worker, slots in self._rows.by_worker(orders):
                alone = worker.inline or self._takes_long(worker)
                for group in ([slot] for slot in slots) if alone else (slots,):
                    self._post_joint(worker, op, {slot: orders[slot] for slot in group}, mailed or {})

    def _post_joint(self, worker: Worker, op: Op, asked: dict[int, Any], mailed: ByMessage) -> None:
        """Send one request. With a recovery what it asks for may begin in a fresh worker, or not be asked."""
        recovery, life, slots = self.recovery, self._lockstep.life, list(asked)
        joint = JointRequest(op, self._rows.block, tuple(slots), recovery=recovery)
        payload: Any = asked
        if op is Op.STEP:
            slots = slots if recovery is None else recovery.steppable(joint, slots)
            payload = self._rows.step_payload(worker, slots, mailed) if slots else None
        elif recovery is not None:
            payload = recovery.orders(joint, asked)
            if worker.state not in ALIVE:
                joint.unsent, slots = set(slots), []
        if slots:
            self._calls.submit(worker, op, payload, slots, joint, self._rows.block)
        if op is Op.RESET:
            life.see(Seen.ASKED, asked)
            if recovery is None:
                life.see(Seen.BEGUN, asked)
        self._joints.add(joint)
        self._state[list(asked)] = OUT
        if not slots and not joint.unsent:
            self._end(joint)

    def _takes_long(self, worker: Worker) -> bool:
        """Return True if this worker's steps have taken long so far."""
        steps = self._steps.get(worker.index, 0)
        if not steps or worker.line is None:
            return False
        return bool(worker.line.words[BUSY_NS] / steps >= LONG_STEP_NS)

    # -- receiving ---------------------------------------------------------------------------------------------------

    def _noted(self, event: Event) -> None:
        tell(self._nobody, event)
        self._heard.append(event)  # until `poll` has returned it is not carried out what becomes of a dead worker

    def _settle(self) -> None:
        """Carry out what was heard."""
        while self._heard:
            with Later():
                event = self._heard.popleft()
                if isinstance(event, Done):
                    joint = event.tag  # with a recovery perhaps of two requests: a step, and the reset of a fresh one
                    if self.recovery is None or not (joint.unsent or self._calls.awaits(joint)):
                        self._end(joint)
                elif isinstance(event, Lost):
                    self._lost(event)

    def _lost(self, event: Lost) -> None:
        """A worker has failed, and the recovery knows: what will never be answered has ended."""
        if self.recovery is not None:
            self.recovery.landed(self._nobody, None)
            self._nobody.lost.clear()
        failed = [joint for joint in self._joints if joint.slots[0] in event.worker.slots]
        if self.recovery is None or event.verdict is RestartPolicy.RAISE:
            self._joints.difference_update(failed)
            self._state[[slot for joint in failed for slot in joint.slots]] = STALE
            if failed:
                self._errors.append(event.error)
            return
        for joint in failed:
            if not joint.unsent:
                self._end(joint)

    def _end(self, joint: JointRequest) -> None:
        """Whatever comes of it has come."""
        if joint not in self._joints:  # told twice, see `Calls`
            return
        self._joints.discard(joint)
        recovery, slots = self.recovery, joint.slots
        if recovery is not None:
            nothing, news = recovery.fill(joint, self._rows.batches)
            self._rows.clear(nothing.intersection(slots))
            recovery.landed(joint, np.array([self._ends[0][slot] or self._ends[1][slot] for slot in slots]))
            self._news.update(news)
        worker, raised = self._pool.by_slot[slots[0]], dict[int, Any]()
        self._steps[worker.index] = self._steps.get(worker.index, 0) + len(slots)
        for extras in joint.extras:
            raised.update(extras.raised)
            self._infos.update(extras.infos.rows() if type(extras.infos) is InfoRows else extras.infos)
            self._rows.heard(extras)
            self._told.update(extras.finals)
        for slot in slots:
            if slot in raised:
                self._state[slot] = STALE
                error = failure.task_error(raised[slot], worker.at(slot), self._calls.reset_of([slot]))
                self._errors.append(self._calls.with_repro(error, noted=True))
            else:
                self._state[slot] = READY
                self._ready.append(slot)

    def _hand_out(self, slots: list[int]) -> Five:
        index = np.array(slots, np.int64)
        layout = self._lockstep.observations
        terminated, truncated = (ends[index] for ends in self._ends)
        infos = gathered({row: self._infos[slot] for row, slot in enumerate(slots) if slot in self._infos})
        finals = {}
        for row in np.flatnonzero(terminated | truncated).tolist() if self._finals else ():
            info, untold = self._told.get(slots[row], ({}, None))
            finals[row] = (final_observation(layout, self._finals, slots[row], untold), info)
        news = {row: self._news[slot] for row, slot in enumerate(slots) if slot in self._news} if self._news else {}
        columns = gymnasium_infos(len(index), infos, finals, news, self._own)
        columns["env_id"], columns["valid"] = index, self._valid[index]
        found = self._rows.read(slots), self._rewards[index], terminated, truncated, columns
        with Later():  # they are handed out, or, where Ctrl-C has come before this, ready as they were
            self._state[index] = FREE
            for _ in slots:
                self._ready.popleft()
            for kept in (self._infos, self._told, self._news):
                for slot in slots if kept else ():
                    kept.pop(slot, None)
        return found


class Partly(Enum):
    """A vector's turn while partial batches are open: nothing else may begin."""

    OPEN = "recv"
