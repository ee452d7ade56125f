"""What the parts of a vector have in common: its engine, and the rules of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from treadle.errors import BadAction, UsageError
from treadle.lockstep.lockstep import Lockstep
from treadle.pool.pool import Pool
from treadle.vector.env_slot import Ask
from treadle.vector.infos import BatchForm
from treadle.vector.stats import Counts
from treadle.vector.turns import Turns

T = TypeVar("T")


class Mender:
    """Makes a batch of actions fit that the pool has refused, where what is wrong with it does not matter: what
    Gymnasium's vectors let pass although it is not in the action space. It costs nothing where actions are right.

    The action of a slot whose episode has ended is ignored in NEXT_STEP mode, so it may be anything.

    Args:
        space: of one action.
        n: slots.
        ignored: asks which slots will ignore their next action.
    """

    def __init__(self, space: gym.Space, n: int, ignored: Callable[[], Sequence[bool]]) -> None:
        self._space, self._n, self._ignored = space, n, ignored

    def given(self, take: Callable[[Any], T], actions: Any) -> T:
        """What `take` makes of the actions, or of mended ones where it refuses them. Raises BadAction, and what `take`
        raises."""
        try:
            return take(actions)
        except BadAction:
            mended = self.mend(actions)
            if mended is None:
                raise
            return take(mended)

    def mend(self, actions: Any) -> Any | None:
        """Actions to try instead; None when there is nothing to mend."""
        if not isinstance(self._space, gs.Discrete | gs.MultiDiscrete | gs.MultiBinary | gs.Box):
            return None
        if not isinstance(actions, list | tuple | np.ndarray) or not np.iterable(actions) or len(actions) != self._n:
            return None
        ignored = self._ignored()
        if not any(ignored):
            return None
        return [self._any() if skip else action for action, skip in zip(actions, ignored, strict=True)]

    def _any(self) -> np.ndarray:
        space = self._space
        start = space.start if isinstance(space, gs.Discrete | gs.MultiDiscrete) else 0
        return np.full(space.shape or (), start, space.dtype)


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

    def mender(self) -> Mender:
        """Has second thoughts about actions."""
        skips = self.mode is AutoresetMode.NEXT_STEP  # then a slot ignores its action in the step after an end
        return Mender(self.single_action_space, self.pool.n, lambda: self.lockstep.call(Ask.OVER) if skips else ())

    def check_whole(self) -> None:
        """Raises UsageError where there is no last batch of all slots, from which rollouts go on."""
        if self.partly:
            raise UsageError("rollouts go on from the last batch of all slots: use another vector for partial batches")
