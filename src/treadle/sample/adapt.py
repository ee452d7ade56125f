"""Environments at the door: whatever comes in is used as `reset() -> (observation, episode_info)` and
`step(action) -> EnvStep`. Environments that are so already stay as they are; a `gymnasium.Env` gets an adapter.

Copies of one environment must not play the same episodes, so each is seeded apart when a worker takes it over.
"""

from __future__ import annotations

import logging
import random
from typing import Any

import gymnasium as gym
import numpy as np

from treadle.sample.contract import first_observation, flag, in_step, stepped
from treadle.sample.observations import Fit
from treadle.sample.step_type import StepType
from treadle.sample.steps import EnvSpec, EnvStep
from treadle.spaces import Mismatch

log = logging.getLogger("treadle")


class GymnasiumEnv:
    """A `gymnasium.Env` with the sampler's interface. Anything else is looked up in the environment itself.

    A truncated step is a TIMEOUT (also when it is terminated as well), a terminated one is TERMINAL. The infos of
    `reset` are the episode's.

    Attributes:
        env: the environment.
        spec: its spaces, and its registered limit of steps.
    """

    def __init__(self, env: gym.Env) -> None:
        self.env = env
        limit = env.spec.max_episode_steps if env.spec is not None else None
        self.spec = EnvSpec(env.observation_space, env.action_space, limit)
        self._fit = Fit(env.observation_space, exact=True)
        self._seed: int | None = None
        self._steps = 0

    def seed(self, seed: int) -> None:
        """Give the next reset this seed."""
        self._seed = seed

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; (observation, info). Raises `spaces.Mismatch` for what does not fit its space."""
        self._steps = 0
        seed, self._seed = self._seed, None
        observation, info = first_observation(self.env.reset(seed=seed))
        return fitted(self._fit, observation, 0), info

    def step(self, action: Any) -> EnvStep:
        """Raises RuntimeError before the first reset, `BadStep` for what no step returns, and `spaces.Mismatch`."""
        observation, reward, terminated, truncated, info = stepped(self.env.step(action))
        self._steps += 1
        fitted(self._fit, observation, self._steps)
        kind = type_of(
            self._steps, flag("terminated", terminated, self._steps), flag("truncated", truncated, self._steps)
        )
        return EnvStep(self.spec, action, float(reward), observation, info, kind)

    def close(self) -> None:
        self.env.close()

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    @property
    def observation_space(self) -> Any:
        return self.env.observation_space

    @property
    def action_space(self) -> Any:
        return self.env.action_space

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "env":  # copying and pickling ask before there is an env
            raise AttributeError(name)
        try:
            return getattr(self.env, name)
        except AttributeError:
            return self.env.get_wrapper_attr(name)


def type_of(step: int, terminated: bool, truncated: bool) -> StepType:
    """The type of step number `step` (from 1) of an episode."""
    if truncated:
        return StepType.TIMEOUT
    if terminated:
        return StepType.TERMINAL
    return StepType.FIRST if step == 1 else StepType.MID


def as_environment(env: Any) -> Any:
    """The environment with the sampler's interface: itself, or an adapter around a `gymnasium.Env`."""
    return GymnasiumEnv(env) if isinstance(env, gym.Env) else env


def fit_of(env: Any) -> Fit | None:
    """What looks at the observations of one that `as_environment` returned; None: it does so itself."""
    return None if isinstance(env, GymnasiumEnv) else Fit(spec_of(env).observation_space, exact=False)


def fitted(fit: Fit | None, observation: Any, step: int) -> Any:
    """The observation as it is to be used. What is raised knows the step (from 1; 0: the reset)."""
    try:
        return observation if fit is None else fit(observation)
    except Mismatch as error:
        in_step(error, step)
        raise


def spec_of(env: Any) -> Any:
    """Its `EnvSpec`, made from its spaces where it has none."""
    spec = getattr(env, "spec", None)
    return spec if hasattr(spec, "observation_space") else EnvSpec(env.observation_space, env.action_space)


def bare(env: Any) -> Any:
    """The environment as its owner knows it: without our adapter."""
    return env.env if isinstance(env, GymnasiumEnv) else env


def seed_environment(env: Any, seed: int) -> None:
    """Seed one that `as_environment` returned, so that it differs from its copies.

    A `gymnasium.Env` is given the seed with its next reset. Another one has its `seed` method called; if it has none,
    the random generators among its attributes (of `unwrapped`, too) are seeded in place.
    """
    if isinstance(env, GymnasiumEnv):
        env.seed(seed)
        return
    inner = getattr(env, "unwrapped", env)
    if callable(getattr(inner, "seed", None)):
        try:
            inner.seed(seed)
        except Exception as error:  # noqa: BLE001 - foreign code; unseeded it still plays
            log.warning("%s.seed raised %r: copies of it may play the same episodes", type(inner).__name__, error)
        return
    for thing in {id(env): env, id(inner): inner}.values():
        for attribute in vars(thing).values() if hasattr(thing, "__dict__") else ():
            if isinstance(attribute, np.random.Generator):
                bits: Any = attribute.bit_generator
                bits.state = type(bits)(seed).state
            elif isinstance(attribute, np.random.RandomState):
                attribute.seed(seed & 0xFFFFFFFF)
            elif isinstance(attribute, random.Random):
                attribute.seed(seed)


__all__ = ["GymnasiumEnv", "as_environment", "bare", "fit_of", "fitted", "seed_environment", "spec_of", "type_of"]
