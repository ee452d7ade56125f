"""A zoo of environments that run, and cannot be trusted: each breaks one promise that an environment makes.

`faults.py` has those that fail where everybody sees it. `check_env` finds them all: `MISBEHAVIOURS` says under which
word.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

LENGTH = 25  # steps of an episode

MISBEHAVIOURS = {
    "nothing": "",
    "ignores its seed": "determinism",
    "draws from np.random": "determinism",
    "draws from random": "determinism",
    "draws from np.random for nothing": "randomness",
    "remembers earlier episodes": "determinism",
    "shares state in its class": "determinism",
    "asks for its pid": "determinism",
    "sums up a set of texts": "determinism",
    "other reward each time": "determinism",
    "float64 for float32": "space",
    "another shape": "space",
    "no key": "space",
    "out of bounds": "bounds",
    "NaN observation": "nan",
    "NaN reward": "nan",
    "writes over observations": "reused",
    "info is None": "interface",
    "four values": "interface",
    "reward is a text": "interface",
    "terminated is a number": "interface",
    "reset without info": "interface",
    "reset takes no seed": "interface",
    "raises in step 200": "raises",
    "prints": "prints",
    "leaves a thread": "threads",
    "leaves children": "children",
    "closes once": "close",
    "holds a lock": "state",
    "leaks": "memory",
    "deterministic by default": "gymnasium",
}


class Misbehaves(gym.Env):
    """Observes a dict of float32[3] and a number, from its own generator; `how`: a key of `MISBEHAVIOURS`."""

    action_space = gs.Discrete(3)
    steps_of_all = 0  # of all environments of this class in a process

    def __init__(self, how: str = "nothing") -> None:
        assert how in MISBEHAVIOURS, how
        self.how, self.t, self.steps, self.over = how, 0, 0, False
        self.observation_space = gs.Dict({"a": gs.Box(0, 1, (3,), np.float32), "b": gs.Discrete(1000)})
        self.buffer, self.kept = np.zeros(3, np.float32), list[bytes]()
        if how == "holds a lock":
            self.lock = threading.Lock()
        if how == "leaves a thread":
            threading.Thread(target=threading.Event().wait, daemon=True, name="the renderer").start()
        if how == "leaves children":
            self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        if how == "reset takes no seed":
            self.reset = self._reset_alone  # type: ignore[method-assign, assignment]
        if how == "deterministic by default":
            self.reset = self._reset_by_default  # type: ignore[method-assign, assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=None if self.how == "ignores its seed" else seed)
        if self.how == "ignores its seed":
            self._np_random = np.random.default_rng()
        self.t = 0
        if self.how == "leaks":
            self.kept.append(os.urandom(2**18) * 4)
        return self._observed() if self.how == "reset without info" else (self._observed(), {})

    def _reset_alone(self) -> Any:
        return Misbehaves.reset(self)

    def _reset_by_default(self, *, seed: int | None = 7, options: dict[str, Any] | None = None) -> Any:
        return Misbehaves.reset(self, seed=seed, options=options)

    def _observed(self) -> Any:
        how, drawn = self.how, self.np_random.random(3).astype(np.float32)
        if how == "writes over observations":
            self.buffer[:] = drawn
            drawn = self.buffer
        late = self.t == 20
        number = {
            "draws from np.random": lambda: np.random.randint(1000),
            "draws from random": lambda: random.randrange(1000),
            "remembers earlier episodes": lambda: self.steps % 1000,
            "shares state in its class": lambda: type(self).steps_of_all % 1000,
            "asks for its pid": lambda: os.getpid() % 1000,
            "sums up a set of texts": lambda: hash("a text") % 1000,
        }.get(how, lambda: 7)()
        found = {"a": drawn, "b": number}
        if how == "float64 for float32" and late:
            found["a"] = drawn.astype(np.float64)
        if how == "another shape" and late:
            found["a"] = drawn[:1]
        if how == "no key" and late:
            del found["b"]
        if how == "out of bounds" and late:
            found["a"] = drawn + np.float32(1)
        if how == "NaN observation" and late:
            found["a"] = drawn * np.float32("nan")
        return found

    def step(self, action: int) -> Any:
        how, late = self.how, self.t == 20
        self.t, self.steps = self.t + 1, self.steps + 1
        type(self).steps_of_all += 1
        if how == "draws from np.random for nothing":
            np.random.random()
        if how == "prints":
            print(f"step {self.t}")
        if how == "raises in step 200" and self.steps == 200:
            raise ZeroDivisionError("the pole has no length")
        reward: Any = float(action)
        if how == "other reward each time":
            reward += float(np.random.default_rng().random())
        if late:
            reward = {"NaN reward": float("nan"), "reward is a text": "1.0"}.get(how, reward)
        over: Any = 3 if how == "terminated is a number" and late else self.t >= LENGTH
        info: Any = None if how == "info is None" and late else {}
        observed = self._observed()
        return (observed, reward, over, info) if how == "four values" else (observed, reward, over, False, info)

    def close(self) -> None:
        if self.how == "closes once" and self.over:
            raise RuntimeError("it is closed already")
        self.over = True


__all__ = ["LENGTH", "MISBEHAVIOURS", "Misbehaves"]
