"""What must hold of a batch of steps. The messages are part of the contract: programs and tests match them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from treadle import trees
from treadle.sample.samplers.steps import StepType


def soft_contains(space: Any, element: Any) -> bool:
    """Is it in the space, or has it at least as many entries as the space's values have?

    A value of a Box may so be flat or out of bounds, one of a Discrete one-hot.
    """
    if isinstance(space, gs.Dict):
        return isinstance(element, dict) and _all_contain({k: (space[k], element.get(k)) for k in space}, element)
    if isinstance(space, gs.Tuple):
        return (
            isinstance(element, tuple)
            and len(element) == len(space.spaces)
            and all(soft_contains(each, item) for each, item in zip(space.spaces, element, strict=True))
        )
    if _contains(space, element):
        return True
    entries = _entries(space)
    return entries is not None and entries == int(np.prod(np.shape(element)))


def _all_contain(pairs: dict[Any, tuple[Any, Any]], element: dict[Any, Any]) -> bool:
    return element.keys() == pairs.keys() and all(soft_contains(space, item) for space, item in pairs.values())


def _contains(space: Any, element: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's Box warns about what it casts
        try:
            return bool(space.contains(element))
        except (TypeError, ValueError, AttributeError):  # not even a value of some space
            return False


def _entries(space: Any) -> int | None:
    """How many numbers a flattened value has; None: nobody can tell."""
    flat = getattr(space, "flat_dim", None)
    if flat is not None:
        return int(flat)
    if isinstance(space, gs.Box):
        return int(np.prod(space.shape))
    return int(space.n) if isinstance(space, gs.Discrete) else None


def _shape(element: Any) -> Any:
    if isinstance(element, dict | tuple):
        return trees.map(np.shape, element)
    return np.shape(element)


def _first(values: Any) -> Any:
    """The first row."""
    return values[0] if isinstance(values, np.ndarray) else trees.map(lambda leaf: leaf[0], values)


def check_values(field: str, values: Any, space: Any) -> None:
    """Raise ValueError unless the first row fits the space. Out of bounds only warns."""
    first = _first(values)
    if _contains(space, first):
        return
    noun = "observation" if "observation" in field else "action"
    if not soft_contains(space, first):
        raise ValueError(f"Each {field[:-1]} has shape {_shape(first)} but must match the {noun}_space {space}")
    if noun == "observation" and isinstance(first, np.ndarray):
        warnings.warn(f"Observation {first!r} is outside observation_space {space}", stacklevel=4)


class Sizes:
    """All columns of a batch have as many rows as the first that was seen.

    Attributes:
        rows: that many; None before the first.
        of: the name of the column that said so.
    """

    def __init__(self) -> None:
        self.rows: int | None = None
        self.of = ""

    def see(self, field: str, values: Any) -> None:
        """Raises ValueError when a column is neither an array nor a tree of arrays, or has another number of rows."""
        for leaf in (values,) if isinstance(values, np.ndarray) else trees.leaves(values):
            if not isinstance(leaf, np.ndarray):
                if isinstance(values, dict | tuple) and isinstance(leaf, list):
                    size = len(leaf)  # text and the like in a nested observation
                else:
                    raise ValueError(f"{field} is not of type {np.ndarray!r}")
            else:
                size = leaf.shape[0]
            if self.rows is None:
                self.rows, self.of = size, field
            elif size != self.rows:
                raise ValueError(
                    f"{field} has batch size {size}, but must have batch size {self.rows} to match {self.of}"
                )

    def see_infos(self, field: str, infos: dict[str, Any]) -> None:
        """Raises ValueError for an entry that is neither an array nor a dict, or has another number of rows."""
        for key, values in infos.items():
            if not isinstance(values, np.ndarray | dict):
                raise ValueError(
                    f"Entry {key!r} in {field} is of type {type(values)} but must be {np.ndarray!r} or dict"
                )
            if isinstance(values, np.ndarray) and values.shape[0] != self.rows:
                raise ValueError(
                    f"Entry {key!r} in {field} has batch size {values.shape[0]} but must have batch size "
                    f"{self.rows} to match {self.of}"
                )


def check_steps(batch: Any, *, next_observations: bool) -> None:
    """Raise ValueError unless the columns of a batch of steps fit one another and its spaces.

    `next_observations`: does it have them, and infos of episodes, as columns of their own?
    """
    sizes = Sizes()
    for field in ("rewards", "observations", "actions", "next_observations", "step_types"):
        if field == "next_observations" and not next_observations:
            continue
        values = getattr(batch, field)
        sizes.see(field, values)
        if field in ("rewards", "step_types") and values.shape != (sizes.rows,):
            raise ValueError(
                f"{field} has shape {values.shape} but must have batch size {sizes.rows} to match {sizes.of}"
            )
        if sizes.rows == 0:
            raise ValueError(f"{field} has batch size 0: a batch holds at least one step")
        spec = batch.env_spec
        if field in ("observations", "next_observations"):
            check_values(field, values, spec.observation_space)
        elif field == "actions":
            check_values(field, values, spec.action_space)
        elif field == "step_types" and values.dtype != np.dtype(object):
            raise ValueError(f"step_types has dtype {values.dtype} but must have dtype StepType")
    sizes.see_infos("agent_infos", batch.agent_infos)
    if next_observations:
        sizes.see_infos("episode_infos", batch.episode_infos)
    sizes.see_infos("env_infos", batch.env_infos)


def check_episodes(env_spec: Any, episode_infos: dict[str, Any], last_observations: Any, lengths: Any) -> None:
    """Raise ValueError unless what a batch holds once an episode fits the lengths and the space."""
    if len(lengths.shape) != 1:
        raise ValueError(f"lengths has shape {lengths.shape} but must be a tensor of shape (N,)")
    if lengths.dtype.kind not in "ui":
        raise ValueError(f"lengths has dtype {lengths.dtype}, but must have an integer dtype")
    episodes = len(lengths)
    if episodes == 0:
        raise ValueError("lengths has shape (0,): a batch holds at least one episode")
    for key, values in episode_infos.items():
        if not isinstance(values, np.ndarray):
            raise ValueError(
                f"Entry {key!r} in episode_infos is of type {type(values)!r} but must be of type {np.ndarray!r}"
            )
        if values.shape[0] != episodes:
            raise ValueError(
                f"Entry {key!r} in episode_infos has batch size {values.shape[0]}, but must have batch size "
                f"{episodes} to match the number of episodes"
            )
    for leaf in (last_observations,) if isinstance(last_observations, np.ndarray) else trees.leaves(last_observations):
        if not isinstance(leaf, np.ndarray | list) or (isinstance(leaf, list) and leaf is last_observations):
            raise ValueError(f"last_observations is not of type {np.ndarray!r}")
        if len(leaf) != episodes:
            raise ValueError(
                f"last_observations has batch size {len(leaf)} but must have batch size {episodes} to match the "
                "number of episodes"
            )
    first = _first(last_observations)
    if not soft_contains(env_spec.observation_space, first):
        raise ValueError(
            f"last_observations must have the same number of entries as there are episodes ({episodes}) but got data "
            f"with shape {_shape(first)} entries"
        )


__all__ = ["StepType", "check_episodes", "check_steps", "check_values", "soft_contains"]
