"""Arrays with time as the first axis: episodes one after the other ("packed") against one row an episode ("padded"),
slices, and joining. Values may be arrays, lists, or nested dicts and tuples of these.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle import trees


def pad_batch_array(array: Any, lengths: Any, max_length: int | None = None) -> Any:
    """Packed [sum(lengths), ...] as padded [N, max_length, ...], zeros where an episode has ended.

    Args:
        array: the packed array, or a tree of them.
        lengths: int[N], steps of each episode.
        max_length: None: the longest episode. Where an episode is longer still, that wins, with a warning.

    Raises:
        ValueError: the lengths do not add up to the array's.
    """
    lengths = np.asarray(lengths)
    longest = int(lengths.max(initial=0))
    if max_length is None:
        max_length = longest
    elif max_length < longest:
        warnings.warn("Creating a padded array with longer length than requested", stacklevel=2)
        max_length = longest
    size = int(max_length)
    inside = np.arange(size) < lengths[:, None]

    def pad(values: Any) -> np.ndarray:
        values = np.asarray(values)
        if len(values) != lengths.sum():
            raise ValueError(
                f"{len(values)} rows cannot be {len(lengths)} episodes of {int(lengths.sum())} steps in all"
            )
        padded = np.zeros((len(lengths), size, *values.shape[1:]), values.dtype)
        padded[inside] = values
        return padded

    return trees.map(pad, array)


def rows_of(tree: Any, start: int, stop: int | None) -> Any:
    """Rows start to stop-1 (None: to the end) of every array and list; arrays are views."""
    return trees.map(lambda values: values[start:stop], tree)


def row_of(tree: Any, i: int) -> Any:
    """Row i of every array and list."""
    return trees.map(lambda values: values[i], tree)


def joined(values: Sequence[Any], there: Callable[..., np.ndarray | None] | None = None) -> Any:
    """Trees one after the other, in one pass.

    Args:
        values: the trees. One alone is returned as it is.
        there: called with the arrays of each leaf; returns them as one array if they lie so already, or None.

    Raises:
        ValueError: they differ in structure; it names the path.
    """
    if len(values) == 1 and there is None:
        return values[0]

    def join(*values: Any) -> Any:
        if isinstance(values[0], list):
            return [item for value in values for item in value]
        found = there(values) if there is not None else None
        if found is None:
            found = np.concatenate(values) if len(values) > 1 else values[0]
        return found

    return join(*values) if isinstance(values[0], np.ndarray) else trees.map(join, values[0], *values[1:])


def array_of(values: Sequence[Any]) -> np.ndarray:
    """A list of values of steps as one array; an array of objects where they have no common shape or are no numbers."""
    try:
        return np.asarray(values)
    except ValueError:  # of different shapes
        array = np.empty(len(values), object)
        array[:] = values
        return array


def stacked(values: Sequence[Any]) -> Any:
    """A list of values of steps as a tree of arrays, time first; dicts and tuples are nodes of the tree."""
    first = values[0]
    if type(first) is dict or (type(first) is tuple and not hasattr(first, "_fields")):
        return trees.map(lambda *leaves: array_of(leaves), first, *values[1:])
    return array_of(values)
