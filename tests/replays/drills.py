"""Environments and policies that fail in one step of one episode, each in its own way; named `drills.py:Corridor`."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from itertools import repeat
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from treadle.seeding import episode_env_seed, episode_policy_seed

BAD_EPISODE, BAD_STEP, LENGTH = 2, 30, 40
LATE_EPISODE, LATE_SEED = 3, 7
TIRED_SEED = episode_policy_seed(0, BAD_EPISODE)


def line_of(text: str, file: str = __file__) -> int:
    """The number of the only line of a file (the drills) that holds a text."""
    (found,) = [number for number, line in enumerate(Path(file).read_text().splitlines(), 1) if text in line]
    return found


class Corridor(gym.Env):
    """A walk of 40 steps. In step 30 of episode 2 (of the run with seed 0), or of what was reset with `bad_seed`, it
    fails: "divide", "segfault", "hang", "grip" (a hang that holds the interpreter) or "drift" (the clock decides).
    """

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, fault: str = "divide", bad_seed: int | None = None, render_mode: str | None = None) -> None:
        self.fault, self.render_mode = fault, render_mode
        self.bad_seed = episode_env_seed(0, BAD_EPISODE) if bad_seed is None else bad_seed
        self.episode, self.seed = 0, None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.seed, self.episode = seed, -1
        self.episode += 1
        self.t, self.x = 0, float(self.np_random.random()) + (options or {}).get("start", 0.0)
        return self.look(), {}

    def look(self) -> np.ndarray:
        return np.array([self.t, self.x])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.x += float(self.np_random.normal()) + float(action)
        if self.seed == self.bad_seed and self.t == BAD_STEP:
            self.fail()
        return self.look(), self.x, self.t >= LENGTH, False, {}

    def fail(self) -> None:
        if self.fault == "divide":
            self.x = 1 / (self.t - BAD_STEP)
        elif self.fault == "segfault":
            ctypes.string_at(0)
        elif self.fault == "hang":
            while True:
                time.sleep(0.01)
        elif self.fault == "grip":
            deque(repeat(None), maxlen=0)
        elif self.fault == "drift":
            self.x += time.monotonic()

    def render(self) -> np.ndarray:
        picture = np.zeros((16, 16, 3), np.uint8)
        picture[:, self.t % 16] = 255
        return picture


class Late(Corridor):
    """Fails in step 30 of its fourth episode after a reset with the seed 7."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.bad_seed = self.seed if self.episode == LATE_EPISODE and self.seed == LATE_SEED else -1
        return super().step(action)


class Tired:
    """A policy that gives up in step 30 of episode 2, if it is `tired`."""

    def __init__(self, tired: bool = True) -> None:
        self.tired = tired

    def reset(self, seed: int) -> None:
        self.t, self.rng = 0, np.random.default_rng(seed)

    def get_action(self, observation: np.ndarray) -> tuple[int, dict[str, Any]]:
        self.t += 1
        if self.tired and self.t == BAD_STEP and self.rng.bit_generator.seed_seq.entropy == TIRED_SEED:
            raise RuntimeError("tired")
        return int(self.rng.integers(2)), {}


class Brittle(Corridor):
    """Fails in step 30 of the first episode that begins beyond 0.8, whichever that is."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        found = super().reset(seed=seed, options=options)
        self.bad_seed = self.seed if self.x > 0.8 else -1
        return found
