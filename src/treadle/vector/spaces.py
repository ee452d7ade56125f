"""The spaces of a vector, made from what its slots say of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from treadle.errors import UsageError
from treadle.program.base import Description
from treadle.spaces import Layout
from treadle.vector.core import SpacesDiffer, WrongType

ObservationMode = str | tuple[gym.Space, gym.Space]


@dataclass(frozen=True)
class VectorSpaces:
    """Attributes are named as those of `gymnasium.vector.VectorEnv`."""

    single_observation_space: gym.Space
    observation_space: gym.Space
    single_action_space: gym.Space
    action_space: gym.Space


def check_mode(mode: Any) -> None:
    """Raises UsageError, or WrongType for a tuple of other things than two spaces."""
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, gym.Space) for space in mode):
            kinds = [type(space) for space in mode]
            raise WrongType(f"Expected both elements of observation_mode to be Spaces, got {kinds[0]} and {kinds[1]}")
    elif mode not in ("same", "different"):
        raise UsageError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )


def vector_spaces(slots: Sequence[Description], mode: ObservationMode) -> VectorSpaces:
    """Return the batched spaces.

    Args:
        slots: one description a slot.
        mode: "same": all observation spaces are equal. With "different" bounds may differ, and the batched space has
            each slot's own. A pair (batched space, single space) is used as given. The slots' spaces must have the
            single space's shapes and dtypes.

    Raises:
        SpacesDiffer: the spaces do not fit; the message names the first slot that differs.
    """
    first = slots[0]
    assert first.observation_space is not None
    assert first.action_space is not None
    single: gym.Space = mode[1] if isinstance(mode, tuple) else first.observation_space
    for slot, each in enumerate(slots):
        if mode == "same" and each.observation_space != single:
            raise SpacesDiffer(
                f"observation_mode='same', however the sub-environments observation spaces are not equivalent. Slot "
                f"{slot} has {each.observation_space}, slot 0 has {single}. If this is intentional, use "
                "`observation_mode='different'` instead."
            )
        if mode != "same" and not _alike(each.observation_space, single):
            raise SpacesDiffer(
                "observation_mode='different' or custom space, however the sub-environments observation spaces do not "
                f"share a common shape and dtype. Slot {slot} has {each.observation_space}, expected one like {single}"
            )
        if each.action_space != first.action_space:
            raise SpacesDiffer(
                f"slot {slot} has the action space {each.action_space}, slot 0 has {first.action_space}: to batch "
                "actions, all must be equal"
            )
    n = len(slots)
    if isinstance(mode, tuple):
        batched: gym.Space = mode[0]
    elif mode == "same":
        batched = batch_space(single, n)
    else:
        try:
            batched = batch_differing_spaces([each.observation_space for each in slots])  # type: ignore[misc]
        except TypeError:  # a space of users' own, for which Gymnasium has no rule: it needs none where all are equal
            if any(each.observation_space != single for each in slots):
                raise
            batched = batch_space(single, n)
    return VectorSpaces(single, batched, first.action_space, batch_space(first.action_space, n))


def _alike(space: gym.Space | None, other: gym.Space) -> bool:
    """Return True for the same nesting, and leaves of the same kinds, dtypes and shapes."""
    if space is None:
        return False
    ours, theirs = (
        [(leaf.path, type(leaf.space), leaf.dtype, leaf.shape) for leaf in Layout.of(each).leaves]
        for each in (space, other)
    )
    return ours == theirs
