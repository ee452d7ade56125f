"""The memory layout: what lies where in the pool's memory.

It is made once, after every worker's hello. So the layouts come from the real slots, and no environment is built only
to be asked. Segment 0 holds the control plane (bells, lines), segment 1 the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle.errors import Where
from treadle.memory import fences
from treadle.memory.arena import Arena, Field, Plan
from treadle.memory.ring import RowMemory
from treadle.memory.rows import Rows
from treadle.spaces import Mailed
from treadle.wire import bell
from treadle.wire.bell import CELL, Bell
from treadle.wire.line import ITEM, LineFields
from treadle.wire.messages import Op, Request, portable
from treadle.worker.place import Place, Told

if TYPE_CHECKING:
    from treadle.worker.worker import Owed, Worker


class MemoryLayout:
    """All memory of a pool.

    Args:
        descriptions: of the slots.
        workers: the workers that get a part of it; those that have a process of their own share it.
        rows: False where the pool does not step in lockstep and so needs no rows.
        blocks: batches that the caller may hold before they are copied.
        longest: ns for which the caller, and each of its workers, keeps trying before it sleeps.
        later: how many workers may come later (`extend`), with one slot each; their slots are like the first.

    Attributes:
        rows: None where the pool does not step in lockstep.
        fenced: True if fences must keep the order of writes. (Threads are kept in order by the interpreter.)
        lines: worker's index -> its line.
        told: int64[workers + later], how many answers each worker has given.

    Raises:
        ArenaError.
        UsageError: slots differ in their layouts.
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
        self.rows: RowMemory | None = None
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
            if rows:
                self.rows = RowMemory(arena, descriptions, blocks=blocks)
        except BaseException:
            self.clear()
            raise

    def _add_lines(self, plan: Plan, workers: Sequence[Worker]) -> None:
        for each in workers:
            told = self._told.row(each.index)
            self.lines[each.index] = LineFields.plan(plan, len(each.slots), self.fenced, told)

    def extend(self, workers: Sequence[Worker], longest: tuple[int, int]) -> None:
        """Make room for workers that come now. `longest`: its new value. Raises ArenaError."""
        plan, self.longest = self.arena.plan(), longest
        self._add_lines(plan, workers)
        self.arena.grow(plan)

    def _bell(self, field: Field) -> Bell:
        bell.init_cell(self.arena, field)
        return bell.arena_bell(self.arena, field)

    def place(self, worker: Worker) -> Place:
        """Return a worker's part of the memory."""
        line, rows, longest = self.lines[worker.index], self.rows, self.longest
        if not worker.shared:
            its = None if rows is None else Rows(rows.rings, worker.slots[0], worker.slots[-1] + 1)
            return Place(self.arena, line, bell.LocalBell(), self.pool_bell, its)
        told = None if rows is None else (rows.fields, rows.observations, rows.actions)
        start, ring = Told(self.arena.segments, line, self.pool_bell_field, told, longest[1]), self._bell(line.bell)
        return Place(self.arena, line, ring, self.pool_bell, None, longest[0], start, (self.arena.fd,))

    def clear(self) -> None:
        """Release the memory; arrays that were handed out keep theirs."""
        self.arena.forget()
        if self.rows is not None:
            self.rows.rings.forget()

    def at_work(self, worker: Worker, owed: Owed | None = None) -> Where:
        """Return where a worker is, as far as its memory shows.

        The slot at work is the first whose row is not done yet. None: all rows are done or it is unknown, and the
        worker has several slots.
        """
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
    """Return a slot's action in a step; None where a part of it went by message and the message is gone."""
    _, mailed = request.payload or (None, None)
    if not set(rows.actions.loose).issubset(mailed or ()):
        return None
    at = slot - worker.slots[0]
    share = share_of(mailed, at, at + 1) if mailed else None
    arrays = rows.arrays(rows.fields.actions)
    return portable(rows.actions.batch_reader(arrays, slot, slot + 1)(share)[0])


def share_of(mailed: Mailed, lo: int, hi: int) -> Mailed:
    """Return the part of a batch by message that belongs to the slots lo to hi - 1."""
    return {leaf: values[lo:hi] for leaf, values in mailed.items()}
