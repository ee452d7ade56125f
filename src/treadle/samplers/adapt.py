"""Adapters of the environments that samplers accept, and environment updates.

Samplers call `reset() -> (observation, episode_info)` and `step(action) -> EnvStep`. Environments with this interface
are used as they are; a `gymnasium.Env` gets an adapter.

Copies of one environment must not play the same episodes, so a worker seeds each copy differently when it takes it
over.

An update is a small object, cheap to send, that turns a worker's old environment into its new one.
"""

from __future__ import annotations

import copy
import logging
import random
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from treadle.errors import UsageError
from treadle.play.contract import first_observation, flag, in_step, stepped
from treadle.program.gym_env import EnvRecipe
from treadle.sample.named import env_of
from treadle.samplers.steps import EnvSpec, EnvStep, StepType
from treadle.spaces import Mismatch
from treadle.spaces.fit import Fit

log = logging.getLogger("treadle")


class GymEnv:
    """A `gymnasium.Env` with the sampler's interface, which is garage's.

    Samplers also accept Gymnasium environments directly. `GymEnv` is for programs that read an environment's `spec` or
    step the environment themselves.

    A truncated step is a TIMEOUT, even if it is also terminated; a step that is only terminated is TERMINAL. The info
    dict of `reset` is the episode info. Other attributes are looked up in the wrapped environment.

    Args:
        env: a `gymnasium.Env`, or a registered id, a Gymnasium `EnvSpec` or a callable that makes one.
        is_image: refused: observations are passed on as the environment returns them.
        max_episode_length: steps after which an episode that has not ended becomes a TIMEOUT; None: only the
            environment's own limit holds.

    Attributes:
        env: the environment.
        spec: the `EnvSpec`, with the spaces and `max_episode_length` (the registered limit of steps if none was given).

    Raises:
        TypeError: `env` is of another type.
        UsageError: `is_image` is True, the limit is below 1, or an environment cannot be made from the id.
    """

    def __init__(self, env: Any, is_image: bool = False, max_episode_length: int | None = None) -> None:
        if is_image:
            raise UsageError("is_image is not supported: scale pixels where they are used, or wrap the environment")
        if max_episode_length is not None and not max_episode_length >= 1:
            raise UsageError(f"max_episode_length must be at least 1, got {max_episode_length!r}")
        if isinstance(env, str | gym.envs.registration.EnvSpec) or (callable(env) and not isinstance(env, gym.Env)):
            env = EnvRecipe(env_of(env), registrations=None).build()
        if not isinstance(env, gym.Env):
            raise TypeError(
                f"GymEnv takes a gymnasium.Env, an id or what makes one, and this is a {type(env).__name__}"
            )
        self.env = env
        limit = max_episode_length
        if limit is None and env.spec is not None:
            limit = env.spec.max_episode_steps
        self.spec = EnvSpec(env.observation_space, env.action_space, limit)
        self._limit, self._shows = max_episode_length, False
        self._fit = Fit(env.observation_space, exact=True)
        self._seed: int | None = None
        self._steps: int | None = None

    @property
    def plain(self) -> bool:
        """Return True if `step` does no more than the environment's `step`."""
        return self._limit is None and not self._shows

    def seed(self, seed: int) -> None:
        """Give the next reset this seed."""
        self._seed = seed

    def begins(self) -> tuple[int | None, Any]:
        """Return (seed of the next reset, generator state): the next episode depends on these.

        The generator state is that of the environment; it is None where there is a seed.
        """
        generator = None if self._seed is not None else getattr(self.env.unwrapped, "_np_random", None)
        return self._seed, None if generator is None else generator.bit_generator.state

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Begin an episode and return (observation, info).

        Raises `spaces.Mismatch` for an observation that does not fit its space.
        """
        self._steps = None
        seed, self._seed = self._seed, None
        observation, info = first_observation(self.env.reset(seed=seed))
        fitted(self._fit, observation, 0)
        self._steps = 0
        return observation, info

    def step(self, action: Any) -> EnvStep:
        """Step the environment.

        Raises:
            RuntimeError: `reset` must be called first.
            BadStep: the environment's `step` did not return five values of the right types.
            spaces.Mismatch: the observation does not fit its space.
        """
        if self._steps is None:
            raise RuntimeError("reset() must be called before step()!")
        observation, reward, terminated, truncated, info = stepped(self.env.step(action))
        self._steps = step = self._steps + 1
        fitted(self._fit, observation, step)
        ended, cut = flag("terminated", terminated, step), flag("truncated", truncated, step)
        kind = StepType.get_step_type(step, step if cut else self._limit, ended)
        if self._shows:
            self.env.render()
        if kind in (StepType.TERMINAL, StepType.TIMEOUT):
            self._steps = None
        return EnvStep(self.spec, action, float(reward), observation, info, kind)

    @property
    def render_modes(self) -> list[str]:
        """The values of `render_mode` that the environment supports."""
        return list(self.env.metadata.get("render_modes", []))

    def render(self, mode: str | None = None) -> Any:
        """Return the result of the environment's `render`.

        `mode`: the `render_mode` that the environment was made with, or None; UsageError for any other.
        """
        if mode is not None and mode != self.env.render_mode:
            raise UsageError(f"the environment was made with render_mode={self.env.render_mode!r}, not {mode!r}")
        return self.env.render()

    def visualize(self) -> None:
        """Render now and after every step. The environment needs a `render_mode` such as "human"."""
        self._shows = True
        self.env.render()

    def close(self) -> None:
        self.env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "env":  # copying and pickling look names up before `env` is set
            raise AttributeError(name)
        try:
            return getattr(self.env, name)
        except AttributeError:
            return self.env.get_wrapper_attr(name)


class Adapted(GymEnv):
    """An adapter that a worker has put around an environment; the environment's owner never sees it."""


def as_environment(env: Any) -> Any:
    """Return the environment itself if it has the sampler's interface, else an adapter around the `gymnasium.Env`."""
    return Adapted(env) if isinstance(env, gym.Env) else env


def fit_of(env: Any) -> Fit | None:
    """Return the check of observations for an environment of `as_environment`; None: the environment checks them."""
    return None if isinstance(env, GymEnv) else Fit(spec_of(env).observation_space, exact=False)


def fitted(fit: Fit | None, observation: Any, step: int) -> Any:
    """Return the observation as `fit` converts it. Errors carry the step (from 1; 0: the reset)."""
    try:
        return observation if fit is None else fit(observation)
    except Mismatch as error:
        in_step(error, step)
        raise


def spec_of(env: Any) -> Any:
    """Return the environment's `EnvSpec`, made from its spaces if it has none."""
    spec = getattr(env, "spec", None)
    return spec if hasattr(spec, "observation_space") else EnvSpec(env.observation_space, env.action_space)


def bare(env: Any) -> Any:
    """Return the environment without the worker's adapter."""
    return env.env if isinstance(env, Adapted) else env


def seed_environment(env: Any, seed: int) -> None:
    """Seed an environment of `as_environment`, so that it differs from its copies.

    A `gymnasium.Env` gets the seed with its next reset. For other environments, `seed` is called. Without that method,
    the random generators among their attributes, and those of `unwrapped`, are seeded in place.
    """
    if isinstance(env, GymEnv):
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


class EnvUpdate:
    """Base of updates. An update is called with the old environment, and returns the environment to use from then on.

    The base class returns the old environment. For an update that makes the first environment, the old one is None.
    """

    def __call__(self, old_env: Any = None) -> Any:
        return old_env


class NewEnvUpdate(EnvUpdate):
    """Closes the old environment and makes a new one.

    Args:
        env_constructor: called without arguments, in the worker.
    """

    def __init__(self, env_constructor: Callable[[], Any]) -> None:
        self._env_constructor = env_constructor

    def __call__(self, old_env: Any = None) -> Any:
        if old_env is not None:
            old_env.close()
        return self._env_constructor()


class SetTaskUpdate(EnvUpdate):
    """Calls `set_task` of the old environment, or of a new one if the old one is of another type.

    Args:
        env_type: the class of the environment; a subclass's instance counts as another type.
        task: the argument of `set_task`.
        wrapper_constructor: None, or called with a new environment and the task; returns the wrapped environment.

    Raises:
        ValueError: `env_type` is not a class.
    """

    def __init__(self, env_type: type, task: Any, wrapper_constructor: Callable[[Any, Any], Any] | None = None) -> None:
        if not isinstance(env_type, type):
            raise ValueError(f"env_type should be a type, not {type(env_type)!r}")
        self._env_type, self._task, self._wrapper_constructor = env_type, task, wrapper_constructor

    def __call__(self, old_env: Any = None) -> Any:
        if old_env is not None and type(getattr(old_env, "unwrapped", old_env)) is self._env_type:
            known = hasattr(old_env, "set_task")  # its wrappers may forward it
            (old_env if known else old_env.unwrapped).set_task(self._task)
            return old_env
        if old_env is not None:
            warnings.warn(
                "SetTaskUpdate closes an environment of another type; where that happens often, sampling is slow",
                stacklevel=2,
            )
            old_env.close()
        env = self._env_type()
        env.set_task(self._task)
        return env if self._wrapper_constructor is None else self._wrapper_constructor(env, self._task)


class ExistingEnvUpdate(EnvUpdate):
    """Replaces the environment by an existing one, without closing the old one.

    Args:
        env: the environment.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def __call__(self, old_env: Any = None) -> Any:
        return self._env

    def __getstate__(self) -> dict[str, Any]:
        warnings.warn(
            "ExistingEnvUpdate sends a whole environment to another process; NewEnvUpdate or SetTaskUpdate send less",
            stacklevel=2,
        )
        return self.__dict__


def is_environment(thing: Any) -> bool:
    """Return True if `thing` is an object with `reset` and `step`."""
    return (
        not isinstance(thing, type)
        and callable(getattr(thing, "reset", None))
        and callable(getattr(thing, "step", None))
    )


def apply_env_update(old_env: Any, env_update: Any) -> tuple[Any, bool]:
    """Return (the environment to use after the update, True if there was an update).

    Args:
        old_env: the environment so far, or None.
        env_update: None keeps `old_env`. An `EnvUpdate` is called with it. An environment replaces it and `old_env` is
            closed; so does an environment made from a registered id, a Gymnasium `EnvSpec` or a callable.

    Raises:
        TypeError: the update is of another type, or did not return an environment.
        UsageError: the id is unknown.
    """
    env_update = as_update(env_update)
    if env_update is None:
        return old_env, False
    if isinstance(env_update, EnvUpdate):
        new = env_update(old_env)
        if not is_environment(new):
            raise TypeError(f"{type(env_update).__name__} returned a {type(new).__name__}, not an environment")
        return new, True
    if old_env is not None and old_env is not env_update:
        old_env.close()
    return env_update, True


def environment(given: list[Any]) -> gym.Env:
    """Return a separate copy of a sampler's environment, after all updates."""
    env: Any = None
    for update in given:
        env, _ = apply_env_update(env, copy.deepcopy(update))
    return of_gymnasium(env)


def of_gymnasium(env: Any) -> gym.Env:
    """Return the `gymnasium.Env` behind an adapter that adds nothing. Raises UsageError for another interface."""
    if isinstance(env, GymEnv) and env.plain:
        env = env.env
    if not isinstance(env, gym.Env):
        raise UsageError(
            f"an agent in the caller (inference='caller'), and a replay, need a gymnasium.Env, not a "
            f"{type(env).__name__}"
        )
    return env


def as_update(thing: Any) -> Any:
    """Return None, an environment or an `EnvUpdate` unchanged, and an environment's maker as a `NewEnvUpdate`.

    No environment is made here.

    Raises:
        TypeError: `thing` is of another type.
        UsageError: `thing` names a file without a name in it.
    """
    if thing is None or isinstance(thing, EnvUpdate) or is_environment(thing):
        return thing
    maker = env_of(thing)
    if isinstance(maker, str | gym.envs.registration.EnvSpec):
        return NewEnvUpdate(EnvRecipe(maker, registrations=None).build)  # the worker has the caller's registry
    if callable(maker):
        return NewEnvUpdate(maker)
    raise TypeError(
        f"Unknown environment update type: {type(thing).__name__}. Give None, an EnvUpdate, an environment, or one of "
        "an id, a Gymnasium EnvSpec and a callable that makes an environment. A list holds one update a worker."
    )
