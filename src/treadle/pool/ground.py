"""The ground that workers stand on: the pool's memory, planned once the workers have said what they need.

Segment 0 holds the control plane (bells, lines), segment 1 the rows. Laying the ground happens after every worker's
hello, so the layouts come from the real slots and no environment is ever built just to be asked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.errors import LayoutsDiffer, Where
from treadle.pool import bell, fences
from treadle.pool.arena import Arena
from treadle.pool.bell import CELL, Bell, PipeBell
from treadle.pool.buffers import BatchBuffers, fields_of
from treadle.pool.file_buffers import Borrower
from treadle.pool.line import ITEM, Line, LineFields
from treadle.pool.messages import Op, Request
from treadle.pool.rows import Ground, RolloutFields, RowFields, Rows
from treadle.pool.serve import portable
from treadle.spaces import Layout, Mailed


class Grounding:
    def __init__(self, n: int, *, rows: bool, copy: bool, blocks: int, shared: bool) -> None:
        self._n, self._want_rows, self._copy, self._blocks, self._shared = n, rows, copy, blocks, shared
        self.arena: Arena | None = None
        self.observations: Layout | None = None
        self.actions: Layout | None = None
        self.leases: BatchBuffers | None = None
        self.fields: RowFields | None = None
        self.done: np.ndarray | None = None
        self.pool_bell: Bell = bell.local_bell()
        self._arena_bells = shared and bell.arena_bells_work()
        self._line_fields: dict[int, LineFields] = {}
        self._pipes: list[PipeBell] = []
        self._bells: dict[int, Bell] = {}
        self._withheld: dict[int, int] = {}
        self._finals = False
        self.fenced = shared and fences.FENCED  # threads are kept in order by the interpreter's lock

    def lay(self, descriptions: list[Any], members: list[Any]) -> None:
        """Plan and allocate everything. Raises ArenaError, or UsageError when slots differ in their layouts."""
        arena = self.arena = Arena(shared=self._shared)
        plan = arena.plan()
        self._pool_bell_field = plan.add("u1", (CELL,))
        for member in members:
            self._line_fields[member.index] = LineFields.plan(plan, len(member.slots), self.fenced)
        arena.grow(plan)
        if self._shared:
            if self._arena_bells:
                bell.init_cell(arena, self._pool_bell_field)
                self.pool_bell = bell.arena_bell(arena, self._pool_bell_field)
            else:
                self.pool_bell = self._pipe()
        if self._want_rows:
            self._lay_rows(arena, descriptions)

    def _lay_rows(self, arena: Arena, descriptions: list[Any]) -> None:
        self.observations = _common_layout(descriptions, "observation_space")
        self.actions = _common_layout(descriptions, "action_space")
        plan = arena.plan()
        finals = self._finals = any(d.finals for d in descriptions)
        self.fields = RowFields.plan(plan, self._n, self.observations, self.actions, self._blocks + 1, finals)
        arena.grow(plan)
        self.done = arena.array(self.fields.done)
        self.leases = BatchBuffers(arena, [fields_of(block) for block in self.fields.blocks], views=not self._copy)

    def plan_rollout(self, first: int, steps: int) -> tuple[RolloutFields, int]:
        """Memory for a rollout whose blocks are numbered from `first` on, and its segment. Raises ArenaError."""
        assert self.arena is not None
        assert self.fields is not None
        assert self.observations is not None
        assert self.actions is not None
        plan = self.arena.plan()
        rollout = RolloutFields.plan(plan, first, steps, self._n, self.observations, self.actions, self._finals)
        self.arena.grow(plan)
        self.fields.blocks.rollouts.append(rollout)
        return rollout, plan.segment

    def give(self, member: Any, longest: tuple[int, int]) -> None:
        """Put a member on the ground, for the first time or again after a restart."""
        assert self.arena is not None
        if member.inline:
            if self.fields is not None:
                member.worker.attach(self._rows(member))
            return
        fields = self._line_fields[member.index]
        if not self._shared:
            a, b = bell.local_bell(), self.pool_bell
            line = Line(self.arena, fields, a, b, member.worker.channel, member.slots)
            line.clear()
            theirs = Line(self.arena, fields, a, b, member.worker._theirs, member.slots)
            rows = self._rows(member) if self.fields is not None else None
            member.worker.ground_here(line, theirs, rows)
            return
        from treadle.pool.child import Grounds

        fds = [self.arena.fd]
        if self._arena_bells:
            bell.init_cell(self.arena, fields.bell)
            ring = bell.arena_bell(self.arena, fields.bell)
        else:
            ring = self._bells.get(member.index) or self._pipe()
            self._bells[member.index] = ring
            assert isinstance(ring, PipeBell)
            assert isinstance(self.pool_bell, PipeBell)
            fds += [ring.read, ring.write, self.pool_bell.read, self.pool_bell.write]
        line = Line(self.arena, fields, ring, self.pool_bell, member.worker.channel, member.slots, longest=longest[0])
        line.clear()
        member.worker.channel.borrower = Borrower(line.lent, self.fenced)
        ground = Ground(
            self.arena.segments,
            fields,
            self._pool_bell_field,
            self.fields,
            self.observations,
            self.actions,
            self._arena_bells,
        )
        member.worker.ground(Grounds(ground, longest[1]), tuple(fds), line)

    def _rows(self, member: Any) -> Rows:
        assert self.arena is not None
        assert self.fields is not None
        assert self.observations is not None
        assert self.actions is not None
        lo, hi = member.slots[0], member.slots[-1] + 1
        return Rows(self.arena, self.fields, self.observations, self.actions, lo, hi)

    def _pipe(self) -> PipeBell:
        pipe = PipeBell.new()
        self._pipes.append(pipe)
        return pipe

    def at_work(self, member: Any, owed: Any = None) -> Where:
        """Where a member is, as far as its memory tells: the slot at work is the first whose row is not done yet; None
        when all are, or nobody knows, and there are several."""
        if owed is None and member.owed:
            owed = member.owed[0]
        pid, worker = member.worker.pid, member.shown
        if owed is None:
            return Where(member.slots[0] if len(member.slots) == 1 else None, worker, pid)
        request, phase = owed.request, owed.request.op.name.lower()
        slot: int | None = owed.slots[0] if len(owed.slots) == 1 else None
        line = member.worker.line
        if request.op is Op.STREAM and line is not None:
            episode, step = line.making()
            if episode is not None:
                return Where(slot, worker, pid, "reset" if step is None else "step", step, episode)
        if self.done is not None and request.op in (Op.STEP, Op.RESET, Op.CALL):
            slot = next((s for s in owed.slots if self.done[s] != request.id), slot)
        if slot is None or self.done is None or request.op not in (Op.STEP, Op.RESET):
            at = line.words[ITEM] if request.op is Op.CALL and line is not None else 0
            return Where(slot, worker, pid, phase, item=at - 1 if at else None)
        if request.op is Op.RESET:
            return Where(slot, worker, pid, phase, seed=request.payload[slot][0])
        line = member.worker.line
        later = sum(each.request.op is Op.STEP and len(each.slots) == len(member.slots) for each in member.owed)
        if len(member.owed[0].slots) == len(member.slots):
            later -= 1
        began, own, episode, seed = (int(self._word(name)[slot]) for name in ("began", "own", "episode", "seed"))
        step = line.posted - member.asides - max(0, later) + own - began if line is not None else None
        return Where(
            slot,
            worker,
            pid,
            phase,
            step,
            episode if episode >= 0 else None,
            seed if seed >= 0 else None,
            self._action(member, slot, request),
        )

    def _word(self, name: str) -> np.ndarray:
        assert self.arena is not None
        return self.arena.array(getattr(self.fields, name))

    def _action(self, member: Any, slot: int, request: Request) -> Any:
        """The action of a slot in a step; None where a part of it went by message and the message is gone."""
        assert self.arena is not None
        assert self.actions is not None
        assert self.fields is not None
        _, mailed = request.payload or (None, None)
        if not set(self.actions.loose).issubset(mailed or ()):
            return None
        arrays = [None if field is None else self.arena.array(field) for field in self.fields.actions]
        at = slot - member.slots[0]
        share = share_of(mailed, at, at + 1) if mailed else None
        return portable(self.actions.batch_reader(arrays, slot, slot + 1)(share)[0])

    def withhold(self, request: Request) -> None:
        """A late answer may still be written to the request's block: take it out of service until then."""
        if request.block >= 0 and self.leases is not None:
            self._withheld[request.id] = request.block
            self.leases.pin(request.block)

    def release(self, id: int) -> None:
        block = self._withheld.pop(id, None)
        if block is not None and self.leases is not None and block not in self._withheld.values():
            self.leases.unpin(block)

    def clear(self) -> None:
        """Let the memory go; arrays that were handed out keep theirs."""
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []
        if self.arena is not None:
            self.arena.forget()


def share_of(mailed: Mailed, lo: int, hi: int) -> Mailed:
    """What of a batch by message is about the slots lo to hi - 1."""
    return {leaf: values[lo:hi] for leaf, values in mailed.items()}


def _common_layout(descriptions: list[Any], name: str) -> Layout:
    """The layout of all slots. Bounds may differ between slots; keys, shapes and dtypes may not."""
    spaces = [getattr(d, name) for d in descriptions]
    first = Layout.of(spaces[0])
    seen = {id(spaces[0])}
    for slot, space in enumerate(spaces):
        if id(space) in seen or space == spaces[0]:
            continue
        seen.add(id(space))
        other = Layout.of(space)
        if [(leaf.path, leaf.dtype, leaf.shape) for leaf in other.leaves] != [
            (leaf.path, leaf.dtype, leaf.shape) for leaf in first.leaves
        ]:
            raise LayoutsDiffer(
                f"slot {slot} has the {name} {space}, slot 0 has {spaces[0]}: they must share one layout"
            )
    return first
