"""`make_vec` for PettingZoo's environments, and datasets of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.errors import UsageError
from treadle.pettingzoo.env import Maker
from treadle.pettingzoo.faces import AgentRows, AgentsVector
from treadle.record.dataset import Stored
from treadle.record.dataset import collect_dataset as collect_any
from treadle.vector.make_vec import make_vec as make_any

FORMS: dict[str, type] = {"grouped": AgentsVector, "rows": AgentRows}


def make_vec(
    env: str | Callable[..., Any], n: int = 1, *, form: str = "grouped", turns: bool = False, **kwargs: Any
) -> Any:
    """A vector of n environments of several agents.

    Args:
        env: a callable that returns a `pettingzoo.ParallelEnv` (such as `simple_spread_v3.parallel_env`), or the name
            of the module that has one ("mpe2.simple_spread_v3").
        n: how many environments.
        form: "grouped": `AgentsVector`, {agent: [n, ...]}. "rows": `AgentRows`, a `gymnasium.vector.VectorEnv` with
            a row for each agent of each environment, for agents with equal spaces.
        turns: `env` makes an `AECEnv`, whose agents take turns: `alive` tells whose turn it is, and a step is one
            agent's. (A module's `env` is taken.)
        **kwargs: options of `treadle.VectorEnv` (workers, inline, autoreset_mode, on_failure, ...); the others go to
            `env`. As for `treadle.make_vec`.

    Raises:
        UsageError: another form; agents with different spaces in rows. What `treadle.make_vec` raises: an environment
            of the other kind than `turns` says is a StartupFailed, and so is a package that is not installed.
    """
    if form not in FORMS:
        raise UsageError(f'form is "grouped" or "rows", got {form!r}')
    if kwargs.get("infos", "gymnasium") != "gymnasium":
        raise UsageError('vectors of agents have infos="gymnasium" only')
    return FORMS[form](make_any(Maker(env, turns), n, **kwargs))


def collect_dataset(
    env: str | Callable[..., Any],
    policy: Any = None,
    *,
    out: str | Path,
    turns: bool = False,
    **options: Any,
) -> Stored:
    """`treadle.collect_dataset` of an environment of several agents.

    A policy sees a slot's observation (`treadle.pettingzoo.layout`) and returns a slot's action.

    Args:
        env, turns: as for `make_vec`; `env_kwargs` are its arguments.
    """
    return collect_any(Maker(env, turns), policy, out=out, **options)


__all__ = ["collect_dataset", "make_vec"]
