"""Rollouts: [steps, n, ...] memory that workers write into, so that the results of a step are stored by being made.

To the rest of the pool a rollout is a ring like that of the batches (`treadle.memory.ring`): a step is *aimed* at one
of its blocks, and everything else goes its usual way. What is handed out is lent, like a batch: a ring is written again
only when nobody holds an array of it any more, neither one over all its steps nor one of a single step that a policy
has kept. So two take turns in a loop that lets go of each before it has the next but one, and a caller that keeps ten
has ten. The memory of one that has become too small is given back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.errors import UsageError
from treadle.memory.ring import Ring, RolloutArrays

if TYPE_CHECKING:
    from treadle.lockstep.lockstep import Lockstep


class Rollouts:
    """The rollouts of one lockstep schedule."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep, self._memory = lockstep, lockstep.memory

    def take(self, steps: int) -> tuple[int, RolloutArrays, Any]:
        """Memory for `steps` steps that nobody holds, made if there is none, and what is to be seen now in its row 0.

        Returns the block of its first step, its arrays, and that row as a tree.

        Raises UsageError (nothing was ever reset, or a call is pending), ArenaError, and what a dead or late worker
        raises.
        """
        lockstep, rings, standing = self._lockstep, self._memory.rings, self._memory.standing
        lockstep._settle()
        now = lockstep._batches.block
        if now < 0:
            raise UsageError("there is nothing to go on from: reset first")
        fitting = [each for each in rings.all if each is not standing and each.steps >= steps]
        ring = next((each for each in fitting if each.free), None) or self._opened(steps, now)
        rings.announce(ring)
        standing.target = ring
        arrays = ring.whole(steps)
        before = rings.of(now).peek(now)
        seen = [each for each in arrays.observations if each is not None]
        for row, source in zip(seen, before):
            row[0] = source
        return ring.first, arrays, lockstep._batches.tree([*(each[0] for each in seen), *before[-3:]])

    def aim(self, block: int | None) -> None:
        """Let the next step go to a block of a rollout; None: to any of the standing ones again."""
        self._memory.standing.aimed = block

    def last_actions(self) -> list[np.ndarray | None]:
        """The actions as they were last given to the environments, one array [n, *shape] a leaf."""
        return self._memory.arrays(self._memory.fields.actions)

    def _opened(self, steps: int, now: int) -> Ring:
        """A new ring; those that are too small from now on are given back."""
        rings, standing = self._memory.rings, self._memory.standing
        ring = rings.open(steps)
        for each in rings.all:
            if each is not standing and each.steps < steps and now not in each and each.free:
                rings.drop(each)
        return ring
