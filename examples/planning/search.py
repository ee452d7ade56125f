"""What a search decides, and what it looked at on the way."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from treadle import UsageError


class Branch(NamedTuple):
    """One edge of the tree that was searched. `parent`: the index of the branch before it; -1: it begins at the root.
    `visits`: how often the search came by. `value`: what it thinks of it, the higher the better."""

    parent: int
    action: Any
    visits: int
    value: float


@dataclass(frozen=True)
class Decision:
    """Attributes:
    action: what to do now.
    value: what it expects.
    steps: of the environment that the search took.
    branches: what it looked at.
    path: the numbers of the branches that it thinks best, one after the other from the root.
    """

    action: Any
    value: float = 0.0
    steps: int = 0
    branches: list[Branch] = field(default_factory=list)
    path: list[int] = field(default_factory=list)


class Planner(Protocol):
    """Decides what to do in a state."""

    dt: int

    def plan(self, state: Any) -> Decision:
        """The action for this state."""
        ...

    def begin(self, seed: int) -> None:
        """A new game: forget the last one, and be random in the way of this seed."""
        ...


class Draws:
    """Actions at random, from a generator of its own."""

    def __init__(self, space: gym.Space, seed: int = 0) -> None:
        self._space = copy.deepcopy(space)
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Begin again in the way of this seed."""
        self.rng = np.random.default_rng(seed)
        self._space.seed(seed)

    def sequences(self, count: int, length: int) -> np.ndarray | list[list[Any]]:
        """`count` sequences of `length` actions."""
        space = self._space
        if isinstance(space, gym.spaces.Discrete):
            return self.rng.integers(int(space.start), int(space.start + space.n), (count, length))
        return [[space.sample() for _ in range(length)] for _ in range(count)]


def whole(value: Any, what: str) -> int:
    """A whole number of at least 1. Raises UsageError, which says what it is."""
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{what} must be at least 1, got {value!r}")
    return value


def batches_of(env: Any) -> Any:
    """The environment, if it can be stepped in batches from any state. Raises UsageError for one that cannot."""
    if not callable(getattr(env, "rollout_batch", None)):
        raise UsageError(
            f"a planner tries its plans in batches, and a {type(env).__name__} has none: give it a ParallelEnv "
            "(backend='serial' has no worker processes)"
        )
    return env


class RandomPlay:
    """Does anything: what planning has to be better than."""

    def __init__(self, space: gym.Space, *, dt: int = 1) -> None:
        self.dt, self._draws = dt, Draws(space)

    def begin(self, seed: int) -> None:
        """A new game."""
        self._draws.seed(seed)

    def plan(self, state: Any) -> Decision:
        """An action at random."""
        return Decision(self._draws.sequences(1, 1)[0][0])
