"""Leases of rollouts: the same as of batches, for memory that comes and goes.

A rollout's memory, its *reel*, is written again only when nobody holds an array of it any more: neither one over all
its steps nor one of a single step that a policy has kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle.pool.arena import Arena, Field
from treadle.pool.lease import Leases
from treadle.pool.rows import RolloutFields


@dataclass(eq=False)
class Reel:
    """One rollout's memory, and who holds it."""

    fields: RolloutFields
    segment: int
    held: list[weakref.ref[np.ndarray]] = field(default_factory=list)
    recipes: list[tuple[tuple[int, ...], np.dtype, Any, int, int]] = field(default_factory=list)


class RolloutLeases(Leases):
    """Leases of the standing blocks, and of those of rollouts."""

    def __init__(self, arena: Arena, fields: list[list[Field]], *, views: bool = False) -> None:
        super().__init__(arena, fields, views=views)
        self._arena = arena
        self.reels: list[Reel] = []
        self._latest: Reel | None = None

    def _hand_out_beyond(self, block: int) -> list[np.ndarray]:
        reel = self._latest
        if reel is None or block not in reel.fields:
            reel = self._latest = self.reel_of(block)
        arrays = self._rows(reel, block)
        if not self._views:  # rewards and flags of one step go no further than the rollout that is made of them
            reel.held += map(weakref.ref, arrays[:-3])
        return arrays

    def peek(self, block: int) -> list[np.ndarray]:
        return super().peek(block) if block <= self._spare else self._rows(self.reel_of(block), block)

    def reel_of(self, block: int) -> Reel:
        return next(reel for reel in self.reels if block in reel.fields)

    def add(self, fields: RolloutFields, segment: int) -> Reel:
        reel = Reel(fields, segment)
        row = fields.block(fields.first)
        leaves = [each for each in row.observations if each is not None]
        for each in (*leaves, row.rewards, row.terminated, row.truncated):
            shape, dtype = each.shape, each.dtype
            stride = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            reel.recipes.append((shape, dtype, *self._arena.buffer(each), stride))
        self.reels.append(reel)
        return reel

    def free(self, reel: Reel) -> bool:
        """Does nobody hold an array of it, and is no late worker going to write to it?"""
        if any(block in reel.fields for block in self._pinned):
            return False
        if any(ref() is not None for ref in reel.held):
            return False
        reel.held.clear()
        return True

    def arrays(self, reel: Reel, fields: Sequence[Field | None]) -> list[np.ndarray | None]:
        """Fresh arrays over fields of a rollout, the caller's to keep."""
        arrays = [None if each is None else self._arena.array(each) for each in fields]
        if not self._views:
            reel.held += [weakref.ref(array) for array in arrays if array is not None]
        return arrays

    @staticmethod
    def _rows(reel: Reel, block: int) -> list[np.ndarray]:
        t = block - reel.fields.first
        return [np.ndarray(s, d, memory, start + t * stride) for s, d, memory, start, stride in reel.recipes]


__all__ = ["Reel", "RolloutLeases"]
