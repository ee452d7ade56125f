"""`make_vec` for PettingZoo's environments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from treadle.errors import UsageError
from treadle.pettingzoo.env import AgentsEnv
from treadle.pettingzoo.faces import AgentRows, AgentsVector
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.make_vec import vector_of

FORMS: dict[str, type] = {"grouped": AgentsVector, "rows": AgentRows}


def make_vec(env: Callable[..., Any], n: int = 1, *, form: str = "grouped", turns: bool = False, **kwargs: Any) -> Any:
    """A vector of n environments of several agents.

    Args:
        env: a callable that returns a `pettingzoo.ParallelEnv`, such as `simple_spread_v3.parallel_env`.
        n: how many environments.
        form: "grouped": `AgentsVector`, {agent: [n, ...]}. "rows": `AgentRows`, a `gymnasium.vector.VectorEnv` with
            a row for each agent of each environment, for agents with equal spaces.
        turns: `env` makes an `AECEnv`, whose agents take turns: `alive` tells whose turn it is, and a step is one
            agent's.
        **kwargs: options of `treadle.VectorEnv` (workers, inline, autoreset_mode, on_failure, ...); the others go to
            `env`. As for `treadle.make_vec`.

    Raises:
        UsageError: `env` is no function; another form; agents with different spaces in rows. What `treadle.make_vec`
            raises: an environment of the other kind than `turns` says, or one that does not say in `possible_agents`
            who its agents may be, is a StartupFailed.
    """
    if form not in FORMS:
        raise UsageError(f'form is "grouped" or "rows", got {form!r}')
    return FORMS[form](slots_of("make_vec", AgentsEnv, env, n, turns=turns, **kwargs))


def slots_of(face: str, kind: Callable[..., Any], env: Callable[..., Any], n: int, /, **kwargs: Any) -> VectorEnv:
    """The vector below: a `kind` over what `env` makes in each slot. `face`: what the user has called."""
    if not callable(env):
        raise UsageError(
            f"a function that makes a PettingZoo environment is wanted, such as a parallel_env, got {env!r}"
        )
    if kwargs.get("infos", "gymnasium") != "gymnasium":
        raise UsageError('vectors of agents have infos="gymnasium" only')
    return vector_of(face, partial(kind, env, turns=kwargs.pop("turns", False)), n, **kwargs)
