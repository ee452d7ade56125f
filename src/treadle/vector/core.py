"""What the parts of a vector have in common: its engine, and the rules of its calls."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from treadle.errors import UsageError
from treadle.pool.lockstep import Lockstep
from treadle.pool.pool import Pool
from treadle.vector.actions import Mender
from treadle.vector.env_slot import Ask
from treadle.vector.infos import BatchForm
from treadle.vector.stats import Counts
from treadle.vector.turns import Turns


@dataclass(eq=False)
class Core:
    """Attributes:
    pool, lockstep: the workers, and how they are stepped.
    turns: which call may follow which.
    form: how batches are handed out.
    counts: of what was asked for.
    mode: when a slot moves on after an episode.
    single_action_space: of one slot.
    partly: has it been used for partial batches? Their rows are in no batch of all slots.
    """

    pool: Pool
    lockstep: Lockstep
    turns: Turns
    form: BatchForm
    counts: Counts
    mode: AutoresetMode
    single_action_space: gym.Space
    partly: bool = False

    def mender(self, steps: Lockstep) -> Mender:
        """Has second thoughts about actions for the slots of `steps`, the lockstep or a part of it."""
        skips = self.mode is AutoresetMode.NEXT_STEP  # then a slot ignores its action in the step after an end
        return Mender(self.single_action_space, len(steps.slots), lambda: steps.call(Ask.OVER) if skips else ())

    def check_whole(self, what: str) -> None:
        """Raises UsageError where there is no last batch of all slots, from which `what` (rollouts, groups) go on."""
        if self.partly:
            raise UsageError(f"{what} go on from the last batch of all slots: use another vector for partial batches")

    def check_groups(self) -> None:
        """Raises UsageError where slots cannot be stepped in groups."""
        self.check_whole("groups")
        if any(about.metadata.get("together") for about in self.pool.descriptions):
            raise UsageError("rows of a vectorised environment are stepped together: there are no groups of them")


__all__ = ["Core"]
