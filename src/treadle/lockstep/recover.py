"""Joint requests, each one request to several workers with its answers so far, and recovery from a worker's death.

Recovery is how lockstep goes on after a worker's death (on_failure "restart", "drop").

A joint request is the tag of its requests (`calls.py`). In partial batches several may be under way at once, about
different slots, and a worker may owe answers to more than one. The one that is waited for hears all events, and passes
the others theirs.

A dead worker takes its environments along, so the episodes of its slots are cut. One row shows each cut: it is
truncated, of reward 0, not valid, with ABORTED in the batch's news. The next row is that after any truncated row:

- where a slot moves on within the step, the row shows the first observation of a fresh environment, with RESTARTED in
  the news, too. The slot's last observation is the terminal one;
- where the next step begins the next episode, the row keeps the last observation, and the next one is the reset row;
- where a slot holds, the row keeps the last observation, and the slot waits for a reset.

With "drop" no environment follows: the news are DROPPED, and all later rows are zeros. An episode that was about to
begin is not cut but begun again, by the fresh worker. So is every reset that was requested.

`calls.py` decides whether a worker is replaced or dropped; this file decides what that means for rows. A cut in a step
that was interrupted and dropped is shown by the next step. Fresh environments are seeded by (root, slot, incarnation),
where a reset would have given them no seed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.checks import check_seconds
from treadle.errors import UsageError, WorkerError
from treadle.lockstep.batch import Batches, News
from treadle.lockstep.slots import Seen, Slot, SlotLife
from treadle.memory.ring import RowMemory
from treadle.pool import failure
from treadle.pool.calls import Calls
from treadle.pool.events import Done, Event, InFlight, Lost
from treadle.pool.layout import share_of
from treadle.seeding import restart_seed
from treadle.spaces import Mailed
from treadle.wire.messages import Extras, Op
from treadle.worker.life import ALIVE, RestartPolicy, State
from treadle.worker.worker import Order, Worker

if TYPE_CHECKING:
    from treadle.pool.pool import Pool

log = logging.getLogger("treadle")

LAST_CALL = 1.0  # seconds that the other workers get to answer once one has failed


def orders_of(workers: Sequence[Worker], asked: dict[int, Any]) -> list[Order]:
    """Return the order for each worker when slots are asked (slot -> order)."""
    mine = [(worker, {slot: asked[slot] for slot in worker.slots if slot in asked}) for worker in workers]
    return [(worker, orders, tuple(orders)) for worker, orders in mine if orders]


def step_orders(workers: Sequence[Worker], mailed: Mailed | None) -> list[Order]:
    """Return each worker's order for a step of all slots. `mailed`: n values of each action leaf sent by message."""
    orders: list[Order] = []
    for worker in workers:
        lo, hi = worker.slots[0], worker.slots[-1] + 1
        orders.append((worker, None if mailed is None else (None, share_of(mailed, lo, hi)), worker.slots))
    return orders


def tell(waiting: JointRequest, event: Event) -> None:
    """Pass an event of a pool that steps to the joint requests that are its tags.

    `waiting`: one of them, which gets every death.
    """
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
    """One request to several workers, with its answers so far.

    Attributes:
        op, block, slots: the operation, the block of its rows (-1: none), its slots.
        posted: True if the caller will wait for it. False: if it is still open, it was interrupted.
        extras: what answers have said beyond their rows.
        others: returns the joint requests that are under way beside it.
        recovery: carries on after a worker's death; None: a death is the end. The rest is its notes on this one.
        begins: slot -> (seed, options) of the episodes that begin in it, made again by a fresh worker when one dies.
        unsent: those of `begins` that a fresh worker has yet to be asked for.
        cut: slots whose episode was cut, as this joint request's batch shows.
        lost: slots whose worker died without owing anything of this joint request -> the event that their states get
            when it ends.
        void: slots that were dropped in it and had no episode to be cut.
        told: errors of workers that died in a call.
        before: slot -> episodes it had begun when its next one was asked for.
    """

    op: Op
    block: int
    slots: tuple[int, ...]
    posted: bool = False
    others: Callable[[], Iterable[JointRequest]] = tuple
    recovery: Recovery | None = None
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
        """End it with this failure, to which the requests `lost` are lost.

        The other workers get a last call, from when it is waited for.
        """
        self._failures.append(error)
        for call in lost:
            self._spoiled.update(call.slots if call.op in (Op.STEP, Op.RESET) else ())

    def collect(self, calls: Calls, timeout: float | None = None) -> None:
        """Wait for one answer of each worker, and (see `recovery`) for fresh workers in the place of dead ones.

        Raises TimeoutError after `timeout` seconds, with everything as it was: call again to go on. When a worker fails
        for good the others get a last call. Then the failure is raised, and the missing answers are given up.
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
        """Abandon missing answers, and all others that their workers owe."""
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
        """Return the slots that may have moved in a request whose result is lost."""
        gone = [worker.slots for worker in self._given_up]
        return self._spoiled.union(self.cut, self.unsent, self.void, self.moved_unseen(), *gone)

    def moved_unseen(self) -> set[int]:
        """Return the slots that must be reset when it is over: they have raised, or an interrupt has cut them short."""
        if self.op is Op.CALL:
            return set(self._cut_short)
        return {slot for each in self.extras for slot in each.raised}

    def results(self) -> dict[int, Any]:
        """Return slot -> result of a call, as far as results have come."""
        return {slot: value for each in self.extras for slot, value in each.infos.items()}


class Recovery:
    """Carries lockstep on after a worker's death.

    Args:
        life: the states of the slots, which show what is still to come after a death.

    Attributes:
        missed: int64[n], rows of steps that were neither transitions nor resets.
        fresh_options: returns the options for the first episode of a program in a dead one's place. Called with slot
            and the options that a reset asked for, or None. None: the options are as asked for.
    """

    def __init__(self, pool: Pool, memory: RowMemory, batches: Batches, life: SlotLife) -> None:
        self._life, self._pool, self._calls, self._batches = life, pool, pool.calls, batches
        self.missed = np.zeros(pool.n, np.int64)
        self.fresh_options: Callable[[int, Any], Any] | None = None
        self._root: int | None = None
        self._lasting: dict[int, Any] = {}  # options that serve every episode until the next reset from outside
        self._fresh: set[int] = set()  # slots whose environment is new and was never reset
        self._ended = np.zeros(pool.n, np.int64)  # the number of the episode that has ended; right where a slot is OVER
        self._episode = memory.array(memory.fields.episode)
        self._earlier = np.zeros(pool.n, np.int64)  # episodes begun by earlier workers

    @property
    def episodes(self) -> np.ndarray:
        """int64[n]: episodes begun in each slot, by all its workers."""
        return self._earlier + self._episode + 1

    # -- before a request --------------------------------------------------------------------------------------------

    def reachable(self, chosen: list[int]) -> list[int]:
        """Return the chosen slots without dropped ones. Raises UsageError for those unless all slots were chosen."""
        dropped = list(filter(self._is_gone, chosen))
        if dropped and len(chosen) < self._pool.n:
            raise UsageError(f"slots {dropped} were dropped when their worker died: they take no more requests")
        return [slot for slot in chosen if slot not in dropped]

    def placed(self, slots: Collection[int]) -> None:
        """Note that these slots were put into states from elsewhere: fresh programs have begun."""
        self._fresh -= set(slots)

    def renewed(self, worker: Worker) -> None:
        """Note that a worker is replaced whose slots are between episodes or about to be reset: no episode is cut."""
        for slot in worker.slots:
            self._earlier[slot], self._episode[slot] = int(self.episodes[slot]), -1
        self._life.see(Seen.DIED, self._life.of(Slot.OVER, among=worker.slots))
        self._fresh.update(worker.slots)

    def between(self, slots: Sequence[int]) -> bool:
        """Return True if the episode of each of these slots has ended and the next one has not begun."""
        return self._life.at == self._calls.last_id and len(self._life.of(Slot.OVER, among=slots)) == len(slots)

    def note_asked(self, asked: dict[int, tuple[int | None, Any]]) -> None:
        """Note what a reset asks for: seeds and options of episodes that begin in fresh environments follow from it."""
        seeded = [(slot, int(seed)) for slot, (seed, _) in asked.items() if isinstance(seed, int | np.integer)]
        if seeded and seeded[0][1] >= 0:
            slot, seed = seeded[0]
            self._root = seed - slot if seed >= slot else seed
        for slot, (_, options) in asked.items():
            self._lasting[slot] = options if getattr(options, "lasting", False) else None

    def orders(
        self, joint: JointRequest, asked: dict[int, tuple[int | None, Any]]
    ) -> dict[int, tuple[int | None, Any]]:
        """Return the orders for resets that were asked for (see `note_asked`)."""
        joint.void = set(self._life.of(Slot.LAST, Slot.VOID, among=joint.slots))
        joint.begins = dict(asked)
        joint.before = {slot: int(self.episodes[slot]) for slot in asked}
        return {slot: self._order(slot, order) for slot, order in asked.items()}

    def steppable(self, joint: JointRequest, slots: Sequence[int]) -> list[int]:
        """Return the slots of a step that can simply be stepped; note in the joint request what the others need."""
        if self._life.plain:
            return list(slots)
        of = self._life.of
        joint.cut.update(of(Slot.CUT, Slot.LAST, among=slots))
        joint.void.update(of(Slot.VOID, among=slots))
        for slot in of(Slot.CUT, Slot.NEW, among=slots):
            if self._life.begins(slot):
                self._begin(joint, slot)
        return of(Slot.RUNNING, Slot.OVER, among=slots)

    def step_orders(self, joint: JointRequest, orders: list[Order]) -> list[Order]:
        """Return the orders of a step for the slots that can simply be stepped, out of these orders."""
        if self._life.plain:
            return orders
        left: list[Order] = []
        for worker, payload, slots in orders:
            stepped = self.steppable(joint, slots)
            if stepped and len(stepped) < len(slots):
                payload = stepped, (payload or (None, None))[1]
            if stepped:
                left.append((worker, payload, tuple(stepped)))
        return left

    # -- while it is on its way --------------------------------------------------------------------------------------

    def begin_due(self, joint: JointRequest) -> None:
        """Ask workers that have taken dead ones' places for the episodes that are to begin with them."""
        for each in (joint, *joint.others()):
            for worker in self._pool.workers if each.unsent else ():
                orders = {s: self._order(s, each.begins[s]) for s in worker.slots if s in each.unsent}
                if orders and worker.state in ALIVE:
                    self._calls.submit(worker, Op.RESET, orders, tuple(orders), each, each.block)
                    each.unsent -= set(orders)

    def lost(self, joint: JointRequest, event: Lost) -> None:
        """Carry out the death of a worker, which is replaced or dropped, for the joint requests under way."""
        worker, error = event.worker, event.error
        joints = (joint, *joint.others())
        pending = {each: {s for call in event.calls if call.tag is each for s in call.slots} for each in joints}
        dropped = event.verdict is RestartPolicy.DROP
        for slot in worker.slots:
            its = next((each for each in joints if slot in each.slots), joint)
            self._lost_its_worker(its, slot, slot in pending[its], dropped)
        for each in joints:
            if each.op is Op.CALL and pending[each]:
                each.told.append(error)
        if not dropped:
            self._fresh.update(worker.slots)
        self._tell(worker, error, event)

    def broken(self, error: WorkerError) -> None:
        """End the vector: a dead worker is not replaced."""
        self._calls.broken = self._calls.broken or error

    def _lost_its_worker(self, joint: JointRequest, slot: int, pending: bool, dropped: bool) -> None:
        """Move a slot whose worker died, and count it in its joint request. `pending`: it had yet to be answered."""
        self._count(joint, slot, pending)
        life = self._life
        if joint.op is Op.CALL or (not pending and slot not in joint.unsent):
            joint.lost[slot] = Seen.DROPPED if dropped else Seen.DIED
            return
        if life.state(slot) is Slot.OVER and slot not in joint.begins and not life.begins_next(slot):
            life.see(Seen.BEGUN, [slot])  # it was stepped on beyond its end
        life.see(Seen.DROPPED if dropped else Seen.DIED, [slot])
        if dropped:
            joint.begins.pop(slot, None)
            joint.unsent.discard(slot)
        match life.state(slot):
            case Slot.CUT | Slot.LAST:
                joint.cut.add(slot)
                if not dropped and life.begins(slot):
                    self._begin(joint, slot)
            case Slot.VOID:
                joint.void.add(slot)
            case _ if slot in joint.begins:
                joint.unsent.add(slot)
            case _:  # the step was to begin its next episode
                self._begin(joint, slot)

    def _tell(self, worker: Worker, error: WorkerError, event: Lost) -> None:
        slots = f"slots {worker.slots[0]} to {worker.slots[-1]}" if len(worker.slots) > 1 else f"slot {worker.slots[0]}"
        if event.verdict is RestartPolicy.DROP:
            then = f"{slots} of worker {worker.index} are dropped"
        else:
            when = f", in {event.delay:g} s" if event.delay else ""
            then = f"worker {worker.index} is started anew for {slots} (restart {len(worker.restarts) + 1}{when})"
        log.warning("%s: %s; %s", error.where, failure.reason(error), then)

    def _begin(self, joint: JointRequest, slot: int) -> None:
        """Note that an episode must begin in a fresh environment; `begin_due` asks for it."""
        joint.begins[slot] = None, self._lasting.get(slot)
        joint.unsent.add(slot)
        joint.before.setdefault(slot, int(self.episodes[slot]))

    def _order(self, slot: int, asked: tuple[int | None, Any]) -> tuple[int | None, Any]:
        """Return the seed and options of a slot's reset. A new environment's default seed is its incarnation's."""
        seed, options = asked
        worker = self._pool.by_slot[slot]
        if seed is None and slot in self._fresh and self._root is not None:
            seed = restart_seed(self._root, slot, len(worker.restarts) + worker.retired)
        if slot in self._fresh and self.fresh_options is not None:
            options = self.fresh_options(slot, options)
        return seed, options

    def _is_gone(self, slot: int) -> bool:
        return self._pool.by_slot[slot].state is State.GONE

    def _count(self, joint: JointRequest, slot: int, pending: bool) -> None:
        """Keep the count of episodes: its successor's begins with 0. One that is begun again counts once."""
        if slot in joint.before and (pending or slot in joint.unsent):
            count = joint.before[slot]
        elif pending and self._life.state(slot) is Slot.OVER:
            count = int(self._earlier[slot] + self._ended[slot]) + 1
        else:
            count = int(self.episodes[slot])
        self._earlier[slot], self._episode[slot] = count, -1

    def unasked(self, joint: JointRequest) -> list[int]:
        """Return the slots of a joint request that could not be asked, because they were dropped."""
        return [slot for slot in joint.slots if self._is_gone(slot)]

    # -- when it has come --------------------------------------------------------------------------------------------

    def fill(self, joint: JointRequest, batches: Batches) -> tuple[set[int], dict[int, News]]:
        """Write the rows that no worker has written. Returns the slots whose rows are left empty, and the news."""
        raised = {slot for each in joint.extras for slot in each.raised}
        finals: dict[int, Any] = {}
        news: dict[int, News] = {}
        for slot in joint.cut - raised:
            news[slot] = News.ABORTED | News.DROPPED if self._is_gone(slot) else News.ABORTED
            if self._life.moves_on(slot):
                finals[slot] = {}, batches.keep_final(joint.block, slot)
            if slot not in joint.begins:
                batches.keep_row(joint.block, slot)
            batches.mark_cut(joint.block, slot)
        for slot in joint.begins if joint.op is Op.STEP else ():
            if slot not in raised:
                news[slot] = news[slot] | News.RESTARTED if slot in news else News.RESTARTED
        for slot in joint.void:
            news[slot] = News.DROPPED if joint.op is Op.STEP else News.ABORTED | News.DROPPED
        if finals:
            joint.extras.append(Extras({}, {}, finals, {}))
        return joint.void | self._life.gone, news

    def landed(self, joint: JointRequest, ended: np.ndarray | None) -> None:
        """End the joint request: the caller gets its rows.

        `ended`: bool of each of its slots' rows; None after a call.
        """
        life, raised = self._life, {slot for each in joint.extras for slot in each.raised}
        if joint.op is Op.STEP and ended is not None:
            self.missed[list(joint.cut.union(joint.void, life.of(Slot.GONE, among=joint.slots)))] += 1
        life.see(Seen.SHOWN, joint.cut | joint.void)
        self._fresh -= set(joint.begins) - raised
        life.see(Seen.BEGUN, life.of(Slot.NEW, among=joint.begins))
        if joint.op is Op.STEP and ended is not None:
            self.note_ends(ended, joint.slots)
        self._lose(joint)

    def dropped(self, joint: JointRequest) -> None:
        """End an interrupted joint request, whose rows are dropped."""
        self._fresh.difference_update(joint.begins)
        self._lose(joint)

    def _lose(self, joint: JointRequest) -> None:
        """Move the slots whose workers died after they had answered, or without having been asked."""
        for slot, how in joint.lost.items():
            self._life.see(how, [slot])
        self._life.at = self._calls.last_id

    def note_ends(self, ended: np.ndarray, of: Sequence[int]) -> None:
        """Note the latest step's ends, a bool for each of its slots. Those that stayed are between two episodes."""
        life = self._life
        life.see(Seen.BEGUN, life.of(Slot.OVER, among=None if len(of) == self._pool.n else of))
        over = life.of(Slot.RUNNING, among=[of[row] for row in np.flatnonzero(ended).tolist()])
        if over:
            life.see(Seen.ENDED, over)
            self._ended[over] = self._episode[over]
        life.at = self._calls.last_id

    def finals(self, block: int, arrays: list[np.ndarray], told: dict[int, Any]) -> dict[int, Any]:
        """Note ends, and return `Batches.finals`. The fast lane calls it only for steps that end episodes."""
        self.note_ends(arrays[-2] | arrays[-1], range(self._pool.n))
        return self._batches.finals(block, arrays, told)
