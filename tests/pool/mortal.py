"""An environment that dies where and when a file says so, and shows what became of it."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from pool.kit import Pool
from treadle.program.base import OnEnd
from zoo.programs import gym_env

LENGTH = 5  # steps of an episode
SEED, EPISODE, T, ACTION, LIFE = range(5)  # columns of an observation


class Mortal(gym.Env[np.ndarray, int]):
    """Observes int64[5]: its last seed (-1: none), episode, step, last action, life (0: the first worker's).

    Before each init, reset, step and call it looks for a file "<slot>.<phase>" whose text says what to do, once:
    "exit" or "kill" end the process, "hang" never returns, "raise" raises ValueError, "wait" goes on when the file
    "<slot>.go" is there.
    """

    observation_space: gym.Space = gs.Box(-1, 2**63 - 1, (5,), np.int64)
    action_space = gs.Discrete(4)

    def __init__(self, slot: int, folder: str) -> None:
        self.slot, self.folder = slot, Path(folder)
        self.seed, self.episode, self.t = -1, -1, 0
        lives = self.folder / f"{slot}.lives"
        self.life = len(lives.read_text()) if lives.exists() else 0
        lives.write_text("x" * (self.life + 1))
        self.fate("init")

    def fate(self, phase: str) -> None:
        order = self.folder / f"{self.slot}.{phase}"
        if not order.exists():
            return
        what = order.read_text()
        order.unlink()
        if what == "exit":
            os._exit(9)
        elif what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "hang":
            threading.Event().wait()
        elif what == "raise":
            raise ValueError(f"told to fail in {phase}")
        while what == "wait" and not (self.folder / f"{self.slot}.go").exists():
            time.sleep(0.002)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.fate("reset")
        self.seed = self.seed if seed is None else seed
        self.episode += 1
        self.t = 0
        return self.observe(0), {} if options is None else {"options": options}

    def step(self, action: int) -> Any:
        self.fate("step")
        self.t += 1
        return self.observe(action), float(self.t), self.t >= LENGTH, False, {}

    def observe(self, action: int) -> Any:
        return np.array([self.seed, self.episode, self.t, action, self.life], np.int64)

    def ask(self, add: int) -> int:
        self.fate("call")
        return self.slot + add


def doom(folder: Path, slot: int, phase: str, what: str = "exit") -> None:
    """Let a slot's environment meet its fate in its next init, reset, step or call."""
    (folder / f"{slot}.{phase}").write_text(what)


def mortals(folder: Path, on_end: OnEnd, n: int = 4, kind: type[Mortal] = Mortal, **options: Any) -> Pool:
    """n slots, two a worker unless told otherwise."""
    factories = [gym_env(kind, on_end=on_end, kwargs={"slot": i, "folder": str(folder)}) for i in range(n)]
    options.setdefault("workers", 2)
    options.setdefault("on_failure", "restart")
    return Pool(factories, **options)
