"""Lockstep: every slot steps once, then all results are handed out as one batch, in slot order.

`step` has a fast lane: one closure, bound when the pool is ready, that posts one word a worker, steps the caller's
own share, waits on the bell and hands out a lease. It leaves the lane for anything out of the ordinary (a payload, a
death, a deadline, an interrupted earlier step) and goes on by way of `Pool.send` and `Pool.poll`, which do the same
with all the checks. Profile before adding a line to it: eight CartPoles take 30 us a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.errors import BadAction, UsageError, Where, WorkerError, WorkerTimeout
from treadle.pool import failure
from treadle.pool.bell import SLICE
from treadle.pool.failure import Policy
from treadle.pool.line import FLAG_ENDED, WITH_EXTRAS
from treadle.pool.member import Answered, Failed, Member
from treadle.pool.messages import Extras, Op, Request
from treadle.spaces import Mismatch

if TYPE_CHECKING:
    from treadle.pool.pool import Pool

STEP = int(Op.STEP)


class Batch(NamedTuple):
    """One step of every slot, in slot order. Arrays are the caller's to keep.

    Attributes:
        observations: tree of [n, ...] arrays (a leaf without a fixed shape is a list of n values).
        rewards: float64[n].
        terminated, truncated: bool[n].
        infos: slot -> info, only where there is something in it.
        finals: slot -> (final observation, final info) of slots that moved on within this step.
    """

    observations: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: dict[int, Any]
    finals: dict[int, tuple[Any, dict[str, Any]]]


class Lockstep:
    """The lockstep schedule over a pool whose programs are environments.

    Use from one thread. A step that was interrupted (Ctrl-C, a caller's deadline) is finished and dropped by the next
    request.
    """

    def __init__(self, pool: Pool) -> None:
        ground = pool.grounding
        if ground.leases is None or ground.fields is None or ground.observations is None or ground.actions is None:
            raise UsageError("this pool was made with rows=False: it has no lockstep")
        if pool.policy is not Policy.RAISE:
            raise UsageError("lockstep raises on failure; on_failure='restart' and 'drop' are for streams")
        self.pool = pool
        self.observations, self.actions = ground.observations, ground.actions
        self._ground, self._leases, self._fields = ground, ground.leases, ground.fields
        assert ground.arena is not None
        arrays = [None if f is None else ground.arena.array(f) for f in ground.fields.actions]
        self._write_actions = self.actions.batch_writer(arrays, pool.n)
        self._pending: tuple[int, int] | None = None  # (id, block) of a step that the fast lane has posted
        self._stale: set[int] = set()  # slots that moved a step nobody saw: they must be reset
        self._last_loose: dict[int, list[Any]] = {}
        self._block = -1
        self._final_views: dict[int, list[np.ndarray | None]] = {}
        self._was_reset = False
        self._plain = False  # may the fast lane be taken?
        self.step: Callable[[Any], Batch] = self._bind()

    @property
    def valid(self) -> np.ndarray:
        """bool[n] of the last batch: False on rows that are no transition (resets)."""
        assert self._ground.arena is not None
        return self._ground.arena.array(self._fields.blocks[self._block].valid).copy()

    # -- the fast lane -----------------------------------------------------------------------------------------------

    def _bind(self) -> Callable[[Any], Batch]:
        pool, leases, write = self.pool, self._leases, self._write_actions
        members = pool.in_slot_order()
        lanes = [m for m in members if not m.inline]
        own = next((m.worker.server for m in members if m.inline), None)
        take_block, hand_out, batch = leases.take, leases.hand_out, self._batch
        tries = pool.tries
        ring = pool.grounding.pool_bell.acquire
        single = [leaf.path for leaf in self.observations.leaves if leaf.fixed] == [()]
        all_fixed = not self.observations.loose

        def step(actions: Any) -> Batch:
            """Step every slot with its action; returns when all have. See `Batch`.

            Raises BadAction (nothing was sent), TaskRaised / BadObservation / WorkerDied / WorkerTimeout with the
            other slots' results in `.partial`, UsageError.
            """
            if pool._closed or not self._plain or self._pending:
                self._ready_to_step()
            try:
                loose = write(actions)
            except Mismatch as error:
                raise bad_action(error, pool.n) from None
            if loose is not None or not self._plain:
                return self._slow_step(loose)
            block = take_block()
            pool._last_id = id = pool._last_id + 1
            self._pending = id, block
            for member in lanes:
                member.worker.line.post(id, STEP, block)
            extras = None
            ended = 0
            if own is not None:
                extras = own.step(id, block)
                if own.ended:
                    ended = FLAG_ENDED
            told: dict[int, Extras] = {}
            for member in lanes:
                line = member.worker.line
                at, number = line.taken % line.depth * 4, line.taken + 1
                answers = line.answers
                if answers[at] != number:
                    for _ in range(tries):
                        if ring(False) and answers[at] == number:
                            break
                    else:
                        while answers[at] != number:
                            if not ring(True, SLICE) and answers[at] != number:
                                return self._leave_lane(id, block, lanes, extras, told)
                else:
                    ring(False)
                flags = answers[at + 2]
                ended |= flags
                if flags & WITH_EXTRAS:
                    reply = line.take(30.0)
                    if reply is None or reply.id != id:
                        return self._leave_lane(id, block, lanes, extras, told)
                    told[member.index] = reply.extras
                else:
                    line.taken = line.words[0] = number
            self._pending = None
            self._block = block
            if extras is None and not told and all_fixed:
                arrays = hand_out(block)
                finals = self._finals(block, arrays, {}) if ended & FLAG_ENDED else {}
                if single:
                    return Batch(arrays[0], arrays[1], arrays[2], arrays[3], {}, finals)
                return Batch(batch(arrays), arrays[-3], arrays[-2], arrays[-1], {}, finals)
            return self._finish(block, [extras, *told.values()])

        return step

    def _ready_to_step(self) -> None:
        """Whatever keeps the fast lane from being taken: settle it, or say what it is."""
        self.pool.check()
        if self._pending is not None:
            self._drain()
        if not self._was_reset:
            raise UsageError("step() before the first reset()")
        if self._stale:
            raise UsageError(
                f"slots {sorted(self._stale)} moved on in a step that failed or timed out and whose result nobody "
                "saw: reset them first (reset(slots=[...]))"
            )
        self._plain = all(not m.owed and (m.inline or m.worker.line is not None) for m in self.pool.members)

    def _leave_lane(
        self, id: int, block: int, lanes: list[Member], extras: Extras | None, told: dict[int, Extras]
    ) -> Batch:
        """Go on with a step that the fast lane has begun, with all the checks."""
        self._pending = None
        waiting = self._now_owing(lanes, id, block)
        return self._gather(block, waiting, {m.index: id for m in waiting}, [extras, *told.values()])

    def _now_owing(self, lanes: list[Member], id: int, block: int) -> list[Member]:
        """Put what the fast lane has posted and not yet received into the books; returns who owes it."""
        waiting = [m for m in lanes if m.worker.line is not None and m.worker.line.taken < m.worker.line.posted]
        for member in waiting:
            member.owe(Request(id, Op.STEP, None, block), member.slots, self.pool.step_timeout)
        return waiting

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
        self.pool.check()
        if self._pending is not None:
            self._drain()
        chosen = list(range(self.pool.n)) if slots is None else [int(s) for s in slots]
        for given, what in ((seeds, "seeds"), (options, "options")):
            if given is not None and len(given) != len(chosen):
                raise UsageError(f"{len(given)} {what} for {len(chosen)} slots")
        if any(not 0 <= s < self.pool.n for s in chosen) or len(set(chosen)) != len(chosen):
            raise UsageError(f"slots must be distinct and in 0..{self.pool.n - 1}, got {chosen}")
        if slots is not None and not self._was_reset:
            raise UsageError("the first reset() must be of all slots")
        orders = {
            slot: (None if seeds is None else seeds[i], None if options is None else options[i])
            for i, slot in enumerate(chosen)
        }
        block = self._leases.take()
        self._carry_over(block, set(chosen))
        members, ids = self._post(Op.RESET, block, orders)
        self._stale -= set(chosen)
        self._plain = False
        self._was_reset = self._was_reset or slots is None
        return self._gather(block, members, ids, [])

    def call(self, name: str, *args: Any, slots: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        """Run a program's named operation in all slots, or some; one result a slot, in the order asked."""
        self.pool.check()
        if self._pending is not None:
            self._drain()
        chosen = list(range(self.pool.n)) if slots is None else list(slots)
        members, ids = self._post(Op.CALL, -1, dict.fromkeys(chosen, (name, args, kwargs)))
        extras = self._collect(members, ids)
        results = {slot: value for each in extras for slot, value in each.infos.items()}
        self._raise_first(extras, None)
        return [results[slot] for slot in chosen]

    def _slow_step(self, loose: list[Sequence[Any]] | None) -> Batch:
        """A step by way of the books: actions with leaves that go by message, or a worker that still owes something."""
        block = self._leases.take()
        members, ids = self.pool.in_slot_order(), {}
        for member in members:
            lo, hi = member.slots[0], member.slots[-1] + 1
            payload = None if loose is None else (None, [column[lo:hi] for column in loose])
            ids[member.index] = self.pool.send(member, Op.STEP, payload, block)
        return self._gather(block, members, ids, [])

    def _post(self, op: Op, block: int, orders: dict[int, Any]) -> tuple[list[Member], dict[int, int]]:
        """Send every member its part of the orders; returns who got one, and the requests' numbers."""
        members, ids = [], {}
        for member in self.pool.in_slot_order():
            mine = {slot: orders[slot] for slot in member.slots if slot in orders}
            if mine:
                ids[member.index] = self.pool.send(member, op, mine, block, tuple(mine))
                members.append(member)
        return members, ids

    def _collect(self, members: list[Member], ids: dict[int, int]) -> list[Extras]:
        """Wait for one answer of each member. At a failure, what else has arrived goes into its `partial`."""
        waiting = {member.index for member in members}
        extras: list[Extras] = []
        failures: list[Failed] = []
        while waiting:
            events = self.pool.poll(None if not failures else 0.0)
            if failures and not events:
                break
            for event in events:
                mine = event.member.index in waiting
                if isinstance(event, Answered) and mine and event.reply.id == ids[event.member.index]:
                    waiting.discard(event.member.index)
                    if event.reply.extras is not None:
                        extras.append(event.reply.extras)
                elif isinstance(event, Failed):
                    waiting.discard(event.member.index)
                    failures.append(event)
        if failures:
            self._plain = False
            for failed in failures:
                if isinstance(failed.error, WorkerTimeout):
                    moved = [o.slots for o in failed.owed if o.request.op in (Op.STEP, Op.RESET)]
                    self._stale.update(slot for slots in moved for slot in slots)
            error = failures[0].error
            error.partial = extras
            raise error
        return extras

    def _gather(self, block: int, members: list[Member], ids: dict[int, int], extras: list[Extras | None]) -> Batch:
        """The batch in `block` once the members have answered; `extras` is what others have said already."""
        try:
            found = self._collect(members, ids)
        except WorkerError as error:
            self._block = block
            error.partial = self._assemble(block, [*extras, *(error.partial or [])])
            raise
        self._block = block
        return self._finish(block, [*extras, *found])

    def _drain(self) -> None:
        """Finish an interrupted step and drop what it brought; its slots have moved, as they were asked to."""
        assert self._pending is not None
        id, block = self._pending
        self._pending = None
        waiting = self._now_owing([m for m in self.pool.members if not m.inline], id, block)
        self._collect(waiting, {m.index: id for m in waiting})

    # -- batches -----------------------------------------------------------------------------------------------------

    def _batch(self, arrays: list[np.ndarray], loose: dict[int, list[Any]] | None = None) -> Any:
        """The observation tree of handed-out arrays; loose leaves are lists of n values."""
        fixed = iter(arrays)
        values = []
        for index, leaf in enumerate(self.observations.leaves):
            if leaf.fixed:
                values.append(next(fixed))
            else:
                at = self.observations.loose.index(index)
                values.append([self._last_loose[slot][at] for slot in range(self.pool.n)])  # type: ignore[arg-type]
        return self.observations.unflatten(values)

    def _assemble(self, block: int, extras: Sequence[Extras | None]) -> Batch:
        infos: dict[int, Any] = {}
        finals: dict[int, Any] = {}
        for each in extras:
            if each is not None:
                infos.update(each.infos)
                self._last_loose.update(each.loose)
                finals.update(each.finals)
        for slot in range(self.pool.n if self.observations.loose else 0):
            self._last_loose.setdefault(slot, [None] * len(self.observations.loose))
        arrays = self._leases.hand_out(block)
        whole = self._finals(block, arrays, finals)
        observations = self._batch(arrays)
        return Batch(observations, arrays[-3], arrays[-2], arrays[-1], dict(sorted(infos.items())), whole)

    def _finish(self, block: int, extras: Sequence[Extras | None]) -> Batch:
        batch = self._assemble(block, extras)
        self._raise_first([e for e in extras if e is not None], batch)
        return batch

    def _raise_first(self, extras: list[Extras], partial: Any) -> None:
        raised = {slot: why for each in extras for slot, why in each.raised.items()}
        if not raised:
            return
        errors = []
        for slot in sorted(raised):
            member = next(m for m in self.pool.members if slot in m.slots)
            index = None if member.inline else member.index
            errors.append(failure.task_error(raised[slot], slot, index, member.worker.pid))
            if raised[slot].phase in ("step", "reset"):
                self._stale.add(slot)
                self._plain = False
        errors[0].partial = partial
        if len(errors) > 1:
            errors[0].add_note(f"{len(errors) - 1} more slots failed: {sorted(raised)[1:]}")
        raise errors[0]

    def _finals(self, block: int, arrays: list[np.ndarray], told: dict[int, Any]) -> dict[int, Any]:
        """The terminal observations and infos of slots that moved on; `told` has what did not fit their rows."""
        views = self._final_views.get(block)
        if views is None:
            fields = self._fields.blocks[block].finals
            assert self._ground.arena is not None
            views = [None if field is None else self._ground.arena.array(field) for field in fields]
            self._final_views[block] = views
        if not views:
            return {}
        found = {}
        for slot in np.flatnonzero(arrays[-2] | arrays[-1]).tolist():
            info, loose = told.get(slot, (None, None))
            rest = iter(loose or ())
            values = [next(rest) if view is None else view[slot].copy() for view in views]
            found[slot] = (self.observations.unflatten(values), {} if info is None else info)
        return found

    def _carry_over(self, block: int, chosen: set[int]) -> None:
        """Rows that are not reset keep their last observation."""
        if self._block < 0 or len(chosen) == self.pool.n or block == self._block:
            return
        keep = [slot for slot in range(self.pool.n) if slot not in chosen]
        arena = self._ground.arena
        assert arena is not None
        before, after = self._fields.blocks[self._block], self._fields.blocks[block]
        for a, b in zip(before.observations, after.observations):
            if a is not None and b is not None:
                arena.array(b)[keep] = arena.array(a)[keep]
        for field in (after.rewards, after.terminated, after.truncated, after.valid):
            arena.array(field)[keep] = 0


def bad_action(error: Mismatch, n: int) -> BadAction:
    """The public error of a refused batch of actions."""
    where = Where(slot=error.row, phase="step")
    at = "" if error.row is None else f"slot {error.row}: "
    message = f"{at}{error}. Nothing was sent; give {n} actions that fit the action space"
    return BadAction(message, where=where, path=error.path, expected=error.expected, got=error.got)


__all__ = ["Batch", "Lockstep", "bad_action"]
