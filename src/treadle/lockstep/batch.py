"""Batches of a lockstep schedule, put together from a block of the arena and from what came by message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Flag, auto
from typing import Any, NamedTuple

import numpy as np

from treadle.memory.ring import RowMemory
from treadle.spaces import BatchWriter, Layout
from treadle.wire.info_rows import joined
from treadle.wire.line import Chosen
from treadle.wire.messages import Extras
from treadle.worker.worker import Worker

ByMessage = dict[int, dict[int, Any]]  # leaf -> slot -> the part of its action that goes by message


class News(Flag):
    """The engine's own entries about a slot, in a pool that goes on after a worker's death.

    They stand beside the programs' infos, never in them, as a program may use "dropped" as a key of its own.
    """

    ABORTED = auto()  # the worker died: its episode is cut
    RESTARTED = auto()  # a fresh program shows its first observation
    DROPPED = auto()  # the slot is out of use from now on


NO_NEWS: Mapping[int, News] = {}  # never written to (a read-only proxy cannot be pickled, and errors hold batches)


class Batch(NamedTuple):
    """One step of every slot, in slot order. Arrays are the caller's to keep.

    Attributes:
        observations: tree of [n, ...] arrays (a leaf without a fixed shape is a list of n values).
        rewards: float64[n].
        terminated, truncated: bool[n].
        infos: slot -> info, in slot order, without empty infos.
        finals: slot -> (final observation, final info) of slots that moved on within this step.
        news: slot -> the pool's own news, only for slots that have any.
    """

    observations: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: Mapping[int, Any]
    finals: dict[int, tuple[Any, dict[str, Any]]]
    news: Mapping[int, News] = NO_NEWS


class Batches:
    """Makes the batches of one pool.

    Args:
        n: slots.
        remember: keep the latest batch, so that rows of it can be shown again (`keep_row`, `keep_final`).

    Attributes:
        block: where the latest batch lies; -1 before the first.
        hand_out: returns a block's arrays, the caller's to keep.
    """

    def __init__(
        self,
        memory: RowMemory,
        n: int,
        *,
        remember: bool = False,
    ) -> None:
        self._rings, self._standing, self.observations = memory.rings, memory.standing, memory.observations
        self._n, self.block = n, -1
        self._last: list[np.ndarray] = []  # while it is held its block is not written
        self.hand_out: Callable[[int], list[np.ndarray]] = self._hand_out_and_keep if remember else self._standing.row
        self._lost: set[int] = set()  # slots whose rows in the latest batch are empty
        self._last_loose: dict[int, list[Any]] = {}

    @property
    def valid(self) -> np.ndarray:
        """bool[n] of the latest batch, `partial` included: False on rows that are not transitions (reset, failed)."""
        ring = self._rings.of(self.block)
        valid = ring.array(ring.fields.valid, self.block).copy()
        valid[list(self._lost)] = False
        return valid

    def assemble(
        self,
        block: int,
        extras: Sequence[Extras | None],
        lost: Iterable[int] = (),
        *,
        copy: bool = False,
        ended: bool = True,
        news: Mapping[int, News] = NO_NEWS,
    ) -> Batch:
        """Return the batch in a block. Rows of `lost` slots, and of those that raised, are zero, empty and not valid.

        `copy`: hand out copies, because a late worker may still write to the block. `ended`: False if no episode can
        have ended.
        """
        self.block = block
        self._lost = set(lost)
        infos: list[Mapping[int, Any]] = []
        finals: dict[int, Any] = {}
        for each in extras:
            if each is not None:
                infos.append(each.infos)
                self._last_loose.update(each.loose)
                finals.update(each.finals)
                self._lost.update(each.raised)
        for slot in range(self._n) if self.observations.loose else ():
            self._last_loose.setdefault(slot, [None] * len(self.observations.loose))
        if copy or self._lost:
            arrays = self._rings.of(block).peek(block)
            if copy:
                arrays = [array.copy() for array in arrays]
            for slot in self._lost:
                self._last_loose[slot] = [None] * len(self.observations.loose)
                for array in arrays:
                    array[slot] = 0
        if not copy:
            arrays = self.hand_out(block)
        whole = self.finals(block, arrays, finals) if ended else {}
        observations = self.tree(arrays)
        return Batch(observations, arrays[-3], arrays[-2], arrays[-1], joined(infos), whole, news)

    def begin_from(self, last: list[np.ndarray]) -> None:
        """Take these arrays [n, ...], which `saw` writes, as the latest batch."""
        self._last = last

    def saw(self, slots: Sequence[int], leaves: Sequence[Any], loose: dict[int, list[Any]]) -> None:
        """Note rows that the caller got one by one: arrays [m, ...] of the fixed leaves are among `leaves`."""
        fixed = (leaf for leaf, about in zip(leaves, self.observations.leaves, strict=True) if about.fixed)
        for last, rows in zip(self._last, fixed, strict=True):
            last[slots] = rows
        self._last_loose.update(loose)

    def tree(self, arrays: list[np.ndarray]) -> Any:
        """Return the observation tree of handed-out arrays; loose leaves are lists of n values."""
        fixed, places = iter(arrays), self.observations.loose
        return self.observations.unflatten(
            [
                next(fixed) if leaf.fixed else [self._last_loose[slot][places.index(i)] for slot in range(self._n)]
                for i, leaf in enumerate(self.observations.leaves)
            ]
        )

    def finals(self, block: int, arrays: list[np.ndarray], told: dict[int, Any]) -> dict[int, Any]:
        """Return the terminal observations and infos of slots that moved on; `told` has what did not fit their rows."""
        views = self._rings.of(block).finals
        if not views:
            return {}
        found = {}
        for slot in (arrays[-2] | arrays[-1]).nonzero()[0].tolist():
            info, untold = told.get(slot, (None, None))
            found[slot] = (final_observation(self.observations, views, slot, untold), {} if info is None else info)
        return found

    def keep_row(self, block: int, slot: int) -> None:
        """Show a slot's row of the latest batch again, as the caller has left it."""
        self._copy_last(self._rings.of(block).observations(block), slot)

    def keep_final(self, block: int, slot: int) -> dict[int, Any] | None:
        """Make a slot's row of the latest batch its terminal observation; return the leaves without a fixed shape."""
        self._copy_last(self._rings.of(block).finals, slot)
        loose = self.observations.loose
        return dict(zip(loose, self._last_loose.get(slot, [None] * len(loose)))) or None

    def mark_cut(self, block: int, slot: int) -> None:
        """Make a slot's row one that is not a transition and ends its episode: reward 0, truncated."""
        for array, value in zip(self._rings.of(block).ends(block), (0.0, 0, 1, 0), strict=True):
            array[slot] = value

    def _copy_last(self, arrays: Sequence[np.ndarray | None], slot: int) -> None:
        fixed = [array for array in arrays if array is not None]
        for i, array in enumerate(fixed):
            array[slot] = self._last[i][slot] if self._last else 0

    def _hand_out_and_keep(self, block: int) -> list[np.ndarray]:
        self._last = arrays = self._standing.row(block)
        return arrays

    def carry_over(self, block: int, chosen: set[int]) -> None:
        """Copy the last observations to the rows of slots that are not reset."""
        if self.block < 0 or len(chosen) == self._n:
            return
        keep = [slot for slot in range(self._n) if slot not in chosen]
        before, after = self._rings.of(self.block), self._rings.of(block)
        for a, b in zip(before.observations(self.block), after.observations(block)):
            if a is not None and b is not None and block != self.block:
                b[keep] = a[keep]
        for array in after.ends(block):
            array[keep] = 0


def final_observation(
    layout: Layout, rows: Sequence[np.ndarray | None], slot: int, untold: dict[int, Any] | None
) -> Any:
    """Return a slot's terminal observation, from arrays [n, ...] of its leaves and the values that they lack."""
    if len(rows) == 1 and not untold and rows[0] is not None:
        return layout.unflatten([rows[0][slot].copy()])
    values = [None if array is None else array[slot].copy() for array in rows]
    for index, value in (untold or {}).items():
        values[index] = value
    return layout.unflatten(values)


class SlotRows:
    """Rows for requests about slots one by one: partial batches, which take the slots that have answered.

    Results lie in one block of the arena that is kept for this, a row per slot. A slot's row cannot change before its
    next request. Values without a fixed shape come with the answers and are kept here until they are read.

    Args:
        memory: the pool's rows.
        by_slot: the pool's workers.
        cast: as of `Layout.batch_writer`.
        remember: keep each slot's latest row that was read, so that it can be shown again: see `batches`.

    Attributes:
        block: this object's alone from now on.
        ring: where the block is.
        ends: rewards, terminated, truncated and valid of the block.
        batches: after a worker's death, shows rows again and marks those that are cut.
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
        """Make the rows of these slots zeros, and not valid."""
        for slot in slots:
            for array in (*self._rows, *self.ends):
                if array is not None:
                    array[slot] = 0
            self._loose[slot] = [None] * len(self._observations.loose)

    def write(self, actions: Any, slots: Sequence[int]) -> ByMessage:
        """Check an action for each of the slots and write them; return those that go by message.

        Raises Mismatch, about a row of the batch; then nothing was written.
        """
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
        """Return each worker of these slots, with its slots among them."""
        found: dict[int, list[int]] = {}
        for slot in slots:
            found.setdefault(self._by_slot[slot].index, []).append(slot)
        return ((self._by_slot[mine[0]], mine) for mine in found.values())

    @staticmethod
    def step_payload(worker: Worker, group: list[int], mailed: ByMessage) -> Any:
        """Return the payload of the request that steps these of the worker's slots."""
        if mailed:
            mine = {leaf: [by[s] if s in group else None for s in worker.slots] for leaf, by in mailed.items()}
            return group, mine
        return Chosen.one(group[0]) if len(group) == 1 else (group, None)

    def heard(self, extras: Extras) -> None:
        """Keep the observation leaves of an answer that are not in its rows."""
        self._loose.update(extras.loose)

    def read(self, slots: Sequence[int]) -> Any:
        """Return the observations of these slots, a tree of [m, ...]; copies."""
        places = self._observations.loose
        values = [
            [self._loose[slot][places.index(i)] for slot in slots] if array is None else array[slots]
            for i, array in enumerate(self._rows)
        ]
        if self._remember:
            self.batches.saw(slots, values, {slot: self._loose[slot] for slot in slots if slot in self._loose})
        return self._observations.unflatten(values)
