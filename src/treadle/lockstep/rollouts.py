"""Rollouts: [steps, n, ...] memory that workers write into, so that the results of a step are stored by being made.

To the rest of the pool a rollout is a run of blocks with higher numbers than the standing ones (`rows.py`): a step is
*aimed* at one of them, and everything else goes its usual way. What is handed out is lent, like a batch (`buffers.py`):
a rollout is written again only when nobody holds an array of it any more, neither one over all its steps nor one of a
single step that a policy has kept. So two take turns in a loop that lets go of each
before it has the next but one, and a caller that keeps ten has ten. The memory of one that has become too small is
given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.errors import UsageError, WorkerError
from treadle.memory.ring import RolloutMemory
from treadle.memory.rows import Mapping
from treadle.wire.messages import Op
from treadle.worker import life

if TYPE_CHECKING:
    from treadle.lockstep.lockstep import Lockstep


@dataclass(frozen=True)
class RolloutBuffer:
    """A rollout's arrays while it is filled; None for a leaf without a fixed shape.

    Attributes:
        first: the block of its first step; step t goes to block first + t.
        observations: one array [steps + 1, n, *shape] a leaf; row 0 is what is there to be seen now.
        actions: one array [steps, n, *shape] a leaf.
        rewards, terminated, truncated, valid: [steps, n].
        seen: the same as row 0 of the observations, as a tree.
    """

    first: int
    observations: list[np.ndarray | None]
    actions: list[np.ndarray | None]
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    seen: Any


class Rollouts:
    """The rollouts of one lockstep schedule."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep, self._memory, self._buffers = lockstep, lockstep.memory, lockstep.memory.buffers
        self._blocks = self._memory.fields.blocks
        self._next = len(self._blocks)  # numbers are never used again: workers keep views by number

    def take(self, steps: int) -> RolloutBuffer:
        """Memory for `steps` steps that nobody holds, made if there is none, and what is to be seen now in its row 0.

        Raises UsageError (nothing was ever reset, or a call is pending), ArenaError, and what a dead or late worker
        raises.
        """
        lockstep, buffers = self._lockstep, self._buffers
        lockstep._settle()
        now = lockstep._batches.block
        if now < 0:
            raise UsageError("there is nothing to go on from: reset first")
        fitting = [rollout for rollout in buffers.rollouts if rollout.fields.steps >= steps]
        rollout = next((each for each in fitting if each.free), None) or self._grown(steps, now)
        rollout.lent.clear()  # it is free, so they are references to nothing, and would be looked through every time
        fields = rollout.fields
        observations = rollout.arrays([None if each is None else each.rows(steps + 1) for each in fields.observations])
        before = buffers.peek(now)
        for row, source in zip([each for each in observations if each is not None], before):
            row[0] = source
        first = iter([each[0] for each in observations if each is not None])
        seen = lockstep._batches.tree([*first, *before[-3:]])
        actions = rollout.arrays([None if each is None else each.rows(steps) for each in fields.actions])
        flags = (fields.rewards, fields.terminated, fields.truncated, fields.valid)
        rewards, terminated, truncated, valid = rollout.arrays([each.rows(steps) for each in flags])
        return RolloutBuffer(fields.first, observations, actions, rewards, terminated, truncated, valid, seen)

    def aim(self, block: int | None) -> None:
        """Let the next step go to a block of a rollout; None: to any of the standing ones again."""
        self._buffers.aimed = block

    def last_actions(self) -> list[np.ndarray | None]:
        """The actions as they were last given to the environments, one array [n, *shape] a leaf."""
        return self._memory.arrays(self._memory.fields.actions)

    def _grown(self, steps: int, now: int) -> RolloutMemory:
        """A new rollout, made known to every worker; those that are too small from now on are given back."""
        memory, buffers = self._memory, self._buffers
        useless = [each for each in buffers.rollouts if each.fields.steps < steps and now not in each.fields]
        gone = {each.fields.first: each.segment for each in useless if each.free}
        fields, segment = memory.plan_rollout(self._next, steps)
        self._next += steps
        rollout = RolloutMemory(memory.arena, fields, segment)
        buffers.rollouts.append(rollout)
        try:
            self._tell_all(Mapping(memory.arena.segments, fields, gone))
        except BaseException:
            gone[fields.first] = segment  # some may know of it and some not: it is never used
            raise
        finally:
            buffers.rollouts[:] = [each for each in buffers.rollouts if each.fields.first not in gone]
            self._blocks.rollouts[:] = [each for each in self._blocks.rollouts if each.first not in gone]
            for number in gone.values():
                memory.arena.drop(number, free=True)
        return rollout

    def _tell_all(self, order: Mapping) -> None:
        """A request to every worker, a call in the books. An interrupted one is finished like any other."""
        lockstep = self._lockstep
        pool = lockstep.pool
        joint = lockstep._new_joint(Op.CALL, -1, range(pool.n))
        # one that starts anew gets the whole memory, and a dropped one nothing
        alive = [worker for worker in pool.in_slot_order() if worker.state in life.ALIVE]
        orders = [(worker, dict.fromkeys(worker.slots, order), worker.slots) for worker in alive]
        lockstep._launch(joint, orders, op=Op.MAP)
        try:
            joint.collect(pool.calls)
        except WorkerError:
            lockstep._joint = None
            raise
        lockstep._joint = None
        if lockstep.recovery is not None:
            lockstep.recovery.landed(joint, None)
        lockstep._raise_first(joint.extras, None)
