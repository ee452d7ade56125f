"""Spaces drawn by hypothesis, and rows and batches to write their values to; for the tests of layouts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import strategies as st

from treadle import trees
from treadle.spaces import Layout

FLOATS = [np.float16, np.float32, np.float64]
INTEGERS = [np.uint8, np.int8, np.int32, np.int64]
shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)


def box(dtype: Any, shape: tuple[int, ...]) -> gs.Box:
    return gs.Box(0, 1, shape, dtype)


boxes = st.builds(box, st.sampled_from([*FLOATS, *INTEGERS, np.bool_]), shapes)
discretes = st.builds(
    lambda n, start, dtype: gs.Discrete(n, start=start, dtype=dtype),
    st.integers(1, 9),
    st.integers(-3, 3),
    st.sampled_from([np.int8, np.int32, np.int64]),
)
multis = st.one_of(
    st.builds(gs.MultiBinary, st.integers(1, 4) | st.lists(st.integers(1, 3), min_size=2, max_size=2)),
    st.builds(lambda nvec: gs.MultiDiscrete(nvec, start=[-1] * len(nvec)), st.lists(st.integers(1, 5), min_size=1)),
    st.just(gs.MultiDiscrete([[2, 3], [4, 5]], dtype=np.uint8)),
)
loose_leaves = st.sampled_from(
    [
        gs.Text(5),
        gs.Graph(gs.Box(0, 1, (2,)), gs.Discrete(3)),
        gs.Sequence(gs.Box(0, 1, (2,))),
        gs.OneOf([gs.Discrete(2), gs.Box(0, 1, (3,))]),
    ]
)
fixed_leaves = boxes | discretes | multis


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.text("abcxyz", min_size=1, max_size=3)
    return st.dictionaries(keys, inner, min_size=1, max_size=3).map(gs.Dict) | st.lists(
        inner, min_size=1, max_size=3
    ).map(gs.Tuple)


fixed_spaces = st.recursive(fixed_leaves, nested, max_leaves=5)
any_space = st.recursive(fixed_leaves | loose_leaves, nested, max_leaves=5)


def sample(space: gym.Space[Any], seed: int) -> Any:
    space.seed(seed)
    return space.sample()


def make_arrays(layout: Layout, n: int) -> list[Any]:
    return [np.zeros((n, *leaf.shape), leaf.dtype) if leaf.shape is not None else None for leaf in layout.leaves]


def rows_of(arrays: list[Any], index: int) -> list[Any]:
    return [None if a is None else a[index, ...] for a in arrays]


def writer(layout: Layout) -> tuple[Any, list[Any]]:
    """A row writer on row 1 of 3, and that row's arrays."""
    rows = rows_of(make_arrays(layout, 3), 1)
    return layout.row_writer(rows), rows


def read(layout: Layout, rows: list[Any], loose: Any = ()) -> Any:
    """The value in one row: copies of the arrays of fixed leaves (Python's int of a Discrete one), loose as given."""
    rest = iter(loose)
    values = [
        (row.item() if isinstance(leaf.space, gs.Discrete) else row.copy()) if leaf.fixed else next(rest)
        for leaf, row in zip(layout.leaves, rows, strict=True)
    ]
    return layout.unflatten(values)


def same_leaves(layout: Layout, a: Any, b: Any) -> bool:
    """Equal to the byte; for a Discrete leaf the number counts, and not whether it is Python's or NumPy's."""
    pairs = zip(layout.leaves, layout.flatten(a), layout.flatten(b), strict=True)
    return all(x == y if isinstance(leaf.space, gs.Discrete) else trees.equal(x, y) for leaf, x, y in pairs)


def replaced(layout: Layout, value: Any, index: int, item: Any) -> Any:
    values = layout.flatten(value)
    values[index] = item
    return layout.unflatten(values)


def batched(space: gym.Space[Any], samples: list[Any]) -> Any:
    """The batch that Gymnasium makes of samples."""
    return concatenate(space, samples, create_empty_array(space, len(samples)))


def batch(layout: Layout, n: int) -> tuple[Any, list[Any]]:
    arrays = make_arrays(layout, n)
    return layout.batch_writer(arrays, n), arrays
