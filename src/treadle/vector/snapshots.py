"""States and snapshots of a vector: what its environments are doing, kept, given back, written to a file."""

from __future__ import annotations

import os
from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from treadle.errors import UsageError
from treadle.pool import checkpoint
from treadle.pool.lockstep import Lockstep
from treadle.states import snapshot_file
from treadle.vector.env_slot import Ask, OwnValue, SlotState
from treadle.vector.orders import states_by_slot
from treadle.vector.turns import Turns, one_at_a_time

FORMAT = "treadle vector snapshot 2"


class SnapshotFace:
    """The part of `VectorEnv` that keeps states. Every method raises ClosedVector and AlreadyPending."""

    num_envs: int
    action_space: gym.Space
    single_action_space: gym.Space
    _lockstep: Lockstep
    _turns: Turns
    _calls: int
    _group_steps: np.ndarray
    _resets: np.ndarray

    @one_at_a_time
    def get_states(self) -> tuple[SlotState, ...]:
        """The complete state of every slot: its environment's, with wrappers and generators, and whether its episode
        has just ended. They pickle, and any slot of a vector of the same environments takes them.

        Raises StateError (as TaskRaised) for an environment that cannot be captured.
        """
        self._turns.check_free("call_async")
        return tuple(self._lockstep.call(Ask.GET_STATE))

    @one_at_a_time
    def set_states(self, states: Sequence[SlotState], slots: Sequence[int] | None = None) -> None:
        """Put every slot into a state, or some slots.

        Args:
            states: one for each of them.
            slots: which; None: all.

        Raises UsageError for a wrong number of states, StateError for one of another environment.
        """
        given = states_by_slot(states, slots, self.num_envs, SlotState)
        self._turns.check_free("call_async")
        self._lockstep.call(Ask.SET_STATE, OwnValue(given), slots=list(given))
        self._lockstep._stale -= given.keys()
        if self._lockstep.recovery is not None:
            self._lockstep.recovery.placed(given.keys())

    @one_at_a_time
    def snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file: the slots' states, their counters of episodes and steps, the last observations,
        and the generators of the action spaces. The file is there whole, or not at all."""
        states = self.get_states()
        kept = {
            "format": FORMAT,
            "states": states,
            "checkpoint": checkpoint.take(self._lockstep),
            "calls": self._calls,
            "group_steps": self._group_steps.copy(),
            "resets": self._resets.copy(),
            "spaces": (self.action_space, self.single_action_space),
        }
        snapshot_file.write(path, kept)

    @one_at_a_time
    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on where a snapshot was taken, here or in another process. The vector must have been made the same way.

        The file is a pickle: read only what you trust.

        Raises UsageError for a file that is no snapshot, or of another number of slots; StateError for one of other
        environments.
        """
        kept = snapshot_file.read(path, FORMAT, "a vector of environments")
        if len(kept["states"]) != self.num_envs:
            raise UsageError(f"{os.fspath(path)} has {len(kept['states'])} slots, this vector has {self.num_envs}")
        self.set_states(kept["states"])
        checkpoint.put(self._lockstep, kept["checkpoint"])
        self._calls = kept["calls"]
        self._group_steps[:] = kept.get("group_steps", 0)
        self._resets[:] = kept["resets"]
        for space, before in zip((self.action_space, self.single_action_space), kept["spaces"], strict=True):
            space.__dict__.update(before.__dict__)
