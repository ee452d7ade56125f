"""Rows of the arena for the actions and observations of tasks; values that fit no row go by message.

A task may accept any object as an action. Plain integers lie in the arena, one a slot. For any other action the integer
is a code, and the action goes by message.

Observations go through the arena if they are exactly as the space says: arrays of its dtype and shape, or Python
integers for Discrete. `fitting` makes this test, once for each layout. Other values, which sensors do return, go by
message and arrive unchanged: they are neither cast nor refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from treadle.spaces import BatchWriter, Layout, Leaf, Mailed

WIDEST = 2**60  # plain integers below it, and above its negative, go through the arena


class Code(IntEnum):
    """Integers with a meaning of their own in place of an action."""

    IDLE = -(2**61)  # the slot does nothing: it is paused, or only other slots are stepped
    HELD = IDLE + 1  # its task is over, and the slot waits for the others
    MAILED = IDLE + 2  # the action goes by message


class Anything(gym.Space[Any]):
    """The space of values without a Gymnasium space; they go by message."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Anything)

    def __hash__(self) -> int:
        return hash(Anything)

    def contains(self, x: Any) -> bool:
        """Return True for every object."""
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Raise NotImplementedError, as the values are unknown."""
        raise NotImplementedError("these values cannot be sampled: they have no Gymnasium space")


def action_rows() -> gs.Tuple:
    """Return the space of a slot's orders: (integer, any other action)."""
    return gs.Tuple((gs.Discrete(2**62, start=-(2**61)), Anything()))


def action_writer(arrays: Sequence[np.ndarray | None]) -> BatchWriter:
    """Return a function that writes a list of n actions or `Code`s and returns the actions that go by message."""
    codes = arrays[0]
    assert codes is not None
    plain = {int, Code}

    def write(actions: list[Any]) -> Mailed | None:
        if plain.issuperset(map(type, actions)) and min(actions) >= Code.IDLE and max(actions) < WIDEST:
            codes[...] = actions
            return None
        mailed: list[Any] = [None] * len(actions)
        for i, action in enumerate(actions):
            if type(action) is Code or (type(action) is int and -WIDEST < action < WIDEST):
                codes[i] = action
            else:
                codes[i], mailed[i] = Code.MAILED, action
        return {1: mailed}

    return write


def observation_rows(space: Any) -> gym.Space[Any]:
    """Return the space that rows are made for: the task's own, or `Anything` if that is not a Gymnasium space."""
    return space if isinstance(space, gym.Space) else Anything()


def fitting(layout: Layout) -> Callable[[Any], bool]:
    """Return a function that returns True if an observation can go through the arena and arrive unchanged."""
    return _fits(layout.plan, layout)


def _fits(plan: Any, layout: Layout) -> Callable[[Any], bool]:
    if isinstance(plan, int):
        return _leaf_fits(layout.leaves[plan])
    kind, size = type(plan), len(plan)
    arrays: list[tuple[Any, Any, Any]] = []
    parts: list[tuple[Any, Callable[[Any], bool]]] = []
    for key, part in plan.items() if kind is dict else enumerate(plan):
        leaf = layout.leaves[part] if isinstance(part, int) else None
        if leaf is not None and leaf.fixed and not isinstance(leaf.space, gs.Discrete):
            arrays.append((key, leaf.shape, leaf.dtype))  # most parts are arrays: this saves a call for each
        else:
            parts.append((key, _fits(part, layout)))
    array = np.ndarray

    def fits(value: Any) -> bool:
        if type(value) is not kind or len(value) != size:
            return False
        try:
            for key, shape, dtype in arrays:
                item = value[key]
                if type(item) is not array or item.shape != shape or item.dtype != dtype:
                    return False
            for key, part in parts:
                if not part(value[key]):
                    return False
        except KeyError:
            return False
        return True

    return fits


def _leaf_fits(leaf: Leaf) -> Callable[[Any], bool]:
    if not leaf.fixed:
        return lambda value: True
    dtype, shape = leaf.dtype, leaf.shape
    if isinstance(leaf.space, gs.Discrete):
        info = np.iinfo(dtype)  # type: ignore[arg-type]  # a fixed leaf has a dtype
        low, high = info.min, info.max
        return lambda value: type(value) is int and low <= value <= high
    return lambda value: type(value) is np.ndarray and value.shape == shape and value.dtype == dtype


def blank(layout: Layout) -> Any:
    """Return a placeholder observation that fits: zeros, and None for leaves without a fixed shape."""
    zeros = [
        (0 if isinstance(leaf.space, gs.Discrete) else np.zeros(leaf.shape or (), leaf.dtype)) if leaf.fixed else None
        for leaf in layout.leaves
    ]
    return layout.unflatten(zeros)


def row_splitter(layout: Layout, n: int) -> Callable[[Any], list[Any]]:
    """Return a function that splits a batch of observations (a tree of [n, ...] arrays) into n trees of views.

    Discrete leaves become Python integers again.
    """
    split = _splitter(layout.plan, layout)

    def rows(tree: Any) -> list[Any]:
        return split(tree) or [type(tree)() for _ in range(n)]  # no leaves: n empty trees

    return rows


def _splitter(plan: Any, layout: Layout) -> Callable[[Any], list[Any]]:
    if isinstance(plan, int):
        leaf = layout.leaves[plan]
        if not leaf.fixed or leaf.shape:
            return list
        if isinstance(leaf.space, gs.Discrete):
            return lambda column: column.tolist()
        return lambda column: [column[i, ...] for i in range(len(column))]
    keys = list(plan) if isinstance(plan, dict) else list(range(len(plan)))
    pairs = [(key, _splitter(plan[key], layout)) for key in keys]
    if isinstance(plan, dict):
        return lambda tree: [dict(zip(keys, row)) for row in zip(*[part(tree[key]) for key, part in pairs])]
    return lambda tree: list(zip(*[part(tree[key]) for key, part in pairs]))


def row_mender(layout: Layout) -> Callable[[Any], Any]:
    """Return a function that turns one observation's Discrete leaves into Python integers again."""
    numbers = [i for i, leaf in enumerate(layout.leaves) if isinstance(leaf.space, gs.Discrete) and leaf.fixed]
    if not numbers:
        return lambda tree: tree

    def mend(tree: Any) -> Any:
        leaves = layout.flatten(tree)
        for i in numbers:
            leaves[i] = int(leaves[i])
        return layout.unflatten(leaves)

    return mend
