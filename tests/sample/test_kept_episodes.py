"""Episodes of large observations that are held: they stay as they are, and hold no descriptors."""

from __future__ import annotations

import os
import resource
from typing import Any

import gymnasium as gym
import numpy as np

from treadle import collect


class Frames(gym.Env[Any, Any]):
    """Episodes of six frames of 24 KB, all the same number: the episode's own."""

    observation_space = gym.spaces.Box(0, 255, (96, 256), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.number, self.left = int(self.np_random.integers(256)), 6
        return np.full((96, 256), self.number, np.uint8), {}

    def step(self, action: int) -> Any:
        self.left -= 1
        return np.full((96, 256), self.number, np.uint8), float(self.number), self.left == 0, False, {}


def test_episodes_that_are_kept_stay_as_they_are() -> None:
    kept = []
    for i, episode in enumerate(collect(Frames, episodes=40, workers=2)):
        if i % 3:
            kept.append(episode)
        assert (episode.observations == episode.rewards[0]).all()
    for episode in kept:
        assert (episode.observations == episode.rewards[0]).all()


def test_as_many_episodes_are_held_as_there_is_memory_for() -> None:
    """A mapping holds no descriptor."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(128, used + 60), limits[1]))
    try:
        episodes = list(collect(Frames, episodes=200, workers=1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert all((episode.observations == episode.rewards[0]).all() for episode in episodes)
    assert len(os.listdir("/proc/self/fd")) == used
