"""The reference that the pool is held against: a plain loop over environments, written without any of its parts."""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from treadle.program.base import OnEnd
from treadle.program.ids import import_package


class Row(NamedTuple):
    """One slot in one step. `final`: (observation, info) of an episode that ended within the step, else None."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    final: tuple[Any, dict[str, Any]] | None
    valid: bool


class Waverer(gym.Env[np.ndarray, int]):
    """Steps take 0 to 1 ms, episodes mostly a few steps and sometimes many: results arrive in any order."""

    observation_space = gs.Box(0, 1, (3,), np.float64)
    action_space = gs.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.length = int(min(40, 2 + self.np_random.pareto(1.0) * 2))
        self.t = 0
        return self.np_random.random(3), {"length": self.length}

    def step(self, action: int) -> Any:
        self.t += 1
        ticks = int(self.np_random.integers(0, 4000))
        while ticks > 0:  # work, not sleep: the time must be the core's
            ticks -= 1
        ended = self.t >= self.length
        info = {"t": self.t, "nested": {"a": [self.t]}} if self.t % 3 == 0 else {}
        return self.np_random.random(3), float(action) + self.t, ended and action > 0, ended and action == 0, info


def make(env: str | Callable[[], gym.Env], kwargs: dict[str, Any]) -> gym.Env:
    if isinstance(env, str):
        import_package(env)
        return gym.make(env, **kwargs)
    return env()


def actions_for(env: str | Callable[[], gym.Env], n: int, steps: int, kwargs: dict[str, Any]) -> list[list[Any]]:
    """steps x n actions, always the same ones."""
    made = make(env, kwargs)
    space = made.action_space
    space.seed(99)
    drawn = [[space.sample() for _ in range(n)] for _ in range(steps)]
    made.close()
    return drawn


def play(
    env: str | Callable[[], gym.Env], n: int, actions: list[list[Any]], on_end: OnEnd, kwargs: dict[str, Any], seed: int
) -> list[list[Row]]:
    """The reset and every step of n environments, one after the other; slots are seeded seed, seed + 1, ...

    With HOLD, slots whose episode has ended are reset without a seed before the next step; those resets are not
    part of the result.
    """
    slots = []
    for slot in range(n):
        made = make(env, kwargs)
        slots.append(_play_one(made, [row[slot] for row in actions], on_end, seed + slot))
        made.close()
    return [list(rows) for rows in zip(*slots, strict=True)]


def _play_one(env: gym.Env, actions: list[Any], on_end: OnEnd, seed: int) -> list[Row]:
    observation, info = env.reset(seed=seed)
    rows = [Row(keep(observation), 0.0, False, False, keep(info), None, False)]
    over = False
    for action in actions:
        if over and on_end is OnEnd.NEXT_STEP:
            observation, info = env.reset()
            rows.append(Row(keep(observation), 0.0, False, False, keep(info), None, False))
            over = False
            continue
        if over and on_end is OnEnd.HOLD:
            env.reset()
        observation, reward, terminated, truncated, info = env.step(action)
        over, final = bool(terminated or truncated), None
        if over and on_end is OnEnd.SAME_STEP:
            final = (keep(observation), keep(info))
            observation, info = env.reset()
        rows.append(Row(keep(observation), float(reward), bool(terminated), bool(truncated), keep(info), final, True))
    return rows


def keep(value: Any) -> Any:
    """A copy that no later step can change."""
    if isinstance(value, dict):
        return {key: keep(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(keep(item) for item in value)
    return value.copy() if isinstance(value, np.ndarray) else value


def same(a: Any, b: Any, path: str = "") -> None:
    """Assert that two values are the same, dtypes, shapes and bytes included."""
    if isinstance(a, dict) or isinstance(b, dict):
        assert isinstance(a, dict), path
        assert isinstance(b, dict), path
        assert set(a) == set(b), f"{path}: {sorted(map(str, a))} and {sorted(map(str, b))}"
        for key in a:
            same(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert isinstance(b, list | tuple), path
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{path}[{i}]")
    elif isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{path}: {a.dtype}{a.shape} and {b.dtype}{b.shape}"
        assert a.tobytes() == b.tobytes(), f"{path}: {a} and {b}"
    else:
        assert a == b or (a != a and b != b), f"{path}: {a!r} and {b!r}"


def row_of(tree: Any, slot: int) -> Any:
    """The observation of one slot out of a batch's tree of arrays and lists."""
    if isinstance(tree, dict):
        return {key: row_of(item, slot) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row_of(item, slot) for item in tree)
    return tree[slot]


def rows_of(batch: Any, valid: np.ndarray) -> list[Row]:
    """A pool's batch in the reference's form."""
    return [
        Row(
            row_of(batch.observations, slot),
            float(batch.rewards[slot]),
            bool(batch.terminated[slot]),
            bool(batch.truncated[slot]),
            batch.infos.get(slot, {}),
            batch.finals.get(slot),
            bool(valid[slot]),
        )
        for slot in range(len(batch.rewards))
    ]


def digest(steps: list[list[Row]]) -> str:
    """One hash over everything numeric in a run."""
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                sha.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        elif value is None or isinstance(value, str):
            sha.update(repr(value).encode())
        else:
            array = np.asarray(value)
            sha.update(str(array.dtype).encode() + array.tobytes())

    for rows in steps:
        for row in rows:
            add(tuple(row))
    return sha.hexdigest()
