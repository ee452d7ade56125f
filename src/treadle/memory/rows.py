"""Rows: how a worker writes the rows of its slots, and reads their actions. What lies where: `ring.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.memory.arena import Arena, Field, view
from treadle.memory.ring import BlockFields, RolloutFields, RowFields
from treadle.spaces import Layout


@dataclass(frozen=True)
class Mapping:
    """What a worker is told of rollouts (Op.MAP).

    Attributes:
        segments: all of the arena's, as far as they go.
        rollout: the new one.
        gone: segment of each rollout that is no more, by its first block.
    """

    segments: list[tuple[int, int]]
    rollout: RolloutFields
    gone: dict[int, int]


Write = Callable[[Any], Any]


class Stage:
    """How a worker writes the blocks of a rollout: by writers that are bound once, and to no block in particular.

    Writers for every row would be a kilobyte each: more than small observations themselves, and for images cold memory
    to run through (measured: half as long again as the writing). So there is one a slot. With one leaf that is no
    number it writes to the block at hand; else to rows of the worker's own, from which a batch is copied at once.

    Attributes:
        writes: one a slot.
        arrays: what is copied once a batch is whole; None for a leaf that is not.
    """

    def __init__(self, layout: Layout, k: int) -> None:
        leaf = layout.leaves[0] if len(layout.leaves) == 1 else None
        self._at_hand: list[Any] = [None, None]
        self.arrays: list[np.ndarray | None]
        if leaf is not None and leaf.fixed and leaf.nbytes >= DIRECT and _can_be_viewed(leaf.dtype):
            self.arrays = [None]
            self.writes = [_moving_writer(layout, self._at_hand, i) for i in range(k)]
            return
        self.arrays = [np.zeros((k, *(each.shape or ())), each.dtype) if each.fixed else None for each in layout.leaves]
        self.writes = _row_writers(self.arrays, layout, k)

    def turn_to(self, rows: tuple[Any, np.ndarray]) -> None:
        """The block at hand: its only leaf, as a flat view and as an array [k, *shape]."""
        self._at_hand[:] = rows


DIRECT = 1024  # bytes of a leaf from which on a second copy costs more than an exact check in Python


def _can_be_viewed(dtype: Any) -> bool:
    """Can memoryviews of it be assigned to?"""
    one = np.zeros(1, dtype)
    try:
        view(one)[:] = one
    except (ValueError, NotImplementedError):
        return False
    return True


def _moving_writer(layout: Layout, at_hand: list[Any], i: int) -> Write:
    """A writer of row i of whatever array [k, *shape] is at hand; the layout has one leaf. It checks as those of
    `spaces.rows` do: type and shape here, the dtype by assigning to a view."""
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
    """One block as a worker writes it: slots lo..hi-1, addressed from 0. Everything is bound once, used for ever.

    Attributes:
        staged: (rows in the arena, rows of the stage) to be copied once a batch is whole, see `settle`; () for none.
        direct: the rows of the only leaf where a stage writes to them itself, as a flat view and as an array.
    """

    def __init__(
        self, arena: Arena, fields: BlockFields, layout: Layout, lo: int, hi: int, stage: Stage | None = None
    ) -> None:
        flags = (fields.rewards, fields.terminated, fields.truncated, fields.valid)
        self.rewards, self.terminated, self.truncated, self.valid = (view(arena.array(each))[lo:hi] for each in flags)
        self._all_false = view(np.zeros(hi - lo, np.bool_))
        self._all_true = view(np.ones(hi - lo, np.bool_))
        self.staged: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
        self.direct: tuple[Any, np.ndarray] | None = None
        if stage is None:
            self.writes = _writers(arena, fields.observations, layout, lo, hi)
            self.write_finals = _writers(arena, fields.finals, layout, lo, hi) if fields.finals else []
            return
        self.writes, self.write_finals = stage.writes, []
        rows = [None if field is None else arena.array(field)[lo:hi] for field in fields.observations]
        self.staged = tuple((r, a) for r, a in zip(rows, stage.arrays) if r is not None and a is not None)
        if rows and rows[0] is not None and not self.staged:
            self.direct = view(rows[0].reshape(-1)), rows[0]

    def fresh(self) -> None:
        """No ends, all rows transitions: most batches need no more."""
        self.terminated[:] = self._all_false
        self.truncated[:] = self._all_false
        self.valid[:] = self._all_true

    def settle(self) -> None:
        """Copy what was staged to its place."""
        for rows, source in self.staged:
            rows[...] = source

    def settle_row(self, i: int) -> None:
        """The same for one row."""
        for rows, source in self.staged:
            rows[i] = source[i]


def _writers(arena: Arena, fields: tuple[Field | None, ...], layout: Layout, lo: int, hi: int) -> list[Write]:
    return _row_writers([None if field is None else arena.array(field)[lo:hi] for field in fields], layout, hi - lo)


def _row_writers(arrays: list[np.ndarray | None], layout: Layout, k: int) -> list[Write]:
    """A writer for each of the k rows of the arrays."""

    def row(array: np.ndarray | None, i: int) -> np.ndarray | None:
        return None if array is None else array[i : i + 1].reshape(array.shape[1:])

    return [layout.row_writer([row(array, i) for array in arrays]) for i in range(k)]


class Rows:
    """A worker's view of the rows of its slots lo..hi-1."""

    def __init__(
        self, arena: Arena, fields: RowFields, observations: Layout, actions: Layout, lo: int, hi: int
    ) -> None:
        self._arena, self._fields, self.layout = arena, fields, observations
        self._lo, self._hi = lo, hi
        self._blocks: dict[int, BlockView] = {}
        self._finals: dict[int, list[Write]] = {}  # of rollouts
        self._stage: Stage | None = None
        words = (fields.done, fields.began, fields.own, fields.episode, fields.seed)
        self.done, self.began, self.own, self.episode, self.seed = (view(arena.array(each))[lo:hi] for each in words)
        arrays = [None if field is None else arena.array(field) for field in fields.actions]
        read = self.read_actions = actions.batch_reader(arrays, lo, hi)
        if actions.loose:  # a request may come without any: then they are all None
            nothing = dict.fromkeys(actions.loose, [None] * (hi - lo))
            self.read_actions = lambda mailed=None: read({**nothing, **(mailed or {})})

    def block(self, index: int) -> BlockView:
        """The block with this number, to be written until another is asked for."""
        found = self._blocks.get(index) or self._bound(index)
        if found.direct is not None:
            self._stage.turn_to(found.direct)  # type: ignore[union-attr]
        return found

    def _bound(self, index: int) -> BlockView:
        fields = self._fields.blocks[index]
        if index < len(self._fields.blocks):
            stage = None
        else:
            stage = self._stage = self._stage or Stage(self.layout, self._hi - self._lo)
        found = self._blocks[index] = BlockView(self._arena, fields, self.layout, self._lo, self._hi, stage)
        if stage is not None and fields.finals:  # all blocks of a rollout have them in common
            first = self._fields.blocks.rollout_of(index).first
            if first not in self._finals:
                self._finals[first] = _writers(self._arena, fields.finals, self.layout, self._lo, self._hi)
            found.write_finals = self._finals[first]
        return found

    def map(self, order: Mapping) -> None:
        """Learn of a new rollout and forget others. In the caller's own process the arena knows already."""
        self._arena.join(order.segments)
        blocks = self._fields.blocks
        if all(rollout.first != order.rollout.first for rollout in blocks.rollouts):
            blocks.rollouts.append(order.rollout)
        for rollout in [rollout for rollout in blocks.rollouts if rollout.first in order.gone]:
            blocks.rollouts.remove(rollout)
        known = range(len(blocks))
        for index in [i for i in self._blocks if i not in known and not any(i in r for r in blocks.rollouts)]:
            del self._blocks[index]
        for first in order.gone:
            self._finals.pop(first, None)
        for segment in order.gone.values():
            self._arena.drop(segment)
