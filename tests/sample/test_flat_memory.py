"""The caller keeps nothing of an episode that it has let go."""

import gc
import tracemalloc
from typing import Any

import gymnasium as gym
import numpy as np

import treadle

EARLY, LATE = 500, 4000


class Short(gym.Env[np.ndarray, int]):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), 1.0, True, False, {}


def test_nothing_of_an_episode_that_is_let_go_stays() -> None:
    """3,500 more episodes add less than 8 bytes each: 62 were measured while all lengths were kept."""
    kept = {}
    tracemalloc.start()
    try:
        for episode in treadle.collect(Short, episodes=LATE + 1, seed=0, workers=1):
            if episode.index in (EARLY, LATE):
                gc.collect()
                kept[episode.index] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept[LATE] - kept[EARLY] < 8 * (LATE - EARLY)
