"""Environments that know the truth: each observation says which environment, seed, episode, step and action it is of.

Whatever a vector hands out can be compared with that. One of them can be told to go wrong in one step; they come from
nothing but Gymnasium and NumPy, so they run in any library's workers.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

SLOT, SEED, EPISODE, T, ACTION = range(5)  # of an observation
WRONG, AT = 1, 3  # the environment that goes wrong, and its step
SAID = "the ball left the field"
SLOW = 1.5  # seconds


class Sealed(Exception):
    """Cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class TwoArguments(Exception):
    """Can be pickled, and not unpickled."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


class Truthful(gym.Env):
    """Observes float32[5]: slot, seed, episode, step, action; an episode has length + slot steps, rewards are steps.

    `fault`: what happens in step `AT` of its life: see `_go_wrong`; "init" and "reset" happen there.
    """

    observation_space = gs.Box(-1, 2**24, (5,), np.float32)
    action_space = gs.Discrete(4)

    def __init__(self, slot: int, fault: str = "", length: int = 4) -> None:
        self.slot, self.fault, self.length = slot, fault, length + slot
        self.seed_given, self.episode, self.t, self.steps = -1, -1, 0, 0
        if fault == "init":
            raise ValueError(SAID)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.fault == "reset":
            raise ValueError(SAID)
        self.seed_given = self.seed_given if seed is None else seed
        self.episode, self.t = self.episode + 1, 0
        return self._observed(0), {"t": 0}

    def step(self, action: Any) -> Any:
        self.t, self.steps = self.t + 1, self.steps + 1
        observed = self._observed(action)
        if self.fault and self.steps == AT:
            observed = self._go_wrong(observed)
        return observed, float(self.t), self.t >= self.length, False, {"t": self.t}

    def _observed(self, action: Any) -> np.ndarray:
        return np.array([self.slot, self.seed_given, self.episode, self.t, int(action)], np.float32)

    def _go_wrong(self, observed: np.ndarray) -> np.ndarray:
        fault = self.fault
        if fault == "raise":
            raise ValueError(SAID)
        if fault == "unpicklable":
            raise Sealed(SAID)
        if fault == "two arguments":
            raise TwoArguments(7, SAID)
        if fault == "exit":
            os._exit(3)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            time.sleep(3600)
        if fault == "slow":
            time.sleep(SLOW)
        return {"shape": observed[:1], "precise": np.full(5, 1e300)}.get(fault, observed)


def truthful(n: int, fault: str = "", length: int = 4) -> list[Callable[[], Truthful]]:
    """Functions that make n of them; number `WRONG` goes wrong."""
    return [partial(Truthful, slot, fault if slot == WRONG else "", length) for slot in range(n)]


__all__ = ["ACTION", "AT", "EPISODE", "SAID", "SEED", "SLOT", "SLOW", "WRONG", "T", "Truthful", "truthful"]
