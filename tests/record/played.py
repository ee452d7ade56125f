"""Real episodes, made by a plain loop, for the tests of this folder."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from treadle.play.episode import Episode


class Nest(gym.Env):
    """Tuple and Dict observations with text, actions in a Dict, infos of every kind."""

    observation_space = spaces.Dict(
        {
            "pair": spaces.Tuple((spaces.Discrete(5), spaces.Box(-1, 1, (2, 3), np.float32))),
            "said": spaces.Text(12, min_length=0, charset="abc é→"),
            "bits": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.Dict({"go": spaces.MultiDiscrete([3, 2]), "how": spaces.Box(0, 1, (1,), np.float16)})

    def _observe(self) -> dict[str, Any]:
        rng = self.np_random
        return {
            "pair": (np.int64(rng.integers(5)), rng.uniform(-1, 1, (2, 3)).astype(np.float32)),
            "said": "".join(rng.choice(list("abc é→"), rng.integers(0, 12))),
            "bits": rng.integers(0, 2, 3).astype(np.int8),
        }

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.t, self.end = 0, int(self.np_random.integers(3, 9))
        return self._observe(), {"seeds": (seed, 1), "level": 3, "ball": object()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.t += 1
        info = {
            "level": self.t,
            "speed": 0.5 * self.t,
            "name": "abc"[: self.t % 3],
            "where": {"x": np.float32(self.t), "cells": np.arange(4)},
            "ragged": list(range(self.t)),
        }
        return self._observe(), float(self.t), self.t >= self.end, False, info


def _stack(space: gym.Space, rows: list) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _stack(inner, [row[key] for row in rows]) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_stack(inner, [row[i] for row in rows]) for i, inner in enumerate(space.spaces))
    return list(rows) if isinstance(rows[0], str) else np.array(rows, dtype=space.dtype)


def play(env: gym.Env, count: int, root: int = 0) -> list[Episode]:
    """`count` whole episodes of random actions."""
    made = []
    for index in range(count):
        env.action_space.seed(index)
        seed = root + 1000 * index
        observation, info = env.reset(seed=seed)
        rows, infos, actions, rewards, done = [observation], [info], [], [], (False, False)
        while not any(done):
            actions.append(env.action_space.sample())
            observation, reward, *done, info = env.step(actions[-1])
            rows.append(observation)
            infos.append(info)
            rewards.append(reward)
        ends = np.zeros((2, len(rewards)), bool)
        ends[:, -1] = done
        made.append(
            Episode(
                index=index,
                seed=seed,
                observations=_stack(env.observation_space, rows),
                actions=_stack(env.action_space, actions),
                rewards=np.array(rewards, np.float64),
                terminated=ends[0],
                truncated=ends[1],
                infos=tuple(infos),
                policy_infos=tuple(
                    {"value": float(i), "logits": np.ones(2, np.float32) * i} for i in range(len(actions))
                ),
            )
        )
    return made


def _make(name: str) -> gym.Env:
    if name.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
        return gym.make(name, max_episode_steps=60)
    if name.startswith("MiniGrid"):
        import minigrid

        gym.register_envs(minigrid)
        return gym.make(name, max_episode_steps=40)
    return Nest() if name == "nest" else gym.make(name)


COUNTS = {"CartPole-v1": 12, "ALE/Pong-v5": 2, "MiniGrid-DoorKey-5x5-v0": 3, "Hopper-v5": 4, "nest": 6}


@functools.cache
def real(name: str) -> tuple[gym.Env, list[Episode]]:
    """The environment of a name and some of its episodes, made once."""
    env = _make(name)
    return env, play(env, COUNTS[name])
