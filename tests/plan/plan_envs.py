"""Environments that the tests of planning step: small, with something to get wrong."""

import os
from typing import Any

import gymnasium as gym
import numpy as np

from treadle.plan.checking import difference
from treadle.plan.env import PlanEnv


def same(found: Any, expected: Any) -> None:
    """Assert that two results are the same, byte for byte."""
    where = difference(expected, found, "")
    assert where is None, where


class Walk(gym.Env):
    """A point that walks: draws noise of its own, counts, ends beyond 10, and misbehaves on request.

    Actions 0 and 1 step; 2 raises; 3 ends the process; 4 sleeps for a long time.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.t = self.np_random.random(), 0
        return self._seen(), {"t": 0}

    def step(self, action: int) -> Any:
        if action == 2:
            raise KeyError("two")
        if action == 3:
            os._exit(7)
        if action == 4:
            import signal

            signal.pause()
        self.t += 1
        self.at += action + 0.1 * self.np_random.random()
        return self._seen(), float(self.at), self.at > 10, False, {"t": self.t}

    def _seen(self) -> np.ndarray:
        return np.array([self.at, self.t])


class Abacus(PlanEnv):
    """A planning environment of one's own: its state is an array, its observation the same array."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def setup(self) -> None:
        self.beads = np.zeros(2)

    def apply_reset(self, seed: int | None = None) -> Any:
        self.beads[:] = 0 if seed is None else seed
        return self.beads, {}

    def apply_action(self, action: int) -> Any:
        self.beads += [1, action]
        return self.beads, float(action), bool(self.beads[0] >= 5), False, {}

    def get_state(self) -> np.ndarray:
        return self.beads.copy()

    def set_state(self, state: np.ndarray) -> None:
        self.beads[:] = state

    def get_image(self) -> np.ndarray:
        return np.full((2, 2, 3), int(self.beads[0]), np.uint8)
