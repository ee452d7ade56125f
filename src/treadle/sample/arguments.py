"""Arguments of collecting and evaluating: what makes no sense is refused at the call, before anything is started."""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral
from typing import Any

from treadle import seeding
from treadle.errors import UsageError
from treadle.pool.options import PoolOptions


def check_seed(seed: int) -> None:
    """Raise UsageError for what cannot be the seed of a run."""
    try:
        seeding.derive(seed)
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_positive(**counts: Any) -> None:
    """Raise UsageError for what is neither None nor a whole number of at least 1, by its name."""
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise UsageError(f"{name} must be a positive integer or None, got {count!r}")


def check_patience(patience: Any) -> None:
    """Raise UsageError for what is neither None nor a time to wait."""
    if patience is not None and not patience >= 0:
        raise UsageError(f"patience must be None or at least 0 seconds, got {patience!r}")


def check_options(options: dict[str, Any]) -> None:
    """Raise UsageError for options that no pool has."""
    known = {"workers", *(field.name for field in fields(PoolOptions))}
    if unknown := sorted(set(options) - known):
        raise UsageError(
            f"unknown argument {unknown[0]!r}; besides its own, collecting takes {', '.join(sorted(known))}"
        )


def check_amounts(
    episodes: int | None, steps: int | None, workers: int | str, envs_per_worker: int, max_episode_steps: int | None
) -> None:
    """Raise UsageError for amounts that make no sense."""
    if episodes is not None and steps is not None:
        raise UsageError("give either episodes or steps, not both")
    amounts = {"episodes": episodes, "steps": steps, "max_episode_steps": max_episode_steps}
    for name, amount in {**amounts, "envs_per_worker": envs_per_worker}.items():
        if amount is not None and not (isinstance(amount, Integral) and amount >= 1):
            raise UsageError(f"{name} must be a whole number of at least 1, got {amount!r}")
    if workers != "auto" and not (isinstance(workers, Integral) and workers >= 1):
        raise UsageError(f"workers must be 'auto' or a whole number of at least 1, got {workers!r}")
