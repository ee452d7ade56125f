"""Rows for requests about slots one by one: whoever asks some slots at a time, and takes whichever have answered.

Results lie in one block of the arena that is kept for this, a row per slot: a slot's row cannot change before its next
request. What has no fixed shape comes with the answers and is kept here until it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from treadle.lockstep.batch import Batches
from treadle.memory.ring import RowMemory
from treadle.spaces import BatchWriter
from treadle.wire.line import Chosen
from treadle.wire.messages import Extras
from treadle.worker.worker import Worker

ByMessage = dict[int, dict[int, Any]]  # leaf -> slot -> the part of its action that goes by message


class SlotRows:
    """Args:
    memory: the pool's rows.
    by_slot: the pool's workers.
    cast: as of `Layout.batch_writer`.
    remember: keep what of each slot was read last, so that it can be shown again: see `batches`.

    Attributes:
        block: nobody else's from now on.
        ring: where that is.
        ends: rewards, terminated, truncated and valid of the block.
        batches: shows rows again, and marks those that are cut, after a worker's death.
    """

    def __init__(
        self, memory: RowMemory, by_slot: Mapping[int, Worker], *, cast: bool = False, remember: bool = False
    ) -> None:
        self._observations, self._actions, self._cast = memory.observations, memory.actions, cast
        self.ring = ring = memory.standing
        self.block = ring.take()
        ring.pins.add(self.block)
        self._rows = ring.observations(self.block)
        self._action_rows = memory.arrays(memory.fields.actions)
        self._writers: dict[int, tuple[BatchWriter, list[np.ndarray | None]]] = {}
        self._loose: dict[int, list[Any]] = {}
        self._by_slot = by_slot
        self.batches = Batches(memory, len(by_slot))
        self._remember = remember
        if remember:
            self.batches.begin_from([np.zeros_like(array) for array in self._rows if array is not None])
        self.ends = ring.ends(self.block)

    def clear(self, slots: Iterable[int]) -> None:
        """Their rows are nothing: zeros, and not valid."""
        for slot in slots:
            for array in (*self._rows, *self.ends):
                if array is not None:
                    array[slot] = 0
            self._loose[slot] = [None] * len(self._observations.loose)

    def write(self, actions: Any, slots: Sequence[int]) -> ByMessage:
        """Check an action for each of the slots and write them; returns what goes by message. Raises Mismatch, about a
        row of the batch, and then nothing was written."""
        found = self._writers.get(len(slots))
        if found is None:
            count = len(slots)
            staged = [None if a is None else np.zeros((count, *a.shape[1:]), a.dtype) for a in self._action_rows]
            found = self._writers[count] = self._actions.batch_writer(staged, count, cast=self._cast), staged
        write, staged = found
        mailed = write(actions)
        for target, source in zip(self._action_rows, staged, strict=True):
            if target is not None:
                target[slots] = source
        return {leaf: dict(zip(slots, values, strict=True)) for leaf, values in (mailed or {}).items()}

    def by_worker(self, slots: Iterable[int]) -> Iterator[tuple[Worker, list[int]]]:
        """Whose they are."""
        found: dict[int, list[int]] = {}
        for slot in slots:
            found.setdefault(self._by_slot[slot].index, []).append(slot)
        return ((self._by_slot[mine[0]], mine) for mine in found.values())

    @staticmethod
    def step_payload(worker: Worker, group: list[int], mailed: ByMessage) -> Any:
        """Of the request that steps these of the worker's slots."""
        if mailed:
            mine = {leaf: [by[s] if s in group else None for s in worker.slots] for leaf, by in mailed.items()}
            return group, mine
        return Chosen.one(group[0]) if len(group) == 1 else (group, None)

    def heard(self, extras: Extras) -> None:
        """Keep what an answer says of observations beyond their rows."""
        self._loose.update(extras.loose)

    def read(self, slots: Sequence[int]) -> Any:
        """The observations of these slots, a tree of [m, ...]; copies."""
        places = self._observations.loose
        values = [
            [self._loose[slot][places.index(i)] for slot in slots] if array is None else array[slots]
            for i, array in enumerate(self._rows)
        ]
        if self._remember:
            self.batches.saw(slots, values, {slot: self._loose[slot] for slot in slots if slot in self._loose})
        return self._observations.unflatten(values)
