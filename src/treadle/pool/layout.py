"""The memory layout: what lies where in the pool's memory. It is made once, when the workers have said what they need.

Segment 0 holds the control plane (bells, lines), segment 1 the rows. It is made after every worker's hello, so the
layouts come from the real slots and no environment is ever built just to be asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.errors import LayoutsDiffer, Where
from treadle.pool import bell, fences
from treadle.pool.arena import Arena, Field, Plan
from treadle.pool.bell import CELL, Bell, PipeBell
from treadle.pool.buffers import BatchBuffers, fields_of
from treadle.pool.line import ITEM, LineFields
from treadle.pool.messages import Op, Request
from treadle.pool.rows import RolloutFields, RowFields, Rows, plan_leaves
from treadle.pool.serve import portable
from treadle.spaces import Layout, Mailed

if TYPE_CHECKING:
    from treadle.pool.worker import Owed, Worker


@dataclass(frozen=True)
class Place:
    """A worker process's place in the memory, as it is told. With it go descriptors: the arena's, then those of two
    pipe bells (4) if there are no `arena_bells`.

    Attributes:
        rows: what all slots' rows are; None: there are none.
        longest: ns of waits that it tries in; see `Rhythm`.
    """

    segments: list[tuple[int, int]]
    line: LineFields
    pool_bell: Field
    arena_bells: bool
    rows: tuple[RowFields, Layout, Layout] | None
    longest: int


class RowMemory:
    """The rows of all slots.

    Attributes:
        observations, actions: of every slot.
        finals: are there rows for terminal observations?
        array: the array of a field.
        done: the request that each slot has answered last.
        buffers: blocks that are handed out.
    """

    def __init__(self, arena: Arena, descriptions: Sequence[Any], *, blocks: int) -> None:
        self.arena, self.array = arena, arena.array
        self.observations = _common_layout(descriptions, "observation_space")
        self.actions = _common_layout(descriptions, "action_space")
        self.actions.numpy_integers = all(about.numpy_integers for about in descriptions)
        self.finals = any(d.finals for d in descriptions)
        self._n, plan = len(descriptions), arena.plan()
        self.fields = RowFields.plan(plan, self._n, self.observations, self.actions, blocks + 1, self.finals)
        arena.grow(plan)
        self.done = arena.array(self.fields.done)
        self.buffers = BatchBuffers(arena, [fields_of(block) for block in self.fields.blocks])

    def of(self, worker: Worker) -> Rows:
        """Those of a worker's slots."""
        lo, hi = worker.slots[0], worker.slots[-1] + 1
        return Rows(self.arena, self.fields, self.observations, self.actions, lo, hi)

    def arrays(self, fields: Sequence[Field | None]) -> list[np.ndarray | None]:
        """An array a leaf; None for a leaf without a fixed shape."""
        return [None if field is None else self.array(field) for field in fields]

    def plan_rollout(self, first: int, steps: int) -> tuple[RolloutFields, int]:
        """Memory for a rollout whose blocks are numbered from `first` on, and its segment. Raises ArenaError."""
        plan = self.arena.plan()
        actions = plan_leaves(plan, self.actions, steps, self._n)
        about = (plan, self._n, self.observations, self.finals, steps)
        rollout = RolloutFields.plan(*about, first=first, steps=steps, actions=actions)
        self.arena.grow(plan)
        self.fields.blocks.rollouts.append(rollout)
        return rollout, plan.segment


class MemoryLayout:
    """All memory of a pool.

    Args:
        descriptions: of the slots.
        workers: who are given a part of it; those that have a process of their own share it.
        later: how many workers may come later (`extend`), with a slot each; their slots are like the first.
        longest: ns of waits that the caller tries in, and its workers.

    Attributes:
        rows: None where the pool does not step in lockstep.
        fenced: does the order of writes have to be kept by fences? (Threads are kept in order by the interpreter.)
        lines: worker's index -> its line.
        told: int64[workers + later], how many answers each has given.

    Raises:
        ArenaError, and UsageError when slots differ in their layouts.
    """

    def __init__(
        self,
        descriptions: Sequence[Any],
        workers: Sequence[Worker],
        *,
        rows: bool,
        blocks: int,
        longest: tuple[int, int],
        later: int = 0,
    ) -> None:
        shared = any(worker.shared for worker in workers)
        self.longest, self.fenced = longest, shared and fences.FENCED
        self.arena_bells = shared and bell.arena_bells_work()
        self._pipes: list[PipeBell] = []
        self._bells: dict[int, PipeBell] = {}
        arena = self.arena = Arena(shared=shared)
        try:
            plan = arena.plan()
            self.pool_bell_field = plan.add("u1", (CELL,))
            self._told = plan.add("i8", (len(workers) + later, 1))
            self.lines: dict[int, LineFields] = {}
            self._add_lines(plan, workers)
            arena.grow(plan)
            self.told = arena.array(self._told)[:, 0]
            self.pool_bell: Bell = bell.LocalBell() if not shared else self._bell(self.pool_bell_field)
            descriptions = [*descriptions, *[descriptions[0]] * later]
            self.rows = RowMemory(arena, descriptions, blocks=blocks) if rows else None
        except BaseException:
            self.clear()
            raise

    def _add_lines(self, plan: Plan, workers: Sequence[Worker]) -> None:
        for each in workers:
            told = self._told.row(each.index)
            self.lines[each.index] = LineFields.plan(plan, len(each.slots), self.fenced, told)

    def extend(self, workers: Sequence[Worker], longest: tuple[int, int]) -> None:
        """Make room for workers that come now; `longest`: from now on. Raises ArenaError."""
        plan, self.longest = self.arena.plan(), longest
        self._add_lines(plan, workers)
        self.arena.grow(plan)

    def _bell(self, field: Field) -> Bell:
        if self.arena_bells:
            bell.init_cell(self.arena, field)
            return bell.arena_bell(self.arena, field)
        self._pipes.append(PipeBell.new())
        return self._pipes[-1]

    def place(self, worker: Worker) -> tuple[Place, tuple[int, ...], Bell]:
        """What a worker process is told of its place, the descriptors that go along, and its bell."""
        line, rows, fds = self.lines[worker.index], self.rows, [self.arena.fd]
        told = None if rows is None else (rows.fields, rows.observations, rows.actions)
        ring = self._bells.get(worker.index) or self._bell(line.bell)
        if isinstance(ring, PipeBell) and isinstance(self.pool_bell, PipeBell):
            self._bells[worker.index] = ring
            fds += [ring.read, ring.write, self.pool_bell.read, self.pool_bell.write]
        place = Place(self.arena.segments, line, self.pool_bell_field, self.arena_bells, told, self.longest[1])
        return place, tuple(fds), ring

    def clear(self) -> None:
        """Let the memory go; arrays that were handed out keep theirs."""
        pipes, self._pipes = self._pipes, []
        for pipe in pipes:
            pipe.close()
        self.arena.forget()

    def at_work(self, worker: Worker, owed: Owed | None = None) -> Where:
        """Where a worker is, as far as its memory tells: the slot at work is the first whose row is not done yet; None
        when all are, or nobody knows, and there are several."""
        if owed is None and worker.owed:
            owed = worker.owed[0]
        line, rows = worker.line, self.rows
        if owed is None:
            return worker.at(worker.slots[0] if len(worker.slots) == 1 else None)
        request, phase = owed.request, owed.request.op.name.lower()
        slot: int | None = owed.slots[0] if len(owed.slots) == 1 else None
        if request.op is Op.STREAM and line is not None:
            episode, step = line.making()
            if episode is not None:
                return worker.at(slot, "reset" if step is None else "step", step, episode)
        if rows is not None and request.op in (Op.STEP, Op.RESET, Op.CALL):
            slot = next((s for s in owed.slots if rows.done[s] != request.id), slot)
        if slot is None or rows is None or request.op not in (Op.STEP, Op.RESET):
            at = line.words[ITEM] if request.op is Op.CALL and line is not None else 0
            return worker.at(slot, phase, item=at - 1 if at else None)
        if request.op is Op.RESET:
            return worker.at(slot, phase, seed=request.payload[slot][0])
        later = sum(each.request.op is Op.STEP and len(each.slots) == len(worker.slots) for each in worker.owed)
        if len(worker.owed[0].slots) == len(worker.slots):
            later -= 1
        began, own, episode, seed = (int(rows.array(getattr(rows.fields, name))[slot]) for name in WORDS)
        step = line.posted - worker.asides - max(0, later) + own - began if line is not None else None
        known = (None if number < 0 else number for number in (episode, seed))
        return worker.at(slot, phase, step, *known, _action(rows, worker, slot, request))


WORDS = ("began", "own", "episode", "seed")  # of a slot's row: see `at_work`


def _action(rows: RowMemory, worker: Worker, slot: int, request: Request) -> Any:
    """The action of a slot in a step; None where a part of it went by message and the message is gone."""
    _, mailed = request.payload or (None, None)
    if not set(rows.actions.loose).issubset(mailed or ()):
        return None
    at = slot - worker.slots[0]
    share = share_of(mailed, at, at + 1) if mailed else None
    arrays = rows.arrays(rows.fields.actions)
    return portable(rows.actions.batch_reader(arrays, slot, slot + 1)(share)[0])


def share_of(mailed: Mailed, lo: int, hi: int) -> Mailed:
    """What of a batch by message is about the slots lo to hi - 1."""
    return {leaf: values[lo:hi] for leaf, values in mailed.items()}


def _common_layout(descriptions: Sequence[Any], name: str) -> Layout:
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
