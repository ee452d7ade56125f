"""A history of slots that step in lockstep, since their last seeded reset, so that a failure can be replayed.

The caller writes it, so it outlives the workers. A step costs two copies of some bytes when it has been made. One is of
the actions, from where they were written for the workers. The other is of the rewards and flags of its block, which lie
side by side. (Slices of memoryviews take 60 ns each, where assigning to a row of an array takes 100 to 700.) The
episode that a slot is in need not be written: a replay from its reset sees the episodes end by themselves.

It lies in chunks of about a megabyte, actions that went by message and resets included. When all of them are
`MOST_BYTES` the oldest is written over. A slot whose reset was written over can no longer be replayed from its
beginning, and its repro says so.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle.errors import WorkerError
from treadle.memory.ring import RowMemory
from treadle.repro import UNKNOWN, Repro, failure_of, fingerprint, note
from treadle.spaces import Mailed
from treadle.worker.worker import Order

CHUNK_BYTES, MOST_BYTES = 1 << 20, 16 << 20
FEWEST, MOST = 16, 4096  # steps of a chunk
UNSEEN = -1  # the check sum of an observation that was not summed: of slots that are not stepped in lockstep
RESET_BYTES, MAILED_BYTES = 200, 100  # bytes that one takes, beside its options or actions
DEEPEST = 8  # levels of containers whose bytes are counted


@dataclass(slots=True)
class Reset:
    """A slot's reset before step `at`, and the check sum of its first observation."""

    at: int
    slot: int
    seed: Any
    options: Any
    seen: int = UNSEEN


@dataclass
class Chunk:
    """Steps `first`, `first + 1`, ..., a row of bytes each.

    A row has the actions leaf by leaf, then rewards and flags as in a block, then a bit for each slot that was stepped.
    `sums`: of every observation, or UNSEEN. `count`: how many rows there are, once another chunk has begun. `mailed`:
    the actions that went by message, by leaf and slot. `resets`: those requested meanwhile. `beside`: about how many
    bytes these two take.
    """

    first: int
    data: np.ndarray
    sums: np.ndarray | None
    count: int = 0
    mailed: dict[int, Mapping[int, Any]] = field(default_factory=dict)
    resets: list[Reset] = field(default_factory=list)
    beside: int = 0


class History:
    """Records what the slots of a pool are made to do.

    Args:
        memory: the pool's rows.
        describe: returns what a slot's repro holds beside the record; None: the slot has no repro.
        full: keep a check sum of every observation.
    """

    def __init__(self, memory: RowMemory, describe: Callable[[int], Repro | None], *, full: bool = False) -> None:
        self._memory, self._describe, self._full = memory, describe, full
        self._actions = memory.arrays(memory.fields.actions)
        ring, self._places, self._width = memory.standing, [], 0
        self._n = len(memory.done)
        self._sources: list[tuple[int, int, memoryview]] = []  # from, to, bytes
        for array in self._actions:
            self._places.append(self._width)
            if array is not None and array.nbytes:
                self._sources.append((self._width, self._width + array.nbytes, array.data.cast("B")))
                self._width += array.nbytes
        # of a block: its rewards, and then its flags
        self._flags = 8 * self._n, 9 * self._n
        self._spans = {
            block: tuple(each.view("u1").data for each in ring.ends(block)[:3]) for block in range(ring.steps)
        }
        self._results, self._who = self._width, self._width + 10 * self._n
        self._width = self._who + (self._n + 7) // 8
        nbytes = self._width + 8 * self._n * full
        self._rows = max(FEWEST, min(MOST, CHUNK_BYTES // nbytes))
        self._nbytes = nbytes * self._rows  # of a chunk
        self._chunks: deque[Chunk] = deque()
        self._begun: dict[int, Reset] = {}  # slot -> its latest seeded reset before the chunks, or else its first one
        self._asked: list[Reset] = []  # the latest
        self._at, self._data = self._rows - 1, memoryview(b"")
        self._ahead = -1  # the latest step that was noted before it was made; -1: none

    # -- while all goes well -----------------------------------------------------------------------------------------

    def keeping(self, hand_out: Callable[[int], list[np.ndarray]]) -> Callable[[int], list[np.ndarray]]:
        """Return a function that hands out a step's block as `hand_out` does, and notes the step.

        It is bound once, for lockstep's fast lane.
        """
        if self._full or len(self._sources) != 1:

            def keep_all(block: int) -> list[np.ndarray]:
                self.note(block)
                return hand_out(block)

            return keep_all
        spans, width, rows, results, who = self._spans, self._width, self._rows, self._results, self._who
        join = b"".join
        ((_, size, source),) = self._sources

        def keep(block: int) -> list[np.ndarray]:
            self._at = at = self._at + 1
            if at == rows:
                at = self._turn()
            begin, data = at * width, self._data
            data[begin : begin + size] = source
            if block in spans:
                data[begin + results : begin + who] = join(spans[block])  # quicker than one by one
            return hand_out(block)

        return keep

    def note(self, block: int, mailed: Mailed | None = None) -> None:
        """Note that all slots were stepped into a block."""
        self._next()
        begin, data = self._at * self._width, self._data
        if block in self._spans:
            data[begin + self._results : begin + self._who] = b"".join(self._spans[block])
        sums = self._chunks[-1].sums
        if sums is not None:
            sums[self._at] = self._sums_of(block, range(self._n))
        if mailed is not None:
            self._keep_mailed(mailed)

    def add(self, slots: Sequence[int], mailed: dict[int, dict[int, Any]] | None = None) -> None:
        """Note that some slots are about to be stepped with written actions. `mailed`: leaf -> slot -> by message."""
        self._next()
        self._ahead = self._latest
        who = bytearray(self._width - self._who)
        for slot in slots:
            who[slot >> 3] |= 1 << (slot & 7)
        self._data[self._at * self._width + self._who : (self._at + 1) * self._width] = who
        if mailed:
            self._keep_mailed(mailed)

    def all_made(self) -> None:
        """Note that all steps noted beforehand have been made: the next one may be lockstep's."""
        self._ahead = -1

    def reset(self, orders: Sequence[Order], *, during_step: bool) -> None:
        """Note that slots are about to be reset, with their seeds and options.

        `during_step`: instead of making the step that is under way for all.
        """
        said = {slot: order for _, payload, _ in orders for slot, order in payload.items()}
        now = self._latest + 1
        if len(said) == self._n:  # so no slot is being stepped
            self._ahead = -1
        if len(said) == self._n and all(seed is not None for seed, _ in said.values()):
            self._begun.clear()
            for chunk in self._chunks:
                chunk.resets.clear()
        if not self._chunks:
            self._begin_chunk()
        self._asked = [Reset(now + during_step, slot, *order) for slot, order in said.items()]
        self._chunks[-1].resets += self._asked
        self._weigh(RESET_BYTES * len(said), (_options(each.options)[0] for each in self._asked))

    def begun(self, block: int) -> None:
        """Note the first observations of the slots that were reset last, which lie in a block."""
        for each, seen in zip(self._asked, self._sums_of(block, [each.slot for each in self._asked]), strict=True):
            each.seen = seen

    def _keep_mailed(self, mailed: Mapping[int, Any]) -> None:
        """Keep actions that went by message in the step that was noted last."""
        self._chunks[-1].mailed[self._at] = mailed
        self._weigh(MAILED_BYTES, (mailed,))

    def _weigh(self, nbytes: int, things: Iterable[Any]) -> None:
        """Count the bytes kept beside the latest chunk's rows. If they are many, the next steps go to another chunk."""
        self._chunks[-1].beside += nbytes + sum(map(nbytes_of, things))
        if self._chunks[-1].beside > CHUNK_BYTES:
            self._begin_chunk()

    def _begin_chunk(self) -> None:
        """Begin a chunk early; it has no row yet."""
        self._at += 1
        self._turn()
        self._at = -1

    def _sums_of(self, block: int, slots: Iterable[int]) -> list[int]:
        """Return check sums of some slots' observations in a block; UNSEEN where no leaf has a fixed shape."""
        views = self._memory.rings.of(block).observations(block)
        if all(view is None for view in views):
            return [UNSEEN for _ in slots]
        return [fingerprint([None if view is None else view[slot] for view in views]) for slot in slots]

    @property
    def _latest(self) -> int:
        """The number of the latest noted step; -1: no step was noted."""
        return self._chunks[-1].first + self._at if self._chunks else -1

    def _next(self) -> None:
        """Go to the next row, and note the actions there."""
        self._at += 1
        if self._at == self._rows:
            self._turn()
        begin = self._at * self._width
        for first, stop, source in self._sources:
            self._data[begin + first : begin + stop] = source

    def _turn(self) -> int:
        """Begin a chunk, in the oldest one's memory once `MOST_BYTES` are kept."""
        chunks, first, old = self._chunks, 0, None
        if chunks:
            chunks[-1].count = self._at
            first = chunks[-1].first + self._at
        kept = sum(self._nbytes + chunk.beside for chunk in chunks)
        while len(chunks) > 1 and kept + self._nbytes > MOST_BYTES:
            old = chunks.popleft()
            kept -= self._nbytes + old.beside
            for each in old.resets:
                if each.seed is not None or each.slot not in self._begun:
                    self._begun[each.slot] = each
        if old is not None:
            chunk = Chunk(first, old.data, old.sums)
            if old.sums is not None:
                old.sums.fill(UNSEEN)
        else:
            sums = np.full((self._rows, self._n), UNSEEN) if self._full else None
            chunk = Chunk(first, np.empty((self._rows, self._width), np.uint8), sums)
        chunk.data[:, self._results : self._who] = UNKNOWN[0]
        chunk.data[:, self._who :] = 0xFF
        chunks.append(chunk)
        self._at, self._data = 0, chunk.data.data.cast("B")
        return 0

    # -- when something has failed -----------------------------------------------------------------------------------

    def failed(self, error: WorkerError, *, noted: bool = False) -> None:
        """Keep the record from which a slot's failure can be replayed, as the error's `repro`.

        `noted`: the step in which it failed is noted; else it is the one whose actions lie in the arena.
        """
        slot = error.where.slot
        if slot is None or error.where.phase not in ("reset", "step"):
            return
        repro = self._describe(slot)
        if repro is not None:
            ahead = 0 <= self._ahead == self._latest
            unnoted = not noted and not ahead and error.where.phase == "step"
            if unnoted:
                self._next()
                self._chunks[-1].data[self._at, self._results : self._who] = UNKNOWN[0]
            self._fill(repro, slot)
            if unnoted:
                self._at -= 1
            repro.about["failed"] = failure_of(error)
            note(error, repro)

    def _fill(self, repro: Repro, slot: int) -> None:
        """Fill in the actions and resets of a slot since it was last reset with a seed."""
        mine = [self._begun[slot]] if slot in self._begun else []
        mine += [each for chunk in self._chunks for each in chunk.resets if each.slot == slot]
        seeded = [i for i, each in enumerate(mine) if each.seed is not None]
        mine = mine[seeded[-1] :] if seeded else mine
        # not that of a reset without a seed, which begins differently each time
        seen = mine[0].seen if seeded else UNSEEN
        first = mine[0].at if mine and not repro.about.get("begun") else 0
        lost = self._chunks[0].first - first if self._chunks else 0
        numbers: list[int] = []
        found: list[np.ndarray] = []  # rows of bytes
        sums: list[np.ndarray] = []
        mailed: dict[str, Any] = {}
        for chunk in self._chunks:
            stop = self._at + 1 if chunk is self._chunks[-1] else chunk.count
            since = max(0, first - chunk.first)
            stepped = chunk.data[since:stop, self._who + slot // 8] >> slot % 8 & 1
            rows = [since + row for row in np.flatnonzero(stepped).tolist()]
            for at, row in enumerate(rows, len(numbers)):
                if row in chunk.mailed:
                    mailed[str(at)] = {str(leaf): values[slot] for leaf, values in chunk.mailed[row].items()}
            numbers += [chunk.first + row for row in rows]
            found.append(chunk.data[rows])
            if chunk.sums is not None:
                sums.append(chunk.sums[rows, slot])
        data = np.concatenate(found) if found else np.empty((0, self._width), np.uint8)
        for i, (array, place) in enumerate(zip(self._actions, self._places, strict=True)):
            if array is not None:
                size = array.nbytes // self._n
                column = np.ascontiguousarray(data[:, place + slot * size : place + (slot + 1) * size])
                repro.arrays[f"action.{i}"] = column.view(array.dtype).reshape(len(data), *array.shape[1:])
        results = data[:-1, self._results :]
        rewards = np.ascontiguousarray(results[:, 8 * slot : 8 * slot + 8]).view(np.float64).reshape(-1)
        if rewards.tobytes().strip(UNKNOWN[:1]):
            ends = results[:, self._flags[0] + slot] + 2 * results[:, self._flags[1] + slot]
            repro.arrays |= {"rewards": rewards, "ends": ends}
        places = [sum(number < each.at for number in numbers) for each in mine]
        checks = {0: seen if places and places[0] == 0 else UNSEEN}
        if sums:
            checks |= enumerate(np.concatenate(sums)[:-1].tolist(), 1)
        if known := {at: check for at, check in checks.items() if check != UNSEEN}:
            repro.arrays["checks"] = np.array([list(known), list(known.values())], np.int64)
        repro.about |= {
            "seed": mine[0].seed if mine else None,
            "lost": max(0, lost),
            "steps": len(numbers),
            "resets": [[place, each.seed] for place, each in zip(places, mine, strict=True)],
        }
        repro.put("options", [_options(each.options) for each in mine])
        if mailed:
            repro.put("mailed", mailed)


def _options(given: Any) -> list[Any]:
    """Return reset options, and whether they also serve the resets that the slot makes by itself."""
    lasting = bool(getattr(given, "lasting", False))
    return [given.options if lasting else given, lasting]


def nbytes_of(thing: Any, depth: int = DEEPEST) -> int:
    """Return about how many bytes plain values, arrays and their containers take."""
    nbytes = sys.getsizeof(thing, 0)
    if isinstance(thing, np.ndarray) and thing.base is not None:
        nbytes += thing.nbytes
    inside = [*thing, *thing.values()] if isinstance(thing, Mapping) else thing
    if depth and isinstance(inside, list | tuple | set | frozenset):
        nbytes += sum(nbytes_of(each, depth - 1) for each in inside)
    return nbytes
