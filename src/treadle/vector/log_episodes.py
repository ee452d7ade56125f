"""Logs how the episodes of a vector go."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from treadle.play.episode import SUCCESS_KEYS
from treadle.progress import EpisodeLog, Log


class LogEpisodes(gym.vector.VectorWrapper):
    """A vector that logs how its latest hundred episodes went, see `treadle.progress.EpisodeLog`.

    Args:
        env: a vector whose infos are dicts of arrays, as Gymnasium's are.
        log: called with (numbers, steps made), at most ten times a second, and at the end.
    """

    def __init__(self, env: gym.vector.VectorEnv, log: Log) -> None:
        super().__init__(env)
        self._mode, self._log = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP), EpisodeLog(log)
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._begins = np.zeros(self.num_envs, np.bool_)  # whose next step is a reset

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Episodes that are begun anew are not logged."""
        mask = slice(None) if options is None or "reset_mask" not in options else np.array(options["reset_mask"])
        self._returns[mask], self._lengths[mask], self._begins[mask] = 0, 0, False
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As the vector's own."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self._returns += np.where(self._begins, 0, rewards)
        self._lengths += ~self._begins
        ended = (terminated | truncated) & ~self._begins
        rows = np.flatnonzero(ended)
        said = infos.get("final_info", infos) if len(rows) else {}
        key = next((each for each in SUCCESS_KEYS if each in said), "")
        for row in rows:
            known = key and said.get(f"_{key}", ended)[row]
            success = bool(said[key][row]) if known else None
            self._log.add(float(self._returns[row]), int(self._lengths[row]), success)
        self._returns[ended], self._lengths[ended] = 0, 0
        self._begins = ended if self._mode is AutoresetMode.NEXT_STEP else self._begins
        return observations, rewards, terminated, truncated, infos

    def close(self, **kwargs: Any) -> None:
        """Log the last ones, and close the vector."""
        self._log.flush()
        self.env.close(**kwargs)
