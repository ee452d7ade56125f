"""Environments and policies that the commands' tests name as `envs.py:Name`: well-behaved, random, and broken ones."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class Walk(gym.Env):
    """Episodes of 2 to 8 steps that end by themselves; everything comes from the reset's seed."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def __init__(self) -> None:
        if os.environ.get("WALK") == "0":
            raise RuntimeError("no legs")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.end = 0, int(self.np_random.integers(2, 9))
        return self.look(), {}

    def look(self) -> np.ndarray:
        return np.array([self.t, self.np_random.random()], np.float64)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.look(), float(action), self.t >= self.end, False, {}


class Odd(Walk):
    """Infos with keys, types and shapes that not all episodes share."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {"t": self.t, "said": "x" * self.end}
        if self.end % 2:
            info["lucky"] = np.float32(0.1 * self.t)
        if self.end % 3:
            info["mixed"] = np.arange(self.end, dtype=np.int16)
        return observation, reward, terminated, truncated, info


class Counted(Walk):
    """Writes the seed of every episode that it begins into a file."""

    def __init__(self, played: str) -> None:
        self.played = played

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        with open(self.played, "a") as file:
            file.write(f"{seed}\n")
        return super().reset(seed=seed)


class RandomTimes(Walk):
    """Steps take random times that no seed decides, so episodes arrive out of order."""

    clock = random.Random()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.clock.random() * 0.004)
        return super().step(action)


class GlobalRandom(Walk):
    """Takes its randomness from the process's own generators."""

    def look(self) -> np.ndarray:
        return np.array([random.random(), np.random.random()], np.float64)


class Gated(Walk):
    """Once a process has begun `free` episodes it waits in reset, having left a file with its pid, for `gate`/open."""

    def __init__(self, gate: str, free: int = 4) -> None:
        self.gate, self.left = Path(gate), free

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.left -= 1
        if self.left < 0 and not (self.gate / "open").exists():
            (self.gate / f"{os.getpid()}.waits").touch()
            while not (self.gate / "open").exists():
                time.sleep(0.01)
        return super().reset(seed=seed)


class Raises(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        if self.t == 7:
            raise ValueError("the motor is hot\nand smells")
        return result


class Fragile(Walk):
    """Every fourth episode or so raises in its second step, unless the file `mended` is there."""

    def __init__(self, mended: str = "") -> None:
        self.mended = mended

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        found = super().reset(seed=seed)
        self.bad = seed is not None and seed % 4 == 0 and not os.path.exists(self.mended)
        return found

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.bad and self.t == 1:
            raise ValueError("the arm is off")
        return super().step(action)


class Hangs(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.t == 6:
            time.sleep(3600)
        return super().step(action)


class Dies(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.t == 6:
            os._exit(3)
        return super().step(action)


class CannotBuild(Walk):
    def __init__(self) -> None:
        raise RuntimeError("no licence for the simulator")


class NeedsPackage(Walk):
    def __init__(self) -> None:
        import a_package_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401


class Needs(Walk):
    """As Gymnasium's own when a library is missing."""

    def __init__(self, library: str) -> None:
        raise gym.error.DependencyNotInstalled(f"{library} is not installed, run pip install gymnasium[{library}]")


class NotANumber(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *ends, info = super().step(action)
        return observation, float("nan") if self.t == 2 else reward, *ends, info


class TellsTheTime(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {"time": time.time()}


class CarriesOver(Walk):
    """The third number of steps into an episode, it shows how many episodes this very environment has played."""

    def __init__(self) -> None:
        self.played = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.played += 1
        return super().reset(seed=seed)

    def look(self) -> np.ndarray:
        return np.array([self.t, self.played if self.t == 2 else 0], np.float64)


class Heavy(Walk):
    """20 kB of noise a step."""

    observation_space = gym.spaces.Box(0, 255, (20_000,), np.uint8)

    def look(self) -> np.ndarray:
        return self.np_random.integers(0, 256, 20_000, np.uint8)


class Talks(Walk):
    """Prints where results go."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        print("hello from the environment", flush=True)
        return super().reset(seed=seed)


def make_walk() -> gym.Env:
    return Walk()


def stochastic(observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 2, len(observations))


def globally_random(observations: np.ndarray) -> np.ndarray:
    return np.array([random.randrange(2) + np.random.randint(2) for _ in observations])


def zero(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), np.int64)


def two(observations: np.ndarray) -> np.ndarray:
    return np.full(len(observations), 2)


def wrong_shape(observations: np.ndarray) -> np.ndarray:
    return np.zeros((len(observations), 2), np.int64)


def wrong_dtype(observations: np.ndarray) -> np.ndarray:
    return np.full(len(observations), 0.5)


def out_of_range(observations: np.ndarray) -> np.ndarray:
    return np.full(len(observations), 7)


def raises(observations: np.ndarray) -> np.ndarray:
    raise KeyError("weights")


class CountsCalls:
    """Acts by how often it has been asked, in all episodes."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        self.calls += 1
        return np.full(len(observations), self.calls // 5 % 3)


class Warns(Walk):
    """Warns in Gymnasium's way, which is yellow."""

    def reset(self, **options: Any) -> Any:
        gym.logger.warn("something is odd")
        return super().reset(**options)


class LeavesPid(Walk):
    """Tells who has built it."""

    def __init__(self, pids: str) -> None:
        (Path(pids) / str(os.getpid())).touch()


class Unseeded(Walk):
    """Draws from a generator that no seed reaches."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=None, options=options)

    def look(self) -> np.ndarray:
        return np.array([self.t, np.random.default_rng().random()], np.float64)


class NeedsLevel(Walk):
    """Cannot be built of nothing."""

    def __init__(self, level: int, size: int, name: str = "") -> None:
        self.level = level


def needs_less(level: int) -> NeedsLevel:
    return NeedsLevel(level)  # type: ignore[call-arg]  # that is what is wrong with it
