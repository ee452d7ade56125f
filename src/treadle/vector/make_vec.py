"""`make_vec`: a vector from an id, in one line; and the same for `gymnasium.make_vec`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any

from treadle import gone
from treadle.errors import StartupFailed, StartupRefused, UsageError
from treadle.program.gym_env import recipe_parts
from treadle.vector.env_slot import EnvLike
from treadle.vector.gymnasium import VectorEnv
from treadle.worker.options import NAMES

OPTIONS = NAMES.union(VectorEnv.__init__.__kwdefaults__ or ())  # of a vector, by name
NEAR = 0.75  # how alike two names are that may be meant for one another: difflib's ratio


def make_vec(env: EnvLike, num_envs: int = 1, **kwargs: Any) -> VectorEnv:
    """A vector of `num_envs` environments.

    Args:
        env: a registered id ("CartPole-v1", "ALE/Pong-v5": the package is imported by itself; "module:Id"), an
            EnvSpec, or a callable that returns an environment.
        num_envs: how many.
        **kwargs: the options of `VectorEnv` by name (workers="auto", inline="auto", autoreset_mode=None, copy=True,
            infos="gymnasium", wrappers=(), backend=None, step_timeout=None, ...); everything else goes to the
            environment's constructor. For an argument of the constructor that has an option's name, use
            kwargs={...}.

    Raises: what `VectorEnv` raises. Where the constructor refuses an argument whose name is nearly an option's,
        StartupRefused says so.
    """
    return vector_of("make_vec", env, num_envs, **kwargs)


def vector_of(face: str, env: EnvLike, num_envs: int, /, **kwargs: Any) -> VectorEnv:
    """`make_vec` for `face`, the function or class that the user has called: it is what errors name."""
    try:
        return _made(env, num_envs, kwargs)
    except StartupFailed as error:
        for name in kwargs.keys() - OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS | {"num_envs"}, 1, NEAR)
            if near and f"unexpected keyword argument {name!r}" in str(error):
                text = f"neither {face} nor the environment takes {name}=; did you mean {near[0]}=?"
                raise StartupRefused(f"{text} ({error.where})", **error.__dict__) from error
        raise


def _made(env: EnvLike, num_envs: int, kwargs: dict[str, Any]) -> VectorEnv:
    for name in kwargs:
        text = gone.instead(f"{name}=")
        if name in ("vectorization_mode", "vector_kwargs"):
            text = (
                f"{name}= is of gymnasium.make_vec. Here workers=, inline= and backend= say who steps environments, "
                "and options are given by name"
            )
        if text:
            raise UsageError(f"{text}. (For an argument of the environment's constructor: kwargs={{{name!r}: ...}})")
    options = {name: value for name, value in kwargs.items() if name in OPTIONS}
    own = {name: value for name, value in kwargs.items() if name not in OPTIONS}
    options["kwargs"] = {**own, **recipe_parts(options.get("kwargs"), (), ())[0]}
    return VectorEnv(env, num_envs, **options)


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
