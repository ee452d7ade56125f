"""One call for a planning environment of an id."""

from __future__ import annotations

from typing import Any

from treadle.errors import UsageError
from treadle.plan.env import PlanEnv
from treadle.plan.gym_plan_env import GymPlanEnv
from treadle.plan.parallel import ParallelEnv
from treadle.plan.vectorized import refuse_misspelt
from treadle.pool import bell


def make(id: Any, n_workers: int | str | None = None, **kwargs: Any) -> PlanEnv:
    """A planning environment.

    Args:
        id: what `GymPlanEnv` takes as its name.
        n_workers: None: a `GymPlanEnv` in this process. A number: a `ParallelEnv` with so many workers; "auto": as many
            as there are cores.
        **kwargs: for `ParallelEnv` and the `GymPlanEnv`.
    """
    refuse_misspelt(GymPlanEnv, kwargs if n_workers is None else ())  # a ParallelEnv does so itself
    if n_workers is None:
        return GymPlanEnv(id, **kwargs)
    if isinstance(n_workers, str):
        if n_workers != "auto":
            raise UsageError(f"n_workers is a number, 'auto' or None, got {n_workers!r}")
        n_workers = bell.cores()
    return ParallelEnv(GymPlanEnv, id, n_workers=n_workers, **kwargs)
