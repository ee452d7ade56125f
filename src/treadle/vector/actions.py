"""Second thoughts about refused actions: what Gymnasium's vectors let pass although it is not in the action space.

Called only after the pool has refused a batch (nothing was sent), so it costs nothing where actions are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from treadle.errors import BadAction

T = TypeVar("T")


class Mender:
    """Makes a refused batch of actions fit, where what is wrong with it does not matter.

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


__all__ = ["Mender"]
