"""What slots that step in lockstep were made to do since their last seeded reset, so that a failure can be replayed.

The caller writes it, so it outlives the workers. A step costs two array stores: the actions, from where they were just
written for the workers, and the rewards and flags of a block, which lie side by side. Which episode a slot is in need
not be written: who plays it again from its reset sees the episodes end by themselves.

It lies in chunks of at most a megabyte. When there are `MOST_BYTES` of them the oldest is written over; what was reset
before it can no longer be replayed from its beginning, and a repro says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.errors import WorkerError
from treadle.pool.arena import Field
from treadle.pool.layout import RowMemory
from treadle.repro import UNKNOWN, Repro, failure_of, fingerprint, note
from treadle.spaces import BatchWriter, Mailed

if TYPE_CHECKING:
    from treadle.pool.calls import Calls, Order

CHUNK_BYTES, MOST_BYTES = 1 << 20, 16 << 20
FEWEST, MOST = 16, 4096  # steps of a chunk


@dataclass
class Chunk:
    """Steps `first`, `first + 1`, ...: the actions of each leaf, rewards and flags as they lie in a block, and (with
    every observation's) check sums. `who`: the slots that were stepped, where not all were. `mailed`: what of the
    actions went by message."""

    first: int
    actions: list[np.ndarray | None]
    results: np.ndarray
    sums: np.ndarray | None
    who: dict[int, list[int]] = field(default_factory=dict)
    mailed: dict[int, Mailed] = field(default_factory=dict)


class History:
    """Args:
    memory: the pool's rows.
    calls: the pool's book, which tells of resets and failures.
    describe: what a slot's repro says beside what is recorded; None: nothing can be said of it.
    full: keep a check sum of every observation.
    """

    def __init__(
        self, memory: RowMemory, calls: Calls, describe: Callable[[int], Repro | None], *, full: bool = False
    ) -> None:
        self._memory, self._calls, self._describe, self._full = memory, calls, describe, full
        self._sources = memory.arrays(memory.fields.actions)
        blocks = list(memory.fields.blocks)
        one = blocks[0]
        self._n = one.rewards.shape[0]
        self._flags = one.terminated.offset - one.rewards.offset, one.truncated.offset - one.rewards.offset
        size = self._flags[1] + self._n
        spans = [Field(b.rewards.segment, b.rewards.offset, np.dtype("u1"), (size,)) for b in blocks]
        self._spans = {index: memory.array(span) for index, span in enumerate(spans)}
        row = size + sum(source.nbytes for source in self._sources if source is not None)
        self._rows = max(FEWEST, min(MOST, CHUNK_BYTES // row))
        self._most = max(2, MOST_BYTES // (row * self._rows))
        self._chunks: deque[Chunk] = deque()
        self._resets: list[tuple[int, dict[int, tuple[Any, Any]]]] = []  # before which step: slot -> seed, options
        self._at, self._id, self._open = self._rows - 1, -1, False
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []
        self._results = np.zeros((0, 0), np.uint8)
        calls.history = self

    # -- while all goes well -----------------------------------------------------------------------------------------

    def writing(self, write: BatchWriter) -> BatchWriter:
        """The same writer of a batch of actions for all slots; what it wrote is noted."""
        calls = self._calls

        def noting(actions: Any) -> Mailed | None:
            mailed = write(actions)
            id = calls.last_id
            if id != self._id:  # else what was noted last was never sent
                self._id = id
                self._at += 1
                if self._at == self._rows:
                    self._turn()
            for kept, source in self._kept:
                kept[self._at] = source
            self._open = True
            if mailed is not None:
                self._chunks[-1].mailed[self._at] = mailed
            return mailed

        return noting

    def writing_some(self, write: BatchWriter, slots: Sequence[int]) -> BatchWriter:
        """As `writing`, of a writer for some slots."""

        def noting(actions: Any) -> Mailed | None:
            mailed = write(actions)
            by_slot = {leaf: dict(zip(slots, values, strict=True)) for leaf, values in (mailed or {}).items()}
            self.add(slots, by_slot)
            return mailed

        return noting

    def keeping(self, hand_out: Callable[[int], list[np.ndarray]]) -> Callable[[int], list[np.ndarray]]:
        """The same way to hand out a block; the rewards and flags of the step at hand are noted before."""
        spans = self._spans

        def keep(block: int) -> list[np.ndarray]:
            arrays = hand_out(block)
            if self._open:
                self._open = False
                if block in spans:
                    self._results[self._at] = spans[block]
                    if self._full:
                        self._sum(arrays[:-3])
            return arrays

        return keep

    def add(self, slots: Sequence[int], mailed: dict[int, dict[int, Any]] | None = None) -> None:
        """Some slots are about to be stepped with what was written for them. `mailed`: leaf -> slot -> by message."""
        self._id, self._at = self._calls.last_id, self._at + 1
        if self._at == self._rows:
            self._turn()
        for kept, source in self._kept:
            kept[self._at] = source
        self._chunks[-1].who[self._at] = list(slots)
        if mailed:
            by_row: Mailed = {leaf: [by.get(slot) for slot in range(self._n)] for leaf, by in mailed.items()}
            self._chunks[-1].mailed[self._at] = by_row

    def reset(self, orders: Sequence[Order]) -> None:
        """Slots are about to be reset: their seeds and options."""
        if self._calls.last_id == self._id and self._at >= 0:  # what was noted last was never sent
            self._at -= 1
            self._id = -1
        self._open = False
        said = {slot: order for _, payload, _ in orders for slot, order in payload.items()}
        begin = self._now
        if len(said) == self._n and all(seed is not None for seed, _ in said.values()):
            self._resets.clear()
        elif len(self._resets) > 4096:  # of resets without seeds only the actions' memory is a limit
            first = self._chunks[0].first if self._chunks else 0
            self._resets = [each for each in self._resets if each[0] >= first]
        self._resets.append((begin, said))

    @property
    def _now(self) -> int:
        """The number of the next step."""
        return self._chunks[-1].first + self._at + 1 if self._chunks else 0

    def _turn(self) -> None:
        """Begin a chunk, in the oldest one's memory where there are enough."""
        first = self._chunks[-1].first + self._rows if self._chunks else 0
        if len(self._chunks) == self._most:
            old = self._chunks.popleft()
            chunk = Chunk(first, old.actions, old.results, old.sums)
        else:
            actions = [None if s is None else np.empty((self._rows, *s.shape), s.dtype) for s in self._sources]
            results = np.empty((self._rows, self._flags[1] + self._n), np.uint8)
            sums = np.empty((self._rows, self._n), np.int64) if self._full else None
            chunk = Chunk(first, actions, results, sums)
        chunk.results[:] = UNKNOWN[0]
        self._chunks.append(chunk)
        pairs = zip(chunk.actions, self._sources, strict=True)
        self._kept = [(kept, source) for kept, source in pairs if kept is not None and source is not None]
        self._at, self._results = 0, chunk.results

    def _sum(self, arrays: list[np.ndarray]) -> None:
        sums = self._chunks[-1].sums
        assert sums is not None
        for slot in range(self._n):
            sums[self._at, slot] = fingerprint([array[slot] for array in arrays])

    # -- when something has failed -----------------------------------------------------------------------------------

    def failed(self, error: WorkerError) -> None:
        """Keep what a slot's failure can be replayed from, as the error's `repro`."""
        slot = error.where.slot
        if slot is None or error.where.phase not in ("reset", "step"):
            return
        repro = self._describe(slot)
        if repro is not None:
            self._fill(repro, slot)
            repro.about["failed"] = failure_of(error)
            note(error, repro)

    def _fill(self, repro: Repro, slot: int) -> None:
        """What a slot was made to do since it was last reset with a seed."""
        begun = [i for i, (_, said) in enumerate(self._resets) if slot in said]
        seeded = [i for i in begun if self._resets[i][1][slot][0] is not None]
        since = (seeded or begun or [0])[-1 if seeded else 0]
        mine = [(at, *said[slot]) for at, said in self._resets[since:] if slot in said]
        first = mine[0][0] if mine else 0
        repro.about["seed"] = mine[0][1] if mine else None
        if not self._chunks:
            repro.about["resets"] = [[0, seed] for _, seed, _ in mine[-1:]]
            repro.put("options", list(map(_options, mine[-1:])))
            return
        repro.about["lost"] = max(0, self._chunks[0].first - first)
        parts: list[list[Any]] = [[] for _ in self._sources]
        rewards: list[Any] = []
        ends: list[Any] = []
        sums: list[Any] = []
        numbers: list[int] = []
        mailed: dict[str, Any] = {}
        for chunk in self._chunks:
            stop = self._at + 1 if chunk is self._chunks[-1] else self._rows
            rows = [
                row
                for row in range(max(0, first - chunk.first), stop)
                if row not in chunk.who or slot in chunk.who[row]
            ]
            if not rows:
                continue
            for part, kept in zip(parts, chunk.actions, strict=True):
                if kept is not None:
                    part.append(kept[rows, slot])
            for row in rows:
                if row in chunk.mailed:
                    at = len(numbers) + rows.index(row)
                    mailed[str(at)] = {str(leaf): values[slot] for leaf, values in chunk.mailed[row].items()}
            numbers += [chunk.first + row for row in rows]
            rewards.append(chunk.results[rows, 8 * slot : 8 * slot + 8].copy().view(np.float64)[:, 0])
            ends.append(chunk.results[rows, self._flags[0] + slot] + 2 * chunk.results[rows, self._flags[1] + slot])
            if chunk.sums is not None:
                sums.append(chunk.sums[rows, slot])
        for i, part in enumerate(parts):
            if part:
                repro.arrays[f"action.{i}"] = np.concatenate(part)
        if not numbers:
            rewards, ends = [np.zeros(0)], [np.zeros(0, np.uint8)]
        told = np.concatenate(rewards)[:-1]
        if told.tobytes().strip(UNKNOWN[:1]):
            repro.arrays |= {"rewards": told, "ends": np.concatenate(ends)[:-1]}
        if sums:
            known = np.concatenate(sums)[:-1]
            repro.arrays["checks"] = np.array([range(1, len(known) + 1), known], np.int64)
        repro.about["steps"] = len(numbers)
        places = [sum(number < at for number in numbers) for at, _, _ in mine]
        repro.about["resets"] = [[place, seed] for place, (_, seed, _) in zip(places, mine, strict=True)]
        repro.put("options", list(map(_options, mine)))
        if mailed:
            repro.put("mailed", mailed)


def _options(order: tuple[int, Any, Any]) -> list[Any]:
    """Reset options, and do they also serve the resets that the slot makes by itself?"""
    given = order[2]
    lasting = bool(getattr(given, "lasting", False))
    return [given.options if lasting else given, lasting]


__all__ = ["History"]
