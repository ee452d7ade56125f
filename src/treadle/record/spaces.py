"""Which spaces a dataset can describe, and what stands in for the others.

Minari names Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict and Tuple. Another space whose values are text (such
as MiniGrid's MissionSpace) is stored as the Text space of the texts that occurred; any other cannot be stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from treadle.record.columns import leaves
from treadle.spaces import Layout

_NAMED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text)
_RAGGED = (spaces.Graph, spaces.Sequence, spaces.OneOf)


def _leaves(space: gym.Space, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], gym.Space]]:
    layout = Layout.of(space)
    return [(where, layout.leaves[index].space) for where, index in leaves(layout.plan, path)]


def check_storable(space: gym.Space, name: str) -> None:
    """Raise TypeError, naming the place, when values of `space` have no place in a dataset."""
    for path, leaf in _leaves(space, (name,)):
        where = "/".join(path)
        if isinstance(leaf, _RAGGED) or not (isinstance(leaf, _NAMED) or _is_text(leaf)):
            raise TypeError(f"{where} is a {type(leaf).__name__} space, which a dataset cannot store; flatten it first")
        if any("/" in key or key in ("", ".") for key in path):
            raise TypeError(f"{where}: a key with '/' or an empty one cannot name an array in a dataset")


def _is_text(space: gym.Space) -> bool:
    return space.dtype is not None and space.dtype.kind == "U"


def foreign_texts(space: gym.Space) -> list[tuple[str, ...]]:
    """The paths of text leaves whose space Minari cannot name."""
    return [path for path, leaf in _leaves(space, ()) if not isinstance(leaf, _NAMED)]


def base_space(space: gym.Space, texts: Mapping[str, Sequence[Any]], path: tuple[str, ...]) -> gym.Space:
    """`space` with every leaf that Minari cannot name replaced by the Text space of what occurred there.

    Args:
        space: checked by `check_storable`.
        texts: by path (joined by "/"): shortest length, longest length, characters. What is there is replaced in any
            case: the space may come from another dataset.
        path: where `space` is: ("observations",) or ("actions",).
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: base_space(inner, texts, (*path, str(key))) for key, inner in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([base_space(inner, texts, (*path, f"_index_{i}")) for i, inner in enumerate(space.spaces)])
    if isinstance(space, _NAMED) and "/".join(path) not in texts:
        return space
    shortest, longest, characters = texts.get("/".join(path), (0, 1, ""))
    return spaces.Text(max(1, longest), min_length=min(1, shortest), charset=characters or " ")
