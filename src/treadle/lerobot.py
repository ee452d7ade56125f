"""Vectors for LeRobot's evaluation. (`treadle.record.lerobot` writes datasets in its format.)"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from treadle.errors import TaskRaised
from treadle.vector.gymnasium import VectorEnv


class LeRobotVectorEnv(VectorEnv, gym.vector.AsyncVectorEnv):  # type: ignore[misc]  # `call` takes more here
    """A `VectorEnv` with two additions for LeRobot's `eval_policy`.

    `eval_policy` reads a task description from `envs[0]`. It renders only Gymnasium's own vectors, and uses `call` for
    an AsyncVectorEnv. So this class is a subclass of AsyncVectorEnv, but does not use its code. The default autoreset
    mode is SAME_STEP, as in LeRobot's `make_env`. A Hub environment's `make_env(n_envs, use_async_envs)` can return
    one.

    Args:
        envs, num_envs, **options: as for `VectorEnv`.
    """

    def __init__(self, envs: Any, num_envs: int | None = None, **options: Any) -> None:
        super().__init__(envs, num_envs, **{"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP, **options})

    @property
    def envs(self) -> tuple[EnvView, ...]:
        """Views of the environments, whose attributes can be read."""
        return tuple(EnvView(self, slot) for slot in range(self.num_envs))


class EnvView:
    """A view of an environment of a vector, whose plain attributes can be read."""

    def __init__(self, vector: VectorEnv, slot: int) -> None:
        self._vector, self._slot = vector, slot

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._vector.call_at(self._slot, name)
        except TaskRaised as error:
            raise AttributeError(str(error)) from error


__all__ = ["EnvView", "LeRobotVectorEnv"]
