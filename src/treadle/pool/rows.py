"""Rows: where the numbers of every slot lie in the arena, and quick ways to write and read them.

A *block* is one batch: for every observation leaf an array [n, *shape], rewards, the two end flags, a `valid` flag
(False on rows that are no transition: a reset in NEXT_STEP mode) and, where slots move on within a step, the same
leaves again for the terminal observations. Actions have one array a leaf for all blocks. `done[slot]` holds the
number of the last request whose row is whole; it is written last, so after a death it tells which slot was at work
and which rows are good. `began`, `episode` and `seed` (-1: none) are written when a slot's episode begins, so that the
caller can say of a dead worker in which step of which episode it was: `began` counts the worker's steps until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    def plan(cls, plan: Plan, n: int, layout: Layout, finals: bool) -> BlockFields:
        def leaves() -> tuple[Field | None, ...]:
            return tuple(
                plan.add(leaf.dtype, (n, *(leaf.shape or ()))) if leaf.fixed else None for leaf in layout.leaves
            )

        observations = leaves()
        return cls(
            observations,
            plan.add("f8", (n,)),
            plan.add("?", (n,)),
            plan.add("?", (n,)),
            plan.add("?", (n,)),
            leaves() if finals else (),
        )


@dataclass(frozen=True)
class RowFields:
    """All rows of a pool, as planned by the caller and mapped by everyone."""

    actions: tuple[Field | None, ...]
    done: Field
    began: Field
    episode: Field
    seed: Field
    blocks: tuple[BlockFields, ...]

    @classmethod
    def plan(cls, plan: Plan, n: int, observations: Layout, actions: Layout, blocks: int, finals: bool) -> RowFields:
        acts = tuple(plan.add(leaf.dtype, (n, *(leaf.shape or ()))) if leaf.fixed else None for leaf in actions.leaves)
        done, began, episode, seed = (plan.add("i8", (n,)) for _ in range(4))
        return cls(
            acts,
            done,
            began,
            episode,
            seed,
            tuple(BlockFields.plan(plan, n, observations, finals) for _ in range(blocks)),
        )


Write = Callable[[Any], Any]


class BlockView:
    """One block as a worker writes it: slots lo..hi-1, addressed from 0. Everything is bound once, used for ever."""

    def __init__(self, arena: Arena, fields: BlockFields, layout: Layout, lo: int, hi: int) -> None:
        self.rewards = view(arena.array(fields.rewards))[lo:hi]
        self.terminated = view(arena.array(fields.terminated))[lo:hi]
        self.truncated = view(arena.array(fields.truncated))[lo:hi]
        self.valid = view(arena.array(fields.valid))[lo:hi]
        self._all_false = view(np.zeros(hi - lo, np.bool_))
        self._all_true = view(np.ones(hi - lo, np.bool_))
        self.writes = _writers(arena, fields.observations, layout, lo, hi)
        self.write_finals = _writers(arena, fields.finals, layout, lo, hi) if fields.finals else []

    def fresh(self) -> None:
        """No ends, all rows transitions: most batches need no more."""
        self.terminated[:] = self._all_false
        self.truncated[:] = self._all_false
        self.valid[:] = self._all_true


def _writers(arena: Arena, fields: tuple[Field | None, ...], layout: Layout, lo: int, hi: int) -> list[Write]:
    arrays = [None if field is None else arena.array(field) for field in fields]

    def row(array: np.ndarray | None, slot: int) -> np.ndarray | None:
        return None if array is None else array[slot : slot + 1].reshape(array.shape[1:])

    return [layout.row_writer([row(array, slot) for array in arrays]) for slot in range(lo, hi)]


class Rows:
    """A worker's view of the rows of its slots lo..hi-1."""

    def __init__(
        self, arena: Arena, fields: RowFields, observations: Layout, actions: Layout, lo: int, hi: int
    ) -> None:
        self._arena, self._fields, self._layout = arena, fields, observations
        self._lo, self._hi = lo, hi
        self._blocks: dict[int, BlockView] = {}
        self.done = view(arena.array(fields.done))[lo:hi]
        self.began = view(arena.array(fields.began))[lo:hi]
        self.episode = view(arena.array(fields.episode))[lo:hi]
        self.seed = view(arena.array(fields.seed))[lo:hi]
        arrays = [None if field is None else arena.array(field) for field in fields.actions]
        self.read_actions = actions.batch_reader(arrays, lo, hi)

    def block(self, index: int) -> BlockView:
        view = self._blocks.get(index)
        if view is None:
            fields = self._fields.blocks[index]
            view = self._blocks[index] = BlockView(self._arena, fields, self._layout, self._lo, self._hi)
        return view


@dataclass(frozen=True)
class Ground:
    """What a worker needs to find its rows and its line: sent once, after its hello."""

    segments: list[tuple[int, int]]
    line: Any
    pool_bell: Any
    owners: Field
    rows: RowFields | None
    observations: Layout | None
    actions: Layout | None
    arena_bells: bool = True
