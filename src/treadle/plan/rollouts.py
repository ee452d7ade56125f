"""What a batch of rollouts returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RolloutBatch:
    """n sequences of actions, each played from its state until it or the episode ended.

    Attributes:
        rewards: float64[n, T], T the longest sequence; 0 after the end.
        lengths: int64[n], how many actions were applied.
        terminated, truncated: bool[n], how it ended; both False where the actions ran out first.
        states: n states (or handles) at the end; None when they were not asked for.
        observations: None when not asked for; "last": n observations at the end, an array where they fit together;
            "all": one array (or list) of `lengths[i]` observations for each item.
    """

    rewards: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    states: list[Any] | None = None
    observations: Any = None

    @property
    def returns(self) -> np.ndarray:
        """float64[n]: the sum of each item's rewards."""
        return self.rewards.sum(axis=1)

    def __len__(self) -> int:
        return len(self.lengths)
