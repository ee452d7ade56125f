"""The ring: memory that steps are written to, on the caller's side; and where in it the numbers of every slot lie.

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

Small arrays (flags, rewards, the observations of small environments) are copied when a batch is handed out: a copy
costs less than lending. So whoever collects rewards in a list does not keep the images of the same batches from being
written. The others are lent (`lent.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import call
from typing import Any, Self

import numpy as np

from treadle.errors import LayoutsDiffer
from treadle.memory.arena import Arena, Field, Plan
from treadle.memory.lent import Buffer, references
from treadle.spaces import Layout

# bytes up to which a copy (0.15 us) costs less than an array over the memory and a reference to it (0.3 us)
SMALL = 4096


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


class RolloutMemory(Buffer):
    """The memory of one rollout: arrays [steps, n, ...] in a segment of their own."""

    def __init__(self, arena: Arena, fields: RolloutFields, segment: int) -> None:
        super().__init__()
        self.fields, self.segment, self._arena = fields, segment, arena
        row = fields_of(fields.block(fields.first))
        self._rows = [(f.shape, f.dtype, *arena.buffer(f), f.dtype.itemsize * math.prod(f.shape)) for f in row]

    def arrays(self, fields: Sequence[Field | None]) -> list[Any]:
        """Fresh arrays over some of its fields, the caller's to keep; None for None."""
        arrays = [None if field is None else self._arena.array(field) for field in fields]
        self.lent += references(array for array in arrays if array is not None)
        return arrays

    def rows(self, block: int) -> list[np.ndarray]:
        """What one of its blocks has of what a batch is made of; nothing is noted."""
        t = block - self.fields.first
        return [np.ndarray(s, d, memory, start + t * stride) for s, d, memory, start, stride in self._rows]


class BatchBuffers:
    """Blocks 0..count-1 of one pool; the last is the spare that is only ever copied from: when the caller keeps more
    batches than there are blocks, it gets real copies. Blocks with higher numbers are those of rollouts.

    Args:
        fields: for each block the fields handed out, all blocks alike.

    Attributes:
        aimed: the block that requests go to, whatever is free; see `rollouts.py`.
        copies: batches that had to be copied because all blocks were held.
    """

    def __init__(self, arena: Arena, fields: list[list[Field]]) -> None:
        self._recipes = [[(f.shape, f.dtype, *arena.buffer(f)) for f in block] for block in fields]
        # how each array is made: a copy of one that is there, or a new one over the block, which is then lent
        self._large = [i for i, f in enumerate(fields[0]) if math.prod(f.shape) * f.dtype.itemsize > SMALL]
        new: Callable[..., np.ndarray] = np.ndarray
        self._makers: list[list[Callable[[], np.ndarray]]] = [
            [partial(new, *recipe) if i in self._large else new(*recipe).copy for i, recipe in enumerate(block)]
            for block in self._recipes
        ]
        self.spare = len(fields) - 1
        self.blocks = [Buffer() for _ in fields]
        self.rollouts: list[RolloutMemory] = []
        self._latest: RolloutMemory | None = None
        self.aimed: int | None = None
        self.copies = 0

    def take(self) -> int:
        """The block for the next request: the lowest free one, so that a short ring stays in the cache."""
        if self.aimed is not None:
            return self.aimed
        for number, block in enumerate(self.blocks):
            for ref in block.lent:
                if ref() is not None:
                    break
            else:
                if not block.pins:
                    return number
        return self.spare

    def hand_out(self, block: int) -> list[np.ndarray]:
        """The block's arrays, the caller's to keep."""
        if block > self.spare:
            if self._latest is None or block not in self._latest.fields:
                self._latest = self.rollout_of(block)
            arrays = self._latest.rows(block)
            # rewards and flags of one step go no further than the rollout that is made of them
            self._latest.lent += references(arrays[:-3])
            return arrays
        arrays = list(map(call, self._makers[block]))
        if block != self.spare:
            self.blocks[block].lent = list(references(map(arrays.__getitem__, self._large))) if self._large else []
            return arrays
        self.copies += 1
        for i in self._large:
            arrays[i] = arrays[i].copy()
        return arrays

    def peek(self, block: int) -> list[np.ndarray]:
        """The block's arrays, not lent: read and let go before the next request."""
        if block > self.spare:
            return self.rollout_of(block).rows(block)
        return [np.ndarray(*recipe) for recipe in self._recipes[block]]

    def rollout_of(self, block: int) -> RolloutMemory:
        """The rollout that a block belongs to."""
        return next(rollout for rollout in self.rollouts if block in rollout.fields)

    def pin(self, block: int) -> None:
        """A late worker may still write here: keep the block out of service."""
        (self.blocks[block] if block <= self.spare else self.rollout_of(block)).pins.add(block)

    def unpin(self, block: int) -> None:
        """It has answered, or is dead. Idempotent."""
        for buffer in (*self.blocks, *self.rollouts):
            buffer.pins.discard(block)


def fields_of(block: BlockFields) -> list[Field]:
    """What is handed out of a block: observation leaves, rewards, the two end flags."""
    leaves = [field for field in block.observations if field is not None]
    return [*leaves, block.rewards, block.terminated, block.truncated]


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
