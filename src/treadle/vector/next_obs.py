"""The observation that really followed an action, whatever the autoreset mode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs


def next_obs(observations: Any, infos: Any, space: gym.Space | None = None) -> Any:
    """Return the observation after each slot's action: at an episode's end the terminal one, else the slot's row.

    In SAME_STEP mode the row of an ended episode shows the next episode's first observation; a value bootstrapped
    from that would be wrong. In NEXT_STEP and DISABLED mode rows show the terminal observation, and the same object is
    returned. (In NEXT_STEP mode the step after an end is not a transition: see `valid` of the vector.)

    Args:
        observations: a batch, as a vector's `step` returns it: [n, ...] arrays in nested dicts and tuples. A leaf
            without a fixed shape is a tuple of n values.
        infos: of the same step, in any of the three forms (see `treadle.vector.infos`).
        space: the single observation space. It is needed only where values without a fixed shape (Sequence, Text,
            Graph) are tuples. There it distinguishes a Tuple of k parts from a batch of k values.

    Returns:
        The batch. Arrays that changed are copies; the arguments are not written to.
    """
    finals = finals_of(infos)
    return _replaced(observations, finals, space) if finals else observations


def finals_of(infos: Any) -> dict[int, Any]:
    """slot -> terminal observation, from a batch's infos in any of the three forms."""
    if isinstance(infos, dict):
        for key in ("final_obs", "final_observation"):
            if key in infos:
                slots = np.flatnonzero(infos[f"_{key}"]).tolist()
                return {slot: infos[key][slot] for slot in slots}
        return {}
    return {slot: info["final_obs"] for slot, info in enumerate(infos) if "final_obs" in info}


def _replaced(batch: Any, finals: dict[int, Any], space: gym.Space | None) -> Any:
    if isinstance(batch, np.ndarray):
        out = batch.copy()
        for slot, value in finals.items():
            out[slot] = value
        return out
    if isinstance(batch, dict):
        parts = space.spaces if isinstance(space, gs.Dict) else {}
        return {
            key: _replaced(part, {slot: final[key] for slot, final in finals.items()}, parts.get(key))
            for key, part in batch.items()
        }
    if isinstance(space, gs.Tuple) or (space is None and _is_nest(batch, finals)):
        spaces = space.spaces if isinstance(space, gs.Tuple) else [None] * len(batch)
        return tuple(
            _replaced(part, {slot: final[i] for slot, final in finals.items()}, spaces[i])
            for i, part in enumerate(batch)
        )
    values = list(batch)
    for slot, value in finals.items():
        values[slot] = value
    return tuple(values)


def _is_nest(batch: tuple[Any, ...], finals: dict[int, Any]) -> bool:
    """Return True if the tuple's parts look like batches, and final observations like tuples of as many parts."""
    return all(isinstance(part, np.ndarray | dict | tuple) for part in batch) and all(
        type(final) is tuple and len(final) == len(batch) for final in finals.values()
    )
