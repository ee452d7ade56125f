"""Rows: a worker writes the rows of its slots, and reads their actions. `ring.py` has what lies where."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.memory.arena import view
from treadle.memory.ring import Ring, Rings
from treadle.spaces import Layout
from treadle.spaces.layout import flat_view

Write = Callable[[Any], Any]


class Stage:
    """Writes the blocks of a rollout for a worker, by writers that are bound once and not to one block.

    Writers for every row would be a kilobyte each, which is more than small observations themselves. For images they
    were cold memory to run through, and writing took half as long again. So there is one writer a slot. A single leaf
    of `DIRECT` bytes or more is written to the block at hand. Other layouts are written to rows of the worker's own,
    from which a batch is copied at once.

    Attributes:
        writes: one a slot.
        arrays: the arrays that are copied once a batch is whole; None for a leaf that is not copied.
        at_hand: the only leaf of the block at hand, as a flat view and as an array [k, *shape].
    """

    def __init__(self, layout: Layout, k: int) -> None:
        only = [leaf for leaf in layout.leaves if leaf.nbytes >= DIRECT] if len(layout.leaves) == 1 else []
        self.at_hand: list[Any] = [None, None]
        self.arrays: list[np.ndarray | None]
        if only and flat_view(only[0], np.zeros(only[0].shape or (), only[0].dtype)) is not None:
            self.arrays = [None]
            self.writes = [_moving_writer(layout, self.at_hand, i) for i in range(k)]
            return
        self.arrays = [np.zeros((k, *(each.shape or ())), each.dtype) if each.fixed else None for each in layout.leaves]
        self.writes = row_writers(self.arrays, layout, k)


DIRECT = 1024  # bytes of a leaf from which on a second copy costs more than an exact check in Python


def _moving_writer(layout: Layout, at_hand: list[Any], i: int) -> Write:
    """Return a writer of row i of the array [k, *shape] that is at hand; the layout has one leaf.

    It checks as the writers of `spaces.layout` do: type and shape here, the dtype by assigning to a view.
    """
    shape: Any = layout.leaves[0].shape
    size = math.prod(shape)
    place = slice(i * size, (i + 1) * size)

    def slow(value: Any) -> Any:
        return layout.row_writer([at_hand[1][i]])(value)

    def write(value: Any) -> Any:
        if type(value) is np.ndarray and value.shape == shape:
            try:
                at_hand[0][place] = value.ravel()
                return None
            except (TypeError, ValueError, NotImplementedError):
                return slow(value)
        return slow(value)

    return write


class BlockView:
    """One block as a worker writes it: slots lo..hi-1, addressed from 0. Everything is bound once.

    Attributes:
        staged: (rows in the arena, rows of the stage) to be copied once a batch is whole, see `settle`; () for none.
        direct: the rows of the only leaf where a stage writes to them itself, as a flat view and as an array.
    """

    def __init__(self, ring: Ring, index: int, layout: Layout, lo: int, hi: int, stage: Stage | None = None) -> None:
        self.rewards, self.terminated, self.truncated, self.valid = (view(each)[lo:hi] for each in ring.ends(index))
        self._all_false = view(np.zeros(hi - lo, np.bool_))
        self._all_true = view(np.ones(hi - lo, np.bool_))
        self.staged: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
        self.direct: tuple[Any, np.ndarray] | None = None
        self.write_finals: list[Write] = []
        rows = [None if each is None else each[lo:hi] for each in ring.observations(index)]
        if stage is None:
            self.writes = row_writers(rows, layout, hi - lo)
            return
        self.writes = stage.writes
        self.staged = tuple((r, a) for r, a in zip(rows, stage.arrays) if r is not None and a is not None)
        if rows and rows[0] is not None and not self.staged:
            self.direct = view(rows[0].reshape(-1)), rows[0]

    def fresh(self) -> None:
        """Mark no row as an end, and all rows as transitions, as in most batches."""
        self.terminated[:] = self._all_false
        self.truncated[:] = self._all_false
        self.valid[:] = self._all_true

    def settle(self) -> None:
        """Copy the staged rows to their place."""
        for rows, source in self.staged:
            rows[...] = source

    def settle_row(self, i: int) -> None:
        """Copy one staged row to its place."""
        for rows, source in self.staged:
            rows[i] = source[i]


def row_writers(arrays: list[np.ndarray | None], layout: Layout, k: int) -> list[Write]:
    """Return a writer for each of the k rows of the arrays."""

    def row(array: np.ndarray | None, i: int) -> np.ndarray | None:
        return None if array is None else array[i : i + 1].reshape(array.shape[1:])

    return [layout.row_writer([row(array, i) for array in arrays]) for i in range(k)]


class Rows:
    """A worker's view of the rows of its slots lo..hi-1. Raises OSError when they cannot be mapped here."""

    def __init__(self, rings: Rings, lo: int, hi: int) -> None:
        self._rings, self.layout = rings, rings.observations
        self._lo, self._hi = lo, hi
        self._blocks: dict[int, BlockView] = {}
        self._finals: dict[int, list[Write]] = {}  # of each ring, by its first block
        self._stage: Stage | None = None
        arena, fields, actions = rings.arena, rings.fields, rings.actions
        words = (fields.done, fields.began, fields.own, fields.episode, fields.seed)
        self.done, self.began, self.own, self.episode, self.seed = (view(arena.array(each))[lo:hi] for each in words)
        self.stepped, self.timed, self.resetting, self.moved = (view(e)[lo:hi] for e in arena.array(fields.times))
        arrays = [None if field is None else arena.array(field) for field in fields.actions]
        read = self.read_actions = actions.batch_reader(arrays, lo, hi)
        if actions.loose:  # a request may come without any; they are then all None
            nothing = dict.fromkeys(actions.loose, [None] * (hi - lo))
            self.read_actions = lambda mailed=None: read({**nothing, **(mailed or {})})
        self.block(0)

    def block(self, index: int) -> BlockView:
        """Return the block with this number, to be written until another is asked for.

        Raises OSError when its ring is new and cannot be mapped here.
        """
        found = self._blocks.get(index) or self._bound(index)
        if found.direct is not None:
            self._stage.at_hand[:] = found.direct  # type: ignore[union-attr]
        return found

    def _bound(self, index: int) -> BlockView:
        ring, stage = self._rings.of(index), None
        if ring.first not in self._finals:
            self._forget()
            finals = [None if each is None else each[self._lo : self._hi] for each in ring.finals]
            self._finals[ring.first] = row_writers(finals, self.layout, self._hi - self._lo) if finals else []
        if ring.first:
            stage = self._stage = self._stage or Stage(self.layout, self._hi - self._lo)
        found = self._blocks[index] = BlockView(ring, index, self.layout, self._lo, self._hi, stage)
        found.write_finals = self._finals[ring.first]
        return found

    def _forget(self) -> None:
        """Drop the blocks and writers of rings that do not exist any more."""
        known = {ring.first for ring in self._rings.all}
        self._finals = {first: writers for first, writers in self._finals.items() if first in known}
        self._blocks = {i: found for i, found in self._blocks.items() if any(i in ring for ring in self._rings.all)}
