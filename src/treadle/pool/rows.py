"""Rows: where the numbers of every slot lie in the arena, and quick ways to write and read them.

A *block* is one batch: for every observation leaf an array [n, *shape], rewards, the two end flags, a `valid` flag
(False on rows that are no transition: a reset in NEXT_STEP mode) and, where slots move on within a step, the same
leaves again for the terminal observations. Actions have one array a leaf for all blocks. `done[slot]` holds the
number of the last request whose row is whole; it is written last, so after a death it tells which slot was at work
and which rows are good. `began`, `episode` and `seed` (-1: none) are written when a slot's episode begins, so that the
caller can say of a dead worker in which step of which episode it was: `began` counts the slot's steps until then, which
are the worker's steps of all its slots and the slot's `own`, in which others were left out.

A *rollout* is a run of blocks, numbered on from the others, that lie one after the other in memory: every leaf is one
array [steps, n, *shape], and a step of all slots writes one row of it. Observations have a row more, for what is seen
before the first step: block t writes observation t + 1. The rows of terminal observations are shared by all its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from treadle.pool.arena import Arena, Field, Plan, view
from treadle.spaces import Layout


@dataclass(frozen=True)
class BlockFields:
    observations: tuple[Field | None, ...]  # None: a leaf without a fixed shape
    rewards: Field
    terminated: Field
    truncated: Field
    valid: Field
    finals: tuple[Field | None, ...]

    @classmethod
    def plan(cls, plan: Plan, n: int, layout: Layout, finals: bool, *steps: int, **more: Any) -> Self:
        """Those of n slots; with a number of `steps`, of a rollout, of which `more` is known."""
        found: list[Any] = [plan_leaves(plan, layout, *(each + 1 for each in steps), n)]
        found += [plan.add(code, (*steps, n)) for code in "d???"]
        found += [plan_leaves(plan, layout, n) if finals else ()]
        return cls(*found, **more)


def plan_leaves(plan: Plan, layout: Layout, *rows: int) -> tuple[Field | None, ...]:
    """An array [*rows, *shape] for every fixed leaf; None for a loose one."""
    return tuple(plan.add(leaf.dtype, (*rows, *(leaf.shape or ()))) if leaf.fixed else None for leaf in layout.leaves)


@dataclass(frozen=True)
class RolloutFields(BlockFields):
    """One rollout: the blocks `first` to `first + steps - 1`. Fields are [steps, n, ...], observations a row more; the
    finals are [n, ...], of all blocks alike, and () where slots do not move on within a step.

    Attributes:
        actions: written by the caller; nobody in a worker reads them.
    """

    first: int
    steps: int
    actions: tuple[Field | None, ...]

    def __contains__(self, block: object) -> bool:
        return isinstance(block, int) and 0 <= block - self.first < self.steps

    def block(self, index: int) -> BlockFields:
        """What block `index` writes."""
        t = index - self.first
        return BlockFields(
            tuple(None if field is None else field.row(t + 1) for field in self.observations),
            self.rewards.row(t),
            self.terminated.row(t),
            self.truncated.row(t),
            self.valid.row(t),
            self.finals,
        )


class Blocks(Sequence[BlockFields]):
    """The blocks of a pool by number: those that stand as long as the pool does, then those of rollouts, which come
    and go. Iteration and length are of the standing ones."""

    def __init__(self, standing: Sequence[BlockFields]) -> None:
        self._standing = tuple(standing)
        self.rollouts: list[RolloutFields] = []

    def __len__(self) -> int:
        return len(self._standing)

    def __iter__(self) -> Iterator[BlockFields]:
        return iter(self._standing)

    def __getitem__(self, index: Any) -> Any:
        if index < len(self._standing):
            return self._standing[index]
        return self.rollout_of(index).block(index)

    def rollout_of(self, index: int) -> RolloutFields:
        """The rollout that a block belongs to. Raises IndexError when there is none."""
        for rollout in self.rollouts:
            if index in rollout:
                return rollout
        raise IndexError(f"there is no block {index}")


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


@dataclass(frozen=True)
class RowFields:
    """All rows of a pool, as planned by the caller and mapped by everyone."""

    actions: tuple[Field | None, ...]
    done: Field
    began: Field
    own: Field
    episode: Field
    seed: Field
    blocks: Blocks

    @classmethod
    def plan(cls, plan: Plan, n: int, observations: Layout, actions: Layout, blocks: int, finals: bool) -> RowFields:
        found: list[Any] = [plan_leaves(plan, actions, n)]
        found += [plan.add("i8", (n,)) for _ in range(5)]
        found += [Blocks([BlockFields.plan(plan, n, observations, finals) for _ in range(blocks)])]
        return cls(*found)


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
