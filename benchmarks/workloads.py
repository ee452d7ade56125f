"""What the benchmarks step: a real cheap env, a real image env, and synthetic ones that isolate one cost each.

A workload is an env, a row is a workload times a number of envs and is written `cartpole-128`. Every contestant builds
its envs with the same `Workload.make`, seeds env i with `SEED + i` and is handed the same action batches, made before
any clock starts.

The synthetic envs do a fixed amount of *work* and do not watch a clock: an env that spins until 100 us have passed gets
its step for free while the operating system runs another process, which flatters whoever has more processes than cores.
(`sleep1ms` is meant to wait, and does.)
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from numpy.typing import NDArray

SEED = 7
EPISODE_STEPS = (200, 1000)
# Turns of `compute` that take about 100 us in CPython 3.11 on the machine where the first table was made. A constant,
# not calibrated at start: all contestants of a run must do exactly the same work.
TURNS_PER_100_US = 1400


def compute(turns: int, x: int) -> int:
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
        self._x = compute(self._turns, self._x + int(action))
        return np.full(8, self._x / 2**31, np.float32)


class NestedEnv(PythonEnv):
    """The same work with an observation of four leaves in a Dict within a Dict."""

    def __init__(self, microseconds: int) -> None:
        super().__init__(microseconds)
        box = partial(spaces.Box, -1.0, 1.0, dtype=np.float32)
        body = spaces.Dict({"joints": box(shape=(8,)), "speed": box(shape=(3,))})
        view = spaces.Box(0, 255, (7, 7, 3), np.uint8)
        self.observation_space: Any = spaces.Dict({"body": body, "goal": box(shape=(2,)), "view": view})

    def observe(self, action: int) -> Any:
        self._x = compute(self._turns, self._x + int(action))
        at = self._x / 2**31
        body = {"joints": np.full(8, at, np.float32), "speed": np.full(3, at, np.float32)}
        return {"body": body, "goal": np.full(2, at, np.float32), "view": np.full((7, 7, 3), self._x & 255, np.uint8)}


class ExponentialEnv(EpisodicEnv):
    """A step of 1 ms on average, its length drawn anew from an exponential distribution by the env's own generator.

    sleeps: it waits that long, as an env does that talks to a simulator; else it computes about as long.
    """

    def __init__(self, *, sleeps: bool) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
        self._sleeps, self._x = sleeps, 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._lengths: list[float] = []
        return super().reset(seed=seed, options=options)

    def observe(self, action: int) -> NDArray[Any]:
        if not self._lengths:
            self._lengths = self.np_random.exponential(size=256).tolist()
        length = self._lengths.pop()
        if self._sleeps:
            time.sleep(1e-3 * length)
        else:
            self._x = compute(int(10 * TURNS_PER_100_US * length), self._x + int(action))
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


def make_atari() -> gym.Env[Any, Any]:
    """Makes Pong as agents learn it: AtariPreprocessing, then four frames, uint8[4, 84, 84]."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gym.register_envs(ale_py)
    return FrameStackObservation(AtariPreprocessing(gym.make("ALE/Pong-v5", frameskip=1)), 4)


def make_doorkey() -> gym.Env[Any, Any]:
    """Makes MiniGrid's DoorKey: a dict of an image, a direction and the mission as text."""
    import minigrid

    gym.register_envs(minigrid)
    return gym.make("MiniGrid-DoorKey-8x8-v0")


@dataclass(frozen=True)
class Workload:
    """One env to step.

    name: the first part of its rows' names. about: one phrase for the table. make: builds one env; picklable by module
    path, so that it works under every start method. n_actions: the size of its Discrete action space; 0: it has a Box,
    of `reach` (numbers, highest absolute value). seen: what a policy looks at where observations are dicts.
    """

    name: str
    about: str
    make: Callable[[], gym.Env[Any, Any]]
    n_actions: int
    reach: tuple[int, float] = (0, 0.0)
    seen: str | None = None

    @property
    def action_space(self) -> spaces.Space[Any]:
        size, high = self.reach
        return spaces.Discrete(self.n_actions) if self.n_actions else spaces.Box(-high, high, (size,), np.float32)

    def actions(self, n_envs: int, batches: int = 64) -> NDArray[Any]:
        """Random actions, int64[batches, n_envs] (or float32[batches, n_envs, size]), the same on every call;
        contestants cycle through them."""
        generator = np.random.default_rng(SEED)
        if self.n_actions:
            return generator.integers(self.n_actions, size=(batches, n_envs))
        size, high = self.reach
        return generator.uniform(-high, high, (batches, n_envs, size)).astype(np.float32)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("cartpole", "CartPole-v1, float32[4]", partial(gym.make, "CartPole-v1"), 2),
        Workload("frozenlake", "FrozenLake-v1, a number; infos of one number", partial(gym.make, "FrozenLake-v1"), 4),
        Workload("taxi", "Taxi-v4, a number; infos of a number and a mask", partial(gym.make, "Taxi-v4"), 6),
        Workload(
            "blackjack", "Blackjack-v1, three numbers; episodes of a step or two", partial(gym.make, "Blackjack-v1"), 2
        ),
        Workload("pong", "ALE/Pong-v5, raw uint8[210, 160, 3]", make_pong, 6),
        Workload("halfcheetah", "HalfCheetah-v5, float64[17]", partial(gym.make, "HalfCheetah-v5"), 0, reach=(6, 1.0)),
        Workload("hopper", "Hopper-v5, float64[11]", partial(gym.make, "Hopper-v5"), 0, reach=(3, 1.0)),
        Workload("humanoid", "Humanoid-v5, float64[348]", partial(gym.make, "Humanoid-v5"), 0, reach=(17, 0.4)),
        Workload("atari", "Pong, AtariPreprocessing and four frames, uint8[4, 84, 84]", make_atari, 6),
        Workload("minigrid", "DoorKey-8x8, a dict with an image and a text", make_doorkey, 7, seen="image"),
        Workload("python100us", "100 us of Python, float32[8]", partial(PythonEnv, 100), 2),
        Workload("python1ms", "1 ms of Python, float32[8]", partial(PythonEnv, 1000), 2),
        Workload("python10ms", "10 ms of Python, float32[8]", partial(PythonEnv, 10_000), 2),
        Workload("dict10us", "10 us of Python, four leaves in nested Dicts", partial(NestedEnv, 10), 2),
        Workload("exp1ms", "1 ms of Python on average, exponential", partial(ExponentialEnv, sleeps=False), 2),
        Workload("sleep1ms", "1 ms of waiting on average, exponential", partial(ExponentialEnv, sleeps=True), 2),
        Workload("images", "no work, uint8[84, 84, 4]", ImageEnv, 2),
    )
}
