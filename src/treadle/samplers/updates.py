"""Updates of environments: small things to send, each of which turns a worker's old environment into its new one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle.errors import UsageError
from treadle.program.gym_env import EnvRecipe
from treadle.sample.named import env_of
from treadle.samplers.adapt import GymEnv


class EnvUpdate:
    """Called with the old environment (or None), returns the one to use from then on. This one changes nothing.

    Since no old environment is needed, an update can also make the first one.
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
    """Calls the old environment's `set_task`; makes a new one where the old is of another type.

    Args:
        env_type: the class of the environment; a subclass's instance counts as another type.
        task: what `set_task` is given.
        wrapper_constructor: None, or called with a new environment and the task; returns it wrapped.

    Raises:
        ValueError: `env_type` is no class.
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
    """Carries an environment that exists already. The old one is not closed.

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
    """Does it have what every environment has? Strings, classes and functions have not."""
    return (
        not isinstance(thing, type)
        and callable(getattr(thing, "reset", None))
        and callable(getattr(thing, "step", None))
    )


def apply_env_update(old_env: Any, env_update: Any) -> tuple[Any, bool]:
    """The environment to use after an update, and whether there was one.

    Args:
        old_env: None, or what was used so far.
        env_update: None: keep it. An `EnvUpdate` is called with it. An environment replaces it (and it is closed), and
            so does what a registered id, a `gymnasium` EnvSpec or a callable makes.

    Raises:
        TypeError: the update is something else, or returned something else.
        UsageError: nobody knows the id.
    """
    env_update = as_update(env_update)
    if env_update is None:
        return old_env, False
    if isinstance(env_update, EnvUpdate):
        new = env_update(old_env)
        if not is_environment(new):
            raise TypeError(f"{type(env_update).__name__} returned a {type(new).__name__}, which is no environment")
        return new, True
    if old_env is not None and old_env is not env_update:
        old_env.close()
    return env_update, True


def environment(given: list[Any]) -> gym.Env:
    """One of the sampler's environments, as it is after all updates: a copy of its own."""
    env: Any = None
    for update in given:
        env, _ = apply_env_update(env, copy.deepcopy(update))
    return of_gymnasium(env)


def of_gymnasium(env: Any) -> gym.Env:
    """The environment without an adapter that adds nothing. Raises UsageError where it has another interface."""
    if isinstance(env, GymEnv) and env.plain:
        env = env.env
    if not isinstance(env, gym.Env):
        raise UsageError(
            f"an agent in the caller (inference='caller'), and a replay, play a gymnasium.Env; a {type(env).__name__} "
            "is none"
        )
    return env


def as_update(thing: Any) -> Any:
    """None, an environment or an `EnvUpdate` as it is; of what makes an environment a `NewEnvUpdate`. Nothing is made.

    Raises:
        TypeError: it is something else.
        UsageError: a file is named, and not what in it.
    """
    if thing is None or isinstance(thing, EnvUpdate) or is_environment(thing):
        return thing
    maker = env_of(thing)
    if isinstance(maker, str | EnvSpec):
        return NewEnvUpdate(EnvRecipe(maker, registrations=None).build)  # the worker has the caller's registry
    if callable(maker):
        return NewEnvUpdate(maker)
    raise TypeError(
        f"Unknown environment update type. It is a {type(thing).__name__}; give None, an EnvUpdate, an environment, or "
        "what makes one: an id, an EnvSpec of Gymnasium's, a callable (in a list: one a worker)"
    )
