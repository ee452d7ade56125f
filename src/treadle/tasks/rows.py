"""Tasks in the arena: rows for actions and observations, with a way out for what fits no row.

Actions are anything that a task takes, passed on untouched. Plain integers lie in the arena, one a slot; for anything
else the integer there is a code, and the action goes by message.

Observations go through the arena where they are exactly what the space says: arrays of its dtype and shape, Python
integers for Discrete. `fitting` makes the test, once a layout. Values that do not pass (sensors are sloppy) go by
message and arrive as they were, so nothing is cast and nothing refused.
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
    """Integers that are no actions."""

    IDLE = -(2**61)  # the slot does nothing: it is paused, or somebody else is stepped
    HELD = IDLE + 1  # its task is over and waits for those of the others
    MAILED = IDLE + 2  # the action goes by message


class Anything(gym.Space[Any]):
    """The space of whatever has no Gymnasium space; its values go by message."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Anything)

    def __hash__(self) -> int:
        return hash(Anything)

    def contains(self, x: Any) -> bool:
        """Everything is in it."""
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """There is nothing to draw from."""
        raise NotImplementedError("nothing is known of these values")


def action_rows() -> gs.Tuple:
    """The space of what a slot is sent: (integer, anything else)."""
    return gs.Tuple((gs.Discrete(2**62, start=-(2**61)), Anything()))


def action_writer(arrays: Sequence[np.ndarray | None]) -> BatchWriter:
    """A function that writes a list of n actions or `Code`s; it returns what is to go by message, if anything."""
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
    """The space that rows are made for: the task's own, or `Anything` where that is no Gymnasium space."""
    return space if isinstance(space, gym.Space) else Anything()


def fitting(layout: Layout) -> Callable[[Any], bool]:
    """A function that returns whether an observation can go through the arena and arrive as it was."""
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
            arrays.append((key, leaf.shape, leaf.dtype))  # most parts are: without a call for each
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
    """An observation that fits and says nothing: zeros, and None where there is no fixed shape."""
    zeros = [
        (0 if isinstance(leaf.space, gs.Discrete) else np.zeros(leaf.shape or (), leaf.dtype)) if leaf.fixed else None
        for leaf in layout.leaves
    ]
    return layout.unflatten(zeros)


def row_splitter(layout: Layout, n: int) -> Callable[[Any], list[Any]]:
    """A function from the observations of a batch (a tree of [n, ...] arrays) to n trees, of views.

    A Discrete leaf is a Python int again.
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
    """A function that makes one observation's Discrete leaves Python ints again."""
    numbers = [i for i, leaf in enumerate(layout.leaves) if isinstance(leaf.space, gs.Discrete) and leaf.fixed]
    if not numbers:
        return lambda tree: tree

    def mend(tree: Any) -> Any:
        leaves = layout.flatten(tree)
        for i in numbers:
            leaves[i] = int(leaves[i])
        return layout.unflatten(leaves)

    return mend
