"""What is kept of an episode that has failed, or of any other: with its index and the run's seed it can be made again.

Nothing has to be recorded for it while all goes well. When an environment raises, its worker tells the actions of that
episode, which it has anyway; when a worker dies the policy is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from treadle import seeding
from treadle.repro import Repro, failure_of, note, recipe_of
from treadle.sample.failed import CollectionFailed
from treadle.sample.named import env_name
from treadle.sample.rollout_slot import RolloutRecipe

log = logging.getLogger("treadle")


def repro_of(recipe: RolloutRecipe, root: int, index: int, error: CollectionFailed | None = None) -> Repro:
    """How to play episode `index` of a run again, and what it failed of (`error`)."""
    asking, given = recipe.asking, recipe.reset_options
    name = env_name(recipe.env.env)
    about: dict[str, Any] = {
        "face": "episode",
        "title": f"episode {index} of {name}",
        "seed": seeding.episode_env_seed(root, index),
        "policy_seed": seeding.episode_policy_seed(root, index),
        "index": index,
        "root": root,
        "max_steps": recipe.max_steps,
    }
    if asking is not None:  # the policy is asked in the caller
        about |= {"asking": {"pad_to": asking.pad_to, "n_action_steps": asking.n_action_steps}}
    repro = Repro(about)
    recipe_of(repro, recipe.env)
    repro.put("policy", recipe.policy if asking is None else asking.policy)
    options = given(index) if callable(given) else None if given is None else given[index % len(given)]
    repro.put("options", options)
    if error is not None:
        cause: Any = error.__cause__
        if isinstance(cause, CollectionFailed):  # the last of too many
            cause = cause.__cause__
        repro.about["failed"] = {**failure_of(cause, error.reason), "episode": index}
        repro.arrays.update(cause.trail or {})
    return repro


def record(recipe: RolloutRecipe, root: int, error: CollectionFailed, keep: Callable[[Repro], Any]) -> None:
    """Keep what ended a run, or what it skipped, can be replayed from; nothing where no single episode failed."""
    index = error.where.episode
    if index is not None and error.where.phase not in ("init", "write"):
        repro = repro_of(recipe, root, index, error)
        try:
            keep(repro)
        except OSError as problem:  # a full disk is no reason to hide what has failed
            log.warning("what episode %d can be replayed from was not written: %s", index, problem)
        note(error, repro)
