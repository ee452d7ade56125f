"""`make_vec`: a vector from an id, in one line; and the same for `gymnasium.make_vec`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from treadle.errors import StartupFailed, StartupRefused, UsageError
from treadle.pool.options import NAMES
from treadle.program.gym_env import recipe_parts
from treadle.vector.env_slot import EnvLike
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.owned import OwnedVectors

NEAR = 0.75  # how alike two names are that may be meant for one another: difflib's ratio


@cache
def _options() -> frozenset[str]:
    """The names of VectorEnv's keyword-only arguments."""
    parameters = inspect.signature(VectorEnv.__init__).parameters.values()
    return NAMES | {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def make_vec(env: EnvLike, num_envs: int = 1, *, owned: bool = False, **kwargs: Any) -> VectorEnv:
    """A vector of `num_envs` environments.

    Args:
        env: a registered id ("CartPole-v1", "ALE/Pong-v5": the package is imported by itself; "module:Id"), an
            EnvSpec, or a callable that returns an environment.
        num_envs: how many.
        owned: each worker owns one *vectorised* environment for all its slots: `env` is the id of an environment that
            has such a form ("CartPole-v1"), or a callable `env(num_envs=k, **kwargs)` that returns a
            `gymnasium.vector.VectorEnv`. See `OwnedVectors`.
        **kwargs: the options of `VectorEnv` by name (workers="auto", inline="auto", autoreset_mode=None, copy=True,
            infos="gymnasium", wrappers=(), backend="process", step_timeout=None, ...); everything else goes to the
            environment's constructor. For an argument of the constructor that has an option's name, use
            kwargs={...}.

    Raises: what `VectorEnv` raises. Where the constructor refuses an argument whose name is nearly an option's,
        StartupRefused says so.
    """
    try:
        return _made(env, num_envs, owned, kwargs)
    except StartupFailed as error:
        for name in kwargs.keys() - _options():
            near = difflib.get_close_matches(name, _options() | {"owned", "num_envs"}, 1, NEAR)
            if near and f"unexpected keyword argument {name!r}" in str(error):
                text = f"neither make_vec nor the environment takes {name}=; did you mean {near[0]}=?"
                raise StartupRefused(f"{text} ({error.where})", **error.__dict__) from error
        raise


def _made(env: EnvLike, num_envs: int, owned: bool, kwargs: dict[str, Any]) -> VectorEnv:
    names = _options()
    for name in ("vectorization_mode", "vector_kwargs"):
        if name in kwargs:
            raise UsageError(
                f"{name}= is of gymnasium.make_vec. Here workers=, inline= and backend= say who steps environments, "
                "owned=True takes their own vectorised form, and options are given by name. (For an argument of the "
                f"environment's constructor: kwargs={{{name!r}: ...}})"
            )
    options = {name: value for name, value in kwargs.items() if name in names}
    own = {name: value for name, value in kwargs.items() if name not in names}
    options["kwargs"] = {**own, **recipe_parts(options.get("kwargs"), (), ())[0]}
    if not owned:
        return VectorEnv(env, num_envs, **options)
    if not (isinstance(env, str) or callable(env)):
        raise UsageError(f"owned=True wants an id or a callable, got {type(env).__name__}")
    build = {name: options.pop(name) for name in ("kwargs", "wrappers", "imports") if name in options}
    return VectorEnv(OwnedVectors(env, **build), num_envs, **options)


def vector_entry_point(env: EnvLike) -> Callable[..., VectorEnv]:
    """For `gymnasium.register(..., vector_entry_point=...)` and `EnvSpec.vector_entry_point`.

    `gymnasium.make_vec` calls an entry point without the id, so it must be made for one environment:

        gymnasium.register("treadle/CartPole-v1", vector_entry_point=treadle.vector_entry_point("CartPole-v1"))
        gymnasium.make_vec("treadle/CartPole-v1", num_envs=4, workers=2)

    Args:
        env: as for `make_vec`.

    Returns:
        A callable `(num_envs=1, **kwargs)`, where kwargs are as for `make_vec`.
    """
    return partial(make_vec, env)
