"""Objects given by name, as on a command line: loaded in the worker that uses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle.errors import UsageError
from treadle.program.gym_env import construct
from treadle.program.policies import load_object, names_in


@dataclass(frozen=True)
class Named:
    """Stands for the callable that "module:attribute" or "file.py:attribute" names, and calls it.

    Raises:
        UsageError: on the call, when the name does not exist or its object cannot be called.
    """

    reference: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = load_object(self.reference)
        if not callable(found):
            raise UsageError(f"{self.reference} is of type {type(found).__name__}, which cannot be called")
        if args:  # a wrapper's
            return found(*args, **kwargs)
        return construct(found, kwargs)

    def __repr__(self) -> str:
        return self.reference


def env_of(env: Any) -> Any:
    """Return what a name of an environment stands for.

    A registered id or "module:Id" stays text; "module:make_env" and "file.py:make_env" become `Named`. Other objects
    are returned unchanged. An identifier behind a colon is a function or class: registered ids end in "-v<number>".

    Raises:
        UsageError: the name is that of a file alone.
    """
    if not isinstance(env, str):
        return env
    if env.endswith(".py"):
        names = names_in(env)
        has = f" It has: {', '.join(names)}." if names else ""
        example = names[0] if names else "make_env"
        raise UsageError(
            f"{env} is a file: which function or class in it makes the environment?{has} As in {env}:{example}"
        )
    name, colon, attribute = env.rpartition(":")
    if colon and (name.endswith(".py") or all(part.isidentifier() for part in attribute.split("."))):
        return Named(env)
    return env


def env_name(env: str | EnvSpec | Callable[..., gym.Env]) -> str:
    """A short name for datasets and tables: the id, or the function's name."""
    if isinstance(env, EnvSpec):
        return env.id
    text = env.reference if isinstance(env, Named) else env
    if isinstance(text, str):
        return text.rpartition(":")[2]
    return getattr(text, "__name__", type(text).__name__)


def file_and_name(env: str | EnvSpec | Callable[..., gym.Env]) -> str:
    """As `env_name`, but of what a file or module defines the file's name is before it: "reach-make"."""
    module, _, _ = env.reference.rpartition(":") if isinstance(env, Named) else ("", "", "")
    file = os.path.basename(module).removesuffix(".py").rpartition(".")[2]
    return f"{file}-{env_name(env)}" if file else env_name(env)


def reference_of(thing: Any) -> Any:
    """Return the text of an object in a file of arguments. Of a callable that is its name alone."""
    if thing is None or isinstance(thing, str):
        return thing
    if isinstance(thing, Named):
        return thing.reference
    if isinstance(thing, EnvSpec):
        return thing.id
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}:{kind.__qualname__}"
