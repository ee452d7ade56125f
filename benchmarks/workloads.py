"""What the benchmarks step: a real cheap env, a real image env, and synthetic ones that isolate one cost each.

A workload is an env, a row is a workload times a number of envs and is written `cartpole-128`. Every contestant builds
its envs with the same `Workload.make`, seeds env i with `SEED + i` and is handed the same action batches, made before
any clock starts.

The synthetic envs do a fixed amount of *work* and do not watch a clock: an env that spins until 100 us have passed gets
its step for free while the operating system runs another process, which flatters whoever has more processes than cores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

SEED = 7
EPISODE_STEPS = (200, 1000)
# Turns of `_busy` that take about 100 us in CPython 3.11 on the machine where the first table was made. A constant, not
# calibrated at start: all contestants of a run must do exactly the same work.
TURNS_PER_100_US = 1400


def _busy(turns: int, x: int) -> int:
    """Runs `turns` turns of a linear congruential generator from x: plain Python that nothing can skip or cache."""
    for _ in range(turns):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
    return x


class EpisodicEnv(gym.Env[NDArray[Any], Any]):
    """An env whose episodes last 200 to 1000 steps, drawn at reset from the env's own generator.

    Even lengths end terminated, odd ones truncated. Subclasses set the spaces and say what a step observes.
    """

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(2)
        self._left = 0
        self._odd = False

    def observe(self, action: int) -> NDArray[Any]:
        """Does the step's work and returns its observation."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(*EPISODE_STEPS))
        self._odd = self._left % 2 == 1
        return self.observe(0), {}

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        self._left -= 1
        over = self._left <= 0
        return self.observe(action), 1.0, over and not self._odd, over and self._odd, {}


class PythonEnv(EpisodicEnv):
    """A step of about `microseconds` of pure Python that returns a fresh float32[8]."""

    def __init__(self, microseconds: int) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
        self._turns = TURNS_PER_100_US * microseconds // 100
        self._x = 1

    def observe(self, action: int) -> NDArray[Any]:
        self._x = _busy(self._turns, self._x + int(action))
        return np.full(8, self._x / 2**31, np.float32)


class ImageEnv(EpisodicEnv):
    """A step that computes nothing and returns one of four ready uint8[84, 84, 4]: what is left is moving the image."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
        self._images = [np.full((84, 84, 4), shade, np.uint8) for shade in (0, 85, 170, 255)]

    def observe(self, action: int) -> NDArray[Any]:
        return self._images[self._left & 3]


def make_pong() -> gym.Env[Any, Any]:
    """Makes ALE/Pong-v5 as registered: uint8[210, 160, 3] RGB frames, the id's own frameskip and sticky actions."""
    import ale_py  # registers the ids; here, because this also runs in worker processes

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else every env prints a banner
    gym.register_envs(ale_py)
    return gym.make("ALE/Pong-v5")


@dataclass(frozen=True)
class Workload:
    """One env to step.

    name: the first part of its rows' names. about: one phrase for the table. make: builds one env; picklable by module
    path, so that it works under every start method. n_actions: the size of its Discrete action space.
    """

    name: str
    about: str
    make: Callable[[], gym.Env[Any, Any]]
    n_actions: int

    def actions(self, n_envs: int, batches: int = 64) -> NDArray[np.int64]:
        """Random actions, int64[batches, n_envs], the same on every call; contestants cycle through them."""
        return np.random.default_rng(SEED).integers(self.n_actions, size=(batches, n_envs))


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("cartpole", "CartPole-v1, float32[4]", partial(gym.make, "CartPole-v1"), 2),
        Workload("pong", "ALE/Pong-v5, raw uint8[210, 160, 3]", make_pong, 6),
        Workload("python100us", "100 us of Python, float32[8]", partial(PythonEnv, 100), 2),
        Workload("python1ms", "1 ms of Python, float32[8]", partial(PythonEnv, 1000), 2),
        Workload("images", "no work, uint8[84, 84, 4]", ImageEnv, 2),
    )
}

DEFAULT_ROWS = ("cartpole-8", "cartpole-128", "pong-8", "python100us-8", "images-32")


@dataclass(frozen=True)
class Row:
    """A workload and the number of envs that step it together."""

    workload: Workload
    n_envs: int

    @property
    def name(self) -> str:
        return f"{self.workload.name}-{self.n_envs}"


def parse_row(name: str) -> Row:
    """Reads a row's name, `WORKLOAD-N` with any N >= 1. Raises ValueError that lists the workloads."""
    workload, _, n_envs = name.rpartition("-")
    if workload not in WORKLOADS or not n_envs.isdecimal() or int(n_envs) < 1:
        raise ValueError(f"no row {name!r}: write WORKLOAD-N, N envs of one of {', '.join(WORKLOADS)}")
    return Row(WORKLOADS[workload], int(n_envs))
