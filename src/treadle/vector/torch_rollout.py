"""Rollouts as torch tensors over the same memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from treadle import trees
from treadle.program.torch_policy import library
from treadle.vector.rollout import Rollout


def tensors_of(rollout: Rollout) -> Rollout:
    """The rollout with a tensor in the place of every array, over the array's memory, which it keeps alive.

    What is no array (leaves without a fixed shape, infos) stays as it is. Raises MissingExtra without torch.
    """
    torch = library("a rollout's tensors need")  # a Rollout's fields say arrays, and hold tensors here

    def tensor(leaf: Any) -> Any:
        return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf

    def tensors(tree: Any) -> Any:
        return trees.map(tensor, tree)

    names = ("observations", "actions", "bootstrap", "following")
    arrays = ("rewards", "terminated", "truncated", "valid", "episode_ids")
    ends = {
        at: trees.map(lambda leaf: torch.as_tensor(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf, end)
        for at, end in rollout.terminal_observations.items()
    }
    return replace(
        rollout,
        **{name: tensors(getattr(rollout, name)) for name in names},
        **{name: torch.from_numpy(getattr(rollout, name)) for name in arrays},
        terminal_observations=ends,
    )


__all__ = ["tensors_of"]
