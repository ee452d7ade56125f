"""Programs for pools that tests make themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym

from treadle.program.base import OnEnd
from treadle.program.gym_env import EnvRecipe, GymEnv


def gym_env(
    env: Any,
    *,
    on_end: OnEnd = OnEnd.NEXT_STEP,
    kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env], gym.Env]] = (),
) -> Callable[[], GymEnv]:
    """A factory of `GymEnv` programs; see `EnvRecipe` for the arguments."""
    return partial(GymEnv, EnvRecipe.of(env, kwargs, wrappers), on_end)
