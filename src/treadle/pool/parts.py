"""Parts: a lockstep's slots in a few groups, each of which is stepped on its own, so that a policy can work on one of
them while the others are stepped.

A part is a lockstep over every k-th slot (slot 0, k, 2k, ... is the first one's). So each worker has a share of every
part: all cores work on whichever part has been asked for, the shares wait in a worker's ring when it is busy, and there
are no more processes than without parts. Parts write to rows of the same blocks and lend them on their own
(`buffers.PartBuffers`), so what is handed out is a view and no copy.

Several joint requests are under way at once, one a part (`joint.py`), each of which is a request to every worker.
Whatever is asked of all slots ends the parts: what is under way is finished, and their last rows are put together in
one block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.errors import UsageError, WorkerError
from treadle.pool.batch import Batch
from treadle.pool.buffers import PartBuffers
from treadle.pool.joint import JointRequest
from treadle.pool.line import MOST_PARTS, Chosen
from treadle.pool.lockstep import Lockstep
from treadle.pool.messages import Op
from treadle.spaces import Mailed

if TYPE_CHECKING:
    from treadle.pool.calls import Order
    from treadle.pool.worker import Worker


class Part(Lockstep):
    """Steps some of a lockstep's slots: `post_step` and `wait`, `reset` and `call`, of its slots and no others.

    Attributes:
        rows: its slots, as an index.
        buffers: of its rows.
    """

    def __init__(self, whole: Lockstep, parts: Parts, slots: range) -> None:
        pool, memory = whole.pool, whole.memory
        self.pool, self.calls, self.slots, self.parts = pool, pool.calls, slots, None
        self.rows = slice(slots.start, slots.stop, slots.step)
        self._whole, self._parts = whole, parts
        self.observations, self.actions = whole.observations, whole.actions
        self.memory = memory
        self.buffers = PartBuffers(memory.buffers, self.rows)
        self._buffers = self.buffers  # type: ignore[assignment]  # the same methods
        self._batches = whole._batches.part(slots, self.buffers)
        self.recovery, self._stale = whole.recovery, whole._stale
        arrays = [None if each is None else each[self.rows] for each in memory.arrays(memory.fields.actions)]
        self._write_actions = self.actions.batch_writer(arrays, len(slots))
        if pool.calls.history is not None:
            self._write_actions = pool.calls.history.writing_some(self._write_actions, slots)
        mine = [(worker, [slot for slot in worker.slots if slot in slots]) for worker in pool.in_slot_order()]
        # what each worker is asked: nothing but its number where all of a worker's slots are this part's
        self._shares: list[tuple[Worker, Any, tuple[int, ...]]] = []
        for worker, chosen in mine:
            short = Chosen.every(slots.step, slots.start, worker.slots) if slots.step < MOST_PARTS else (chosen, None)
            if chosen:
                self._shares.append((worker, None if len(chosen) == len(worker.slots) else short, tuple(chosen)))
        self._pending = self._joint = self.mailed = self._history = None
        self._must_reset = self._plain = False

    @property
    def under_way(self) -> bool:
        """Is there something to wait for?"""
        return self._joint is not None

    def current(self) -> Batch:
        """What it was asked for last, waited for; or, where nothing is under way, its last batch once more."""
        if self._joint is not None and self._joint.op is not Op.CALL:
            self.pool.check()
            return self._land(self._joint)
        self._settle()
        return self._batches.now()

    def _land(self, joint: JointRequest, timeout: float | None = None) -> Batch:
        try:
            return super()._land(joint, timeout)
        except WorkerError as error:
            self._parts.told.append(error)
            raise

    def _new_joint(
        self, op: Op, block: int, slots: Iterable[int], before: int = -1, sent: bool = False
    ) -> JointRequest:
        # nobody catches up with ends: none of these steps is of the fast lane, so each notes its own
        return JointRequest(
            op, block, tuple(slots), sent, others=self._others, batches=self._batches, recovery=self.recovery
        )

    def _others(self) -> list[JointRequest]:
        return [part._joint for part in self._parts.parts if part is not self and part._joint is not None]

    def _step_orders(self, mailed: Mailed | None) -> list[Order]:
        if mailed is None:
            return list(self._shares)
        by_slot = {leaf: dict(zip(self.slots, values, strict=True)) for leaf, values in mailed.items()}
        return [
            (worker, (list(chosen), {leaf: [of.get(s) for s in worker.slots] for leaf, of in by_slot.items()}), chosen)
            for worker, _, chosen in self._shares
        ]

    def finish(self) -> None:
        """Wait for what is under way, for nobody: the next step tells what has to be told. Raises WorkerError."""
        if self._joint is not None:
            self._joint.posted = False
            self._finish_joint()


class Parts:
    """All parts of a lockstep.

    Attributes:
        parts: in the order of their first slots.
        over: has something been asked of all slots since?
        told: errors that somebody has been told.
    """

    def __init__(self, lockstep: Lockstep, count: int) -> None:
        if lockstep._batches.block < 0:
            raise UsageError("there is nothing to go on from: reset first")
        self._lockstep, self.over = lockstep, False
        self.told: list[WorkerError] = []
        if lockstep.recovery is not None:
            lockstep.recovery.catch_up(lockstep.calls.last_id)
        self.parts: list[Part] = []
        self.parts += [Part(lockstep, self, range(k, lockstep.pool.n, count)) for k in range(count)]
        lockstep._plain = False

    @property
    def valid(self) -> np.ndarray:
        """As `Lockstep.valid`, of the parts' last batches."""
        valid = np.zeros(self._lockstep.pool.n, np.bool_)
        for part in self.parts:
            valid[part.rows] = part.valid
        return valid

    def leave(self) -> None:
        """End the parts: finish what is under way, and put their last rows together. Raises the first WorkerError that
        nobody has been told; the parts have ended all the same."""
        untold: list[WorkerError] = []
        for part in self.parts:
            try:
                part.finish()
            except WorkerError as error:
                untold += [error] if not any(error is told for told in self.told) else []
        self._join()
        self._lockstep.parts, self.over = None, True
        if untold:
            raise untold[0]

    def _join(self) -> None:
        lockstep = self._lockstep
        array, blocks = lockstep.memory.array, lockstep.memory.fields.blocks
        for part in self.parts:
            part.buffers.give_back()
        numbers = {part._batches.block for part in self.parts}
        number = numbers.pop() if len(numbers) == 1 else lockstep._buffers.take()
        target = blocks[number]
        for part in self.parts:
            if part._batches.block == number:
                continue
            source = blocks[part._batches.block]
            pairs = [*zip(source.observations, target.observations, strict=True)]
            pairs += [(getattr(source, name), getattr(target, name)) for name in FLAGS]
            for a, b in pairs:
                if a is not None and b is not None:
                    array(b)[part.rows] = array(a)[part.rows]
        lockstep._batches.go_on_from(number, [part._batches for part in self.parts])


FLAGS = ("rewards", "terminated", "truncated", "valid")


def parts_of(lockstep: Lockstep, count: int) -> Parts:
    """The slots in so many parts, 1 to n; those that there are, if they are so many. Raises UsageError before the first
    reset, and what settling an earlier request raises."""
    if lockstep.parts is None or len(lockstep.parts.parts) != count:
        lockstep._settle()
        lockstep.parts = Parts(lockstep, count)
    return lockstep.parts
