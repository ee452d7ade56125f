"""Lockstep: every slot steps once, then all results are handed out as one batch, in slot order.

`step` has a fast lane: one closure. It posts one word a worker, steps the caller's own share, waits on the bell and
hands out a buffer. Anything out of the ordinary (a payload, a death, a deadline) goes by `calls.py`, which does the
same with all the checks. Profile before adding a line to it: eight CartPoles take 30 us a step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.errors import TooManyFiles, UsageError, WorkerError
from treadle.interrupts import Later
from treadle.lockstep.batch import Batch, Batches
from treadle.lockstep.history import History
from treadle.lockstep.recover import JointRequest, Recovery, orders_of, step_orders
from treadle.lockstep.slots import Seen, Slot, SlotLife, Way
from treadle.memory.fences import fence
from treadle.pool import failure
from treadle.pool.failure import bad_action
from treadle.spaces import BatchWriter, Mailed, Mismatch
from treadle.wire.bell import SLICE
from treadle.wire.info_rows import joined
from treadle.wire.line import FLAG_ENDED, FLAG_ROWS, WITH_EXTRAS
from treadle.wire.messages import Extras, Op
from treadle.worker.life import RestartPolicy, State
from treadle.worker.worker import Order, Worker

if TYPE_CHECKING:
    from treadle.pool.pool import Pool
    from treadle.repro import Repro

STEP = int(Op.STEP)
Operation = tuple[str, tuple[Any, ...], dict[str, Any]]  # name, args, kwargs of a program's operation besides steps


class Lockstep:
    """The lockstep schedule over a pool whose programs are environments.

    Use from one thread. The next request waits for an interrupted one (Ctrl-C) and drops its result. After an
    interrupted step or reset all its slots must be reset. A worker's death is raised, or, with on_failure="restart" or
    "drop", shown in the batch: see `recover.py`.

    Attributes:
        life: the states of its slots.
        recovery: carries on after a worker's death; None: a death ends the vector.
        history: the record of what slots were made to do; None: it is not recorded, see `record`.
        mailed: the actions that went by message in the latest step outside the fast lane; may be cleared.
        tree: makes the observation tree of a block's arrays.
    """

    def __init__(self, pool: Pool, writer: Callable[[Sequence[np.ndarray | None]], BatchWriter] | None = None) -> None:
        memory = pool.memory.rows
        if memory is None:
            raise UsageError("this pool was made with rows=False: it has no lockstep")
        self.pool, self.calls, self._slots = pool, pool.calls, range(pool.n)
        self.memory, self._ring = memory, memory.standing
        self.observations, self.actions = memory.observations, memory.actions
        # workers write it too, but perhaps only after it is read
        memory.array(memory.fields.episode)[:] = [0 if about.begun else -1 for about in pool.descriptions]
        goes_on = pool.policy is not RestartPolicy.RAISE or self.calls.wear.able
        self._batches = Batches(memory, pool.n, remember=goes_on)
        self.tree = self._batches.tree
        ways = [Way.SAME if d.finals else Way.NEXT if d.begins_next else Way.HOLD for d in pool.descriptions]
        self.life = SlotLife(ways)
        self.recovery = Recovery(pool, memory, self._batches, self.life) if goes_on else None
        arrays = memory.arrays(memory.fields.actions)
        self._write_actions = self.actions.batch_writer(arrays, pool.n) if writer is None else writer(arrays)
        self._pending: tuple[int, int] | None = None  # (id, block) of a step that the fast lane has posted
        self._joint: JointRequest | None = None  # under way: posted and to be waited for, or interrupted
        self._plain = False  # True if the fast lane may be taken
        self.mailed: Mailed | None = None
        self.history: History | None = None
        self.step: Callable[[Any], Batch] = self._bind()

    @property
    def valid(self) -> np.ndarray:
        """bool[n] of the latest batch, `partial` included: False on rows that are not transitions (reset, failed).

        Raises ClosedPool.
        """
        return self._batches.valid

    def latest(self) -> int:
        """Return the block of the latest batch.

        Raises UsageError (nothing was ever reset, or a call is pending), and the error of a dead or late worker.
        """
        self._settle()
        if self._batches.block < 0:
            raise UsageError("there is nothing to go on from: reset first")
        return self._batches.block

    @property
    def episodes(self) -> np.ndarray:
        """int64[n]: episodes begun in each slot."""
        if self.recovery is not None:
            return self.recovery.episodes
        return self.memory.array(self.memory.fields.episode) + 1

    @property
    def missed(self) -> np.ndarray:
        """int64[n]: rows of steps that show a worker's death, or nothing because the slot was dropped."""
        return np.zeros(self.pool.n, np.int64) if self.recovery is None else self.recovery.missed.copy()

    def record(self, describe: Callable[[int], Repro | None], *, full: bool) -> None:
        """Record from now on what slots are made to do, so that a failure can be replayed; see `History`."""
        self.history = self.calls.notes = History(self.memory, describe, full=full)
        self.rebind()

    def rebind(self) -> None:
        """Make `step` anew from its present parts; the next step looks at everything."""
        self.step, self._plain = self._bind(), False

    def placed(self, slots: Collection[int]) -> None:
        """Note that these slots were put into states from elsewhere: their cuts and due resets no longer count."""
        self.life.placed(slots)
        if self.recovery is not None:
            self.recovery.placed(slots)

    # -- the fast lane -----------------------------------------------------------------------------------------------

    def _bind(self) -> Callable[[Any], Batch]:
        pool, group, calls, write = self.pool, self.pool.group, self.calls, self._write_actions
        workers = pool.group.in_slot_order()
        lanes: list[Any] = [m for m in workers if not m.inline]  # each has a line
        own = next((m.server for m in workers if m.inline), None)
        if own is not None:
            own.alone = not lanes
        take_block, batches = self._ring.take, self._batches
        hand_out = batches.hand_out if self.history is None else self.history.keeping(batches.hand_out)
        finals_of = batches.finals if self.recovery is None else self.recovery.finals
        ring = pool.memory.pool_bell.acquire
        single = [leaf.path for leaf in self.observations.leaves if leaf.fixed] == [()]
        all_fixed = not self.observations.loose
        fenced = pool.memory.fenced

        def step(actions: Any) -> Batch:
            """Step every slot with its action; returns when all have. See `Batch`.

            Raises UsageError, BadAction (nothing was sent), or a WorkerError with the others' results in `.partial`.
            """
            if group.closed or not self._plain or self._pending:
                self._ready_to_step()
            try:
                mailed = write(actions)
            except Mismatch as error:
                raise bad_action(error, pool.n, actions) from None
            if mailed is not None or not self._plain:
                return self._land(self._step(mailed))
            block = take_block()
            calls.last_id = id = calls.last_id + 1
            self._pending = id, block
            for worker in lanes:
                worker.line.post_bare(id, STEP, block)
            extras = None
            ended = 0
            if own is not None:
                extras = own.step(id, block)
                if own.ended:
                    ended = FLAG_ENDED
            told: dict[int, Extras] = {}
            for worker in lanes:
                line = worker.line
                at, number = line.taken % line.depth * 4, line.taken + 1
                answers = line.answers
                if answers[at] == number:
                    ring(False)
                elif not line.await_answer(answers, at, number, SLICE):
                    return self._leave_lane(id, block, lanes, extras, told)
                if fenced:
                    fence()
                flags = answers[at + 2]
                ended |= flags
                if flags & FLAG_ROWS:
                    told[worker.index] = line.take_rows()
                elif flags & WITH_EXTRAS:
                    reply = line.take(30.0)
                    if reply is None or reply.id != id:
                        return self._leave_lane(id, block, lanes, extras, told)
                    told[worker.index] = reply.extras
                else:
                    line.taken = line.words[0] = number
            self._pending = None
            batches.block = block
            said = [*told.values()] if extras is None else [extras, *told.values()]
            if not all_fixed or (said and any(each.raised for each in said)):
                return self._finish(block, said, ended=bool(ended & FLAG_ENDED))
            infos: Mapping[int, Any] = joined([each.infos for each in said]) if told else {}
            if not told and extras is not None:
                infos = extras.infos
            arrays = hand_out(block)
            finals: dict[int, Any] = {}
            if ended & FLAG_ENDED:
                finals = finals_of(block, arrays, {slot: final for each in said for slot, final in each.finals.items()})
            if single:
                return Batch(arrays[0], arrays[1], arrays[2], arrays[3], infos, finals)
            return Batch(batches.tree(arrays), arrays[-3], arrays[-2], arrays[-1], infos, finals)

        return self._replacing(step) if calls.wear.able else step

    def _replacing(self, step: Callable[[Any], Batch]) -> Callable[[Any], Batch]:
        """Return a step that first replaces workers that are worn out and between two episodes."""
        episode = self.memory.array(self.memory.fields.episode)
        self.calls.wear.played = lambda worker: int(episode[list(worker.slots)].sum()) + len(worker.slots)

        def replacing(actions: Any) -> Batch:
            self._replace()
            return step(actions)

        return replacing

    def _replace(self, slots: Set[int] | None = None) -> None:
        """Replace worn-out workers whose slots are all between two episodes, or in `slots`, which are to be reset."""
        recovery, calls = self.recovery, self.calls
        if recovery is None or not calls.wear.able:
            return
        for worker in self.pool.workers:
            due = recovery.between(worker.slots) if slots is None else slots >= set(worker.slots)
            if due and not worker.in_caller and worker.state is State.IDLE and (why := calls.wear.worn(worker)):
                calls.retire(worker, why)
                recovery.renewed(worker)
                self._plain = False

    def _ready_to_step(self) -> None:
        """Settle what keeps the fast lane from being taken, or raise UsageError for it."""
        self._settle()
        stale = self.life.of(Slot.STALE)
        if stale:
            raise UsageError(
                f"slots {stale} moved on in a step that failed, timed out or was interrupted, and its result was not "
                f"seen: reset them first ({self.calls.reset_of(stale)})"
            )
        if waiting := self.life.of(Slot.WAITS):
            again = self.calls.reset_of(waiting)
            raise UsageError(f"slots {waiting} lost their worker in an earlier step: reset them first ({again})")
        workers = self.pool.workers
        # in the caller's process a time limit is measured and not enforced, which only the book of calls does
        measured = self.calls.step_timeout is not None and any(m.in_caller for m in workers)
        ready = all(not m.owed and (m.inline or m.line is not None) for m in workers)
        self._plain = ready and not measured and self.life.plain

    def _leave_lane(
        self, id: int, block: int, lanes: list[Worker], extras: Extras | None, told: dict[int, Extras]
    ) -> Batch:
        """Go on with a step that the fast lane has begun, with all the checks."""
        with self.pool.group.lock:  # against a `close` from another thread
            self.calls.check()
            self._plain = False
            joint = self._now_owing(lanes, id, block)
            joint.extras = [each for each in (extras, *told.values()) if each is not None]
            self._pending, self._joint = None, joint
        return self._land(joint)

    def _now_owing(self, lanes: list[Worker], id: int, block: int) -> JointRequest:
        """Note as a joint request what the fast lane has posted and not yet received."""
        joint, self.mailed = self._new_joint(Op.STEP, block, range(self.pool.n), before=id - 1), None
        for worker in lanes:
            line = worker.line
            if line is not None and line.taken < line.posted:
                self.calls.adopt(worker, id, Op.STEP, block, joint)
        return joint

    def _new_joint(self, op: Op, block: int, slots: Iterable[int], before: int = -1) -> JointRequest:
        """Return a new joint request. `before`: the number of the latest request before it; -1: `calls.last_id`."""
        self.life.catch_up(self.calls.last_id if before < 0 else before)
        return JointRequest(op, block, tuple(slots), recovery=self.recovery)

    # -- the same with all the checks --------------------------------------------------------------------------------

    def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
        slots: Sequence[int] | None = None,
    ) -> Batch:
        """Reset all slots, or some; the batch's rewards are 0 and `valid` is False.

        With `slots`, `seeds` and `options` have one entry for each of them, and the other rows keep their last
        observation.
        """
        return self._land(self._reset(seeds, options, slots))

    def call(self, name: str, *args: Any, slots: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        """Run a program's named operation in all slots, or some; one result a slot, in the order asked."""
        return self._land(self._call(slots, (name, args, kwargs)))

    def call_each(self, orders: dict[int, Operation]) -> list[Any]:
        """Run an operation of its own in each of these slots; one result a slot, in the order given.

        Raises as `call`; the error's `partial` has the others' results by slot.
        """
        return self._land(self._call(list(orders), orders))

    def post_step(self, actions: Any) -> None:
        """Begin a step; `wait` returns its batch. Raises BadAction, or UsageError when a request is pending."""
        self._replace()
        self._ready_to_step()
        try:
            mailed = self._write_actions(actions)
        except Mismatch as error:
            raise bad_action(error, self.pool.n, actions) from None
        self._step(mailed, posted=True)

    def post_reset(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
        slots: Sequence[int] | None = None,
    ) -> None:
        """Begin a reset; `wait` returns its batch."""
        self._reset(seeds, options, slots, posted=True)

    def post_call(self, name: str, *args: Any, slots: Sequence[int] | None = None, **kwargs: Any) -> None:
        """Begin a call; `wait` returns its results."""
        self._call(slots, (name, args, kwargs), posted=True)

    def wait(self, timeout: float | None = None) -> Any:
        """Return the result of the posted request, as the method that does both would.

        Raises TimeoutError after `timeout` seconds (None: never); the request stays pending, nothing is lost, and a
        later `wait` returns its result. Raises UsageError when no request is pending.
        """
        if self._joint is None:
            raise UsageError("wait() without a posted request")
        return self._land(self._joint, timeout)

    def _reset(self, seeds: Any, options: Any, slots: Sequence[int] | None, *, posted: bool = False) -> JointRequest:
        self._settle()
        chosen = list(self._slots) if slots is None else [int(s) for s in slots]
        sent = self._reachable(chosen)
        for given, what in ((seeds, "seeds"), (options, "options")):
            if given is not None and len(given) != len(chosen):
                raise UsageError(f"{len(given)} {what} for {len(chosen)} slots")
        orders = {
            slot: (None if seeds is None else seeds[i], None if options is None else options[i])
            for i, slot in enumerate(chosen)
            if slot in sent
        }
        self._replace(sent)
        if self.calls.changing:
            self._settle()
        block = self._ring.take()
        self._batches.carry_over(block, set(orders))
        joint = self._new_joint(Op.RESET, block, chosen)
        if self.recovery is not None:
            self.recovery.note_asked(orders)
            orders = self.recovery.orders(joint, orders)
        self._launch(joint, orders_of(self.pool.group.in_slot_order(), orders), posted)
        return joint

    def _call(
        self, slots: Sequence[int] | None, what: Operation | dict[int, Operation], *, posted: bool = False
    ) -> JointRequest:
        self._settle()
        chosen = list(self._slots) if slots is None else [int(s) for s in slots]
        joint = self._new_joint(Op.CALL, -1, chosen)
        asked = {slot: what[slot] if isinstance(what, dict) else what for slot in self._reachable(chosen)}
        self._launch(joint, orders_of(self.pool.group.in_slot_order(), asked), posted)
        return joint

    def _reachable(self, chosen: list[int]) -> set[int]:
        """Return the slots that can be asked. Raises UsageError for numbers that make no sense or of dropped slots."""
        if any(not 0 <= s < self.pool.n for s in chosen) or len(set(chosen)) != len(chosen):
            raise UsageError(f"slots must be distinct and in 0..{self.pool.n - 1}, got {chosen}")
        return set(chosen if self.recovery is None else self.recovery.reachable(chosen))

    def _step(self, mailed: Mailed | None, *, posted: bool = False) -> JointRequest:
        """Send a step by the book of calls: actions go by message, or a worker still owes something."""
        self.mailed = mailed
        joint = self._new_joint(Op.STEP, self._ring.take(), self._slots)
        orders = step_orders(self.pool.group.in_slot_order(), mailed)
        if self.recovery is not None:
            orders = self.recovery.step_orders(joint, orders)
        self._launch(joint, orders, posted)
        if self.recovery is not None:
            self.recovery.begin_due(joint)
        return joint

    def _launch(self, joint: JointRequest, orders: Sequence[Order], posted: bool = False) -> None:
        """Send a joint request's requests, all or none."""
        with Later():  # else Ctrl-C would leave some of them a step behind the others
            self._plain, self._joint = False, joint
            try:
                self.calls.submit_all(joint.op, orders, joint, joint.block)
            except (UsageError, TooManyFiles):
                self._joint = None
                raise
            if joint.op is Op.RESET:
                asked = [slot for _, _, slots in orders for slot in slots]
                self.life.see(Seen.ASKED, asked)
                if self.recovery is None:
                    self.life.see(Seen.BEGUN, asked)
            joint.posted = posted

    def _land(self, joint: JointRequest, timeout: float | None = None) -> Any:
        """Wait for a joint request and make its result. An interrupted one stays open, to be settled or waited for."""
        self._joint = joint
        try:
            joint.collect(self.calls, timeout)
        except WorkerError as error:
            self._joint, self._plain = None, False
            self.life.unseen(joint.stale())
            if joint.op is Op.CALL:
                error.partial = joint.results()
            else:  # a late worker may still write to the block: the caller must get copies
                nothing = self.life.nothing.union(self.life.gone)
                error.partial = self._batches.assemble(joint.block, joint.extras, nothing, copy=True)
                self._note(joint.block, joint)
            raise
        self._joint = None
        self.life.unseen(joint.moved_unseen())
        if joint.op is not Op.CALL:
            return self._finish(joint.block, joint.extras, joint)
        results = joint.results()
        if self.recovery is not None:
            self.recovery.landed(joint, None)
            joint.raise_told()
            results.update(dict.fromkeys(self.recovery.unasked(joint)))
        self._raise_first(joint.extras, results, moved=False)
        return [results[slot] for slot in joint.slots]

    def _settle(self) -> None:
        """Wait for an interrupted request before a new one, and drop its results.

        Raises UsageError when the caller has yet to wait for the request that it posted.
        """
        self.pool.check()
        if self._pending is not None:  # a step of the fast lane, as far as it was posted
            self._plain = False  # before `_pending` becomes None, which keeps the next step from the fast lane
            lanes = [worker for worker in self.pool.workers if not worker.inline]
            self._joint, self._pending = self._now_owing(lanes, *self._pending), None
        if self._joint is not None:
            if self._joint.posted:
                raise UsageError(f"a posted {self._joint.op.name.lower()} is pending: wait() for it first")
            self._finish_joint()
        if self.recovery is not None and self.calls.changing:
            self._joint = self._new_joint(Op.CALL, -1, ())  # it asks nothing, and waits for fresh workers
            self._finish_joint()

    def _finish_joint(self) -> None:
        """Wait for an interrupted joint request and drop its results: slots that have moved must be reset."""
        assert self._joint is not None
        joint = self._joint
        self._plain = False
        self.calls.ring(joint)
        try:
            joint.collect(self.calls)
        except WorkerError:
            self._joint = None
            self.life.unseen(joint.stale().union(joint.slots if joint.op is not Op.CALL else ()))
            raise
        if self.recovery is not None:
            self.recovery.dropped(joint)
        self.life.unseen(joint.moved_unseen().union(joint.slots if joint.op is not Op.CALL else ()))
        if joint.op is not Op.CALL:
            self._note(joint.block, joint)
        self._joint = None

    # -- results -----------------------------------------------------------------------------------------------------

    def _finish(self, block: int, extras: Sequence[Extras | None], joint: Any = None, ended: bool = True) -> Batch:
        """Make the batch of a joint request, or (None) of the fast lane, which knows whether an episode has `ended`."""
        recovery = self.recovery
        self._note(block, joint)
        if recovery is not None and joint is not None:
            nothing, news = recovery.fill(joint, self._batches)
            batch = self._batches.assemble(block, extras, nothing, news=news)
            recovery.landed(joint, batch.terminated | batch.truncated)
        else:
            batch = self._batches.assemble(block, extras, ended=ended)
            if recovery is not None and ended:
                recovery.note_ends(batch.terminated | batch.truncated, self._slots)
        self._raise_first([e for e in extras if e is not None], batch)
        if self.history is not None and joint is not None and joint.op is Op.RESET and not batch.news:
            self.history.begun(block)
        return batch

    def _note(self, block: int, joint: JointRequest | None) -> None:
        """Record a step that went by the book of calls, or that failed."""
        if self.history is not None and (joint is None or joint.op is Op.STEP):
            self.history.note(block, None if joint is None else self.mailed)

    def _raise_first(self, extras: list[Extras], partial: Any, moved: bool = True) -> None:
        raised = {slot: why for each in extras for slot, why in each.raised.items()}
        if not raised:
            return
        if moved:
            self.life.unseen(raised)
            self._plain = False
        # the frame that raises must not name the error: that would be a circle
        again = self.calls.reset_of(raised)
        raise self.calls.with_repro(failure.first_of(raised, self.pool.where, partial, again), noted=True)
