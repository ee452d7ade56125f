"""What one of a worker's several environments was made to do in its present episode, so that it can be replayed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from treadle.pool.serve import snapshot
from treadle.repro import fingerprint
from treadle.sample.samplers.adapt import GymEnv
from treadle.spaces import Layout

MOST_STEPS = 1 << 20  # of an episode; a longer one can no longer be replayed


class Trail:
    """Args:
    env: the environment, before the episode's reset. Of one that is no `gymnasium.Env` nothing is kept.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._start = env.begins() if isinstance(env, GymEnv) else (None, None)
        self._on = self._start != (None, None)
        self._actions: list[Any] = []
        self._rewards: list[float] = []
        self._seen: list[Any] = []  # the first observation, and the last

    def act(self, action: Any) -> None:
        """It is about to be stepped."""
        self._on &= len(self._actions) < MOST_STEPS
        if self._on:
            self._actions.append(snapshot(action))

    def see(self, observation: Any, *rewards: float) -> None:
        """So it was."""
        if self._on:
            self._rewards += rewards
            self._seen = [*self._seen[:1], observation]

    def told(self) -> dict[str, Any] | None:
        """As `Recorder.trail` has it, with the episode's start. None: too long, or no plain action space."""
        env, found = self._env, {"start": self._start, "rewards": np.array(self._rewards, np.float64)}
        if not self._on:
            return None
        if self._actions:
            with suppress(ValueError):  # arrays of different shapes
                found["action.0"] = actions = np.array(self._actions)
                if actions.shape[1:] != env.action_space.shape or actions.dtype.hasobject:
                    return None
        layout, sums = Layout.of(env.observation_space), []
        for seen in self._seen:
            pairs = zip(layout.flatten(seen), layout.leaves, strict=True)
            sums.append(fingerprint([np.asarray(value, leaf.dtype) if leaf.fixed else None for value, leaf in pairs]))
        if sums:
            found["checks"] = np.array([[0, len(self._rewards)], [sums[0], sums[-1]]], np.int64)
        return found
