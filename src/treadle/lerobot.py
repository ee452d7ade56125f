"""LeRobot: vectors that its evaluation takes. (Datasets in its format: `treadle.record.lerobot`.)"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from treadle.errors import TaskRaised
from treadle.vector.gymnasium import VectorEnv


class LeRobotVectorEnv(VectorEnv, gym.vector.AsyncVectorEnv):  # type: ignore[misc]  # `call` takes more here
    """`VectorEnv` with the two things that LeRobot's `eval_policy` asks for besides.

    It looks at `envs[0]` for a task description, and renders what is one of Gymnasium's own vectors (by `call`, of an
    AsyncVectorEnv, which this is by name only). The autoreset mode is SAME_STEP unless another is given, as in
    LeRobot's `make_env`. A Hub environment's `make_env(n_envs, use_async_envs)` can return one.

    Args:
        envs, num_envs, **options: as for `VectorEnv`.
    """

    def __init__(self, envs: Any, num_envs: int | None = None, **options: Any) -> None:
        super().__init__(envs, num_envs, **{"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP, **options})

    @property
    def envs(self) -> tuple[EnvView, ...]:
        """The environments, as far as their attributes can be seen from here."""
        return tuple(EnvView(self, slot) for slot in range(self.num_envs))


class EnvView:
    """An environment of a vector, of which plain attributes can be read."""

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
