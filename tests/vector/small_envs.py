"""Small environments that do one thing each, and how results of vectors are compared."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs


class Counter(gym.Env[int, int]):
    """Observes how many steps its episode has, ends after `length`, and says in infos what it was reset with."""

    observation_space = gs.Discrete(1000)
    action_space = gs.Discrete(5)

    def __init__(self, length: int = 3, infos: bool = True) -> None:
        self.length, self.infos = length, infos
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        told = {"seed": -1 if seed is None else seed, "options": options} if self.infos else {}
        return self.count, told

    def step(self, action: int) -> Any:
        self.count += 1
        info = {"count": self.count, "of": {"length": self.length}} if self.infos else {}
        return self.count, float(action), self.count >= self.length, False, info


class Picky(gym.Env[np.ndarray, int]):
    """Raises in reset for seed 13, in step for action 3, and returns a row of a wrong shape for action 4."""

    observation_space = gs.Box(-1, 1, (3,), np.float32)
    action_space = gs.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed == 13:
            raise ValueError("no luck in reset")
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> Any:
        if action == 3:
            raise ValueError(f"no luck in step with {action}")
        size = 1 if action == 4 else 3
        return np.full(size, 0.5, np.float32), 1.0, False, False, {}


class Echo(gym.Env[Any, Any]):
    """Any spaces: observes samples, refuses actions that are not in its space, ends with its third step."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space | None = None) -> None:
        self.observation_space = deepcopy(observation_space)  # its random stream must be this environment's own
        self.action_space = deepcopy(action_space or gs.Discrete(2))
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.t += 1
        return self.observation_space.sample(), 0, self.t == 3, False, {}


class Gated(gym.Env[np.ndarray, int]):
    """Its steps (and resets, if told) wait until a file exists; it counts its steps."""

    observation_space = gs.Box(0, 1000, (1,), np.float64)
    action_space = gs.Discrete(2)

    def __init__(self, gate: str, resets: bool = False) -> None:
        self.gate, self.resets = gate, resets
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.resets:
            self.wait()
        return np.zeros(1), {}

    def step(self, action: int) -> Any:
        self.t += 1
        if action:
            self.wait()
        return np.full(1, float(self.t)), 0.0, False, False, {}

    def wait(self) -> str:
        import os

        pause = threading.Event()
        while not os.path.exists(self.gate):
            pause.wait(0.002)
        return "open"


class Word(gym.Space[str]):
    """A space that nobody knows."""

    def __init__(self) -> None:
        super().__init__()

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "word"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Word)

    __hash__ = None  # type: ignore[assignment]


class Parrot(gym.Env[str, str]):
    """Observes the action, in spaces that nobody knows."""

    observation_space = Word()
    action_space = Word()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return "reset", {}

    def step(self, action: str) -> Any:
        return f"step({action})", 0.0, False, False, {}


def of(env: Callable[..., gym.Env], *args: Any, **kwargs: Any) -> Callable[[], gym.Env]:
    """A constructor without arguments."""
    return lambda: env(*args, **kwargs)


def copied(value: Any) -> Any:
    """A copy that no later step can change."""
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(part) for part in value) if type(value) in (list, tuple) else value
    return value.copy() if isinstance(value, np.ndarray) else value


def assert_same(ours: Any, theirs: Any, path: str = "") -> None:
    """The same values, nesting, dtypes and shapes. A Python number, a scalar and a 0-d array may be the same."""
    if isinstance(theirs, np.ndarray) and isinstance(ours, np.generic):
        ours = np.asarray(ours)
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), path
        assert list(ours) == list(theirs) or set(ours) == set(theirs), f"{path}: {list(ours)} and {list(theirs)}"
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{path}[{key!r}]")
    elif isinstance(theirs, list | tuple):
        assert type(ours) is type(theirs), f"{path}: {type(ours)} and {type(theirs)}"
        assert len(ours) == len(theirs), path
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{path}[{i}]")
    elif isinstance(theirs, np.ndarray):
        assert isinstance(ours, np.ndarray), f"{path}: {type(ours)}"
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), f"{path}: {ours!r} and {theirs!r}"
        if theirs.dtype.hasobject:
            for i, (a, b) in enumerate(zip(ours.flat, theirs.flat, strict=True)):
                assert_same(a, b, f"{path}[{i}]")
        else:
            assert ours.tobytes() == theirs.tobytes(), f"{path}: {ours} and {theirs}"
    else:
        assert ours == theirs or (ours != ours and theirs != theirs), f"{path}: {ours!r} and {theirs!r}"
