"""A sampler's check of observations: values that almost fit a space, and spaces of other libraries.

One observation of another shape or type would change the dtype of a whole batch, or turn it into objects, without an
error. So each observation is checked before the agent gets it, as in the vectors.

The shapes, dtypes and keys of a `gymnasium.Env` must be exactly those of its space. Environments with the sampler's own
interface were never held to their dtypes; garage's own return float64 for a float32 space. Their floats and integers
may have another width. They are cast to the space's dtype, for the agent and for the record.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gs

from treadle.spaces.layout import Layout
from treadle.spaces.leaves import Leaf, Mismatch


class Fit:
    """A callable that checks an observation and returns it, cast if necessary. The call raises `spaces.Mismatch`.

    Args:
        space: a Gymnasium space, or one with `spaces`, `n`, or `shape` and `dtype`, as those of gym and akro. Only
            properties that these attributes define are checked.
        exact: True: dtypes must be the space's own. False: other widths are cast, if the values fit.
    """

    def __init__(self, space: Any, *, exact: bool) -> None:
        self._layout, self._exact = Layout.of(_known(space)), exact

    def __call__(self, observation: Any) -> Any:
        problem = self._layout.problem(observation)
        if problem is None:
            return observation
        if self._exact:
            raise problem
        values = self._layout.flatten(observation)
        return self._layout.unflatten([_cast(leaf, value) for leaf, value in zip(self._layout.leaves, values)])


def _cast(leaf: Leaf, value: Any) -> Any:
    wrong = leaf.mismatch(value)
    if wrong is None:
        return value
    if leaf.dtype is not None and isinstance(value, np.ndarray | np.generic | float | int | list):
        try:
            array = np.asarray(value)
        except ValueError:  # a ragged list
            raise Mismatch(leaf.path, *wrong) from None
        alike = any(leaf.dtype.kind in kinds and array.dtype.kind in kinds for kinds in ("f", "iu"))
        if alike and array.shape == leaf.shape and not isinstance(leaf.space, gs.Discrete):
            with np.errstate(over="ignore"):
                cast = array.astype(leaf.dtype)
            fits = np.isfinite(cast) == np.isfinite(array) if leaf.dtype.kind == "f" else cast == array
            if fits.all():
                return cast
    raise Mismatch(leaf.path, *wrong)


def _known(space: Any) -> Space[Any]:
    """Return a Gymnasium space with the same shapes and dtypes."""
    if isinstance(space, Space):
        return space
    inner, shape = getattr(space, "spaces", None), getattr(space, "shape", None)
    if isinstance(inner, Mapping):
        return gs.Dict({key: _known(each) for key, each in inner.items()})
    if isinstance(inner, tuple | list):
        return gs.Tuple([_known(each) for each in inner])
    if isinstance(getattr(space, "n", None), int | np.integer) and shape == ():
        return gs.Discrete(int(space.n))
    try:
        dtype = np.dtype(getattr(space, "dtype", None) or object)
    except TypeError:
        dtype = np.dtype(object)
    if isinstance(shape, tuple) and dtype.kind in "fiu":
        low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return gs.Box(low, high, shape, dtype.type)
    return Space()


def soft_contains(space: Any, element: Any) -> bool:
    """Return True if the element is in the space, or has as many entries as a flattened value of the space.

    So a value of a Box may be flat or out of bounds, and a value of a Discrete may be one-hot. A value of a Dict is a
    dict with the space's keys, and a value of a Tuple a tuple. Raises ValueError for lists of unequal lengths.
    """
    if isinstance(space, gs.Dict):
        return (
            isinstance(element, dict)
            and element.keys() == space.spaces.keys()
            and all(soft_contains(each, element[key]) for key, each in space.spaces.items())
        )
    if isinstance(space, gs.Tuple):
        return (
            isinstance(element, tuple)
            and len(element) == len(space.spaces)
            and all(soft_contains(each, item) for each, item in zip(space.spaces, element, strict=True))
        )
    if contains(space, element):
        return True
    entries = _entries(space)
    return entries is not None and entries == int(np.prod(np.shape(element)))


def contains(space: Any, element: Any) -> bool:
    """Return True if the element is in the space, without Gymnasium's warnings and errors about other types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's Box warns when it casts
        try:
            return bool(space.contains(element))
        except (TypeError, ValueError, AttributeError):  # an element of a type that the space cannot test
            return False


def _entries(space: Any) -> int | None:
    """Return how many numbers a flattened value of the space has; None: unknown."""
    flat = getattr(space, "flat_dim", None)
    if flat is not None:
        return int(flat)
    if isinstance(space, gs.Box):
        return int(np.prod(space.shape))
    return int(space.n) if isinstance(space, gs.Discrete) else None
