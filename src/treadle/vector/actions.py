"""Second thoughts about refused actions: what Gymnasium's vectors let pass although it is not in the action space.

Called only after the pool has refused a batch (nothing was sent), so it costs nothing where actions are right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

log = logging.getLogger("treadle")


class Mender:
    """Makes a refused batch of actions fit, where that takes nothing away from what the caller meant.

    - The action of a slot whose episode has ended is ignored in NEXT_STEP mode, so it may be anything.
    - Floats of a wider type than the Box asks for are rounded to it; said once through the `treadle` logger.

    Args:
        space: of one action.
        n: slots.
        ignored: asks which slots will ignore their next action.
    """

    def __init__(self, space: gym.Space, n: int, ignored: Callable[[], Sequence[bool]]) -> None:
        self._space, self._n, self._ignored = space, n, ignored
        self._told = False

    def mend(self, actions: Any) -> Any | None:
        """Actions to try instead; None when there is nothing to mend."""
        if isinstance(self._space, gs.Box) and self._space.dtype is not None and self._space.dtype.kind == "f":
            rounded = self._rounded(actions)
            if rounded is not None:
                return rounded
        if not isinstance(self._space, gs.Discrete | gs.MultiDiscrete | gs.MultiBinary | gs.Box):
            return None
        if not isinstance(actions, list | tuple | np.ndarray) or np.shape(actions)[:1] != (self._n,):
            return None
        ignored = self._ignored()
        if not any(ignored):
            return None
        return [self._any() if skip else action for action, skip in zip(actions, ignored, strict=True)]

    def _rounded(self, actions: Any) -> np.ndarray | None:
        if not isinstance(actions, np.ndarray) or actions.dtype.kind != "f" or actions.dtype == self._space.dtype:
            return None
        with np.errstate(over="ignore"):
            rounded = actions.astype(self._space.dtype)
        if not np.array_equal(np.isfinite(rounded), np.isfinite(actions)):
            return None
        if not self._told:
            self._told = True
            log.warning(
                "actions come as %s, the action space is %s: they are rounded to that (this is said once)",
                actions.dtype,
                self._space.dtype,
            )
        return rounded

    def _any(self) -> np.ndarray:
        space = self._space
        start = space.start if isinstance(space, gs.Discrete | gs.MultiDiscrete) else 0
        return np.full(space.shape or (), start, space.dtype)


__all__ = ["Mender"]
