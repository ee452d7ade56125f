"""The leaves of a Gymnasium space, their dtypes and shapes, and exact checks of values.

A *leaf* is fixed or loose. A fixed leaf (Box, Discrete, MultiBinary, MultiDiscrete) always has the same dtype and
shape, so it lives in an array with one row per slot. All others are loose and go by message: Text, Graph, Sequence,
OneOf, spaces of dtype object, and every space that this module does not know. Dict and Tuple only nest.

Values are neither broadcast nor cast. NumPy would do both without an error (``row[:] = [1.0]`` fills four numbers, a
float64 of 1e300 becomes an infinite float32), and a learner would not notice. So dtype and shape are checked before
every write, or by the write itself. Assigning an array to a one-dimensional memoryview compares format and shape in C,
and refuses all other arrays. This takes less time than a comparison in Python.

There are two checks. The fast one is a closure that is bound to its rows once. It accepts the values of well-behaved
environments and refuses all doubtful ones. The slow one, `Outline.problem`, decides about these, and finds the error
and its path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from treadle.trees import Path

RowWriter = Callable[[Any], "list[Any] | None"]
Mailed = dict[int, Sequence[Any]]  # values that go by message: the index of a leaf -> a batch of its values
BatchWriter = Callable[[Any], "Mailed | None"]
BatchReader = Callable[..., "list[Any]"]


class Mismatch(ValueError):
    """A value does not fit its space.

    Attributes:
        path: the keys and indices that lead to the leaf, or to the dict or tuple with the wrong outline. A missing or
            unknown key is the last one of its path.
        expected: a description of the leaf, e.g. ``uint8[7, 7, 3]``.
        got: a description of the value.
        row: the first bad row of a batch; None for a single value, or if the batch as a whole is wrong.
        name: the name of the value in the message; code that catches the error may set a better one.
    """

    def __init__(self, path: Path, expected: str, got: str, row: int | None = None, name: str = "observation") -> None:
        super().__init__(path, expected, got, row, name)  # the arguments, so that pickle and copy can rebuild it
        self.path = path
        self.expected = expected
        self.got = got
        self.row = row
        self.name = name

    def __str__(self) -> str:
        where = self.name + "".join(f"[{key!r}]" for key in self.path)
        if self.row is not None:
            where = f"row {self.row} of {where}"
        return f"{where}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True)
class Leaf:
    """One leaf of a space.

    Attributes:
        path: keys of Dicts and indices of Tuples from the root; ``()`` if the space itself is the leaf.
        space: the leaf's own space.
        dtype: of the array that holds it; None for a loose leaf.
        shape: of one value, ``()`` for Discrete; None for a loose leaf.
        fixed: True if all values have one dtype and shape.
        nbytes: bytes of one value; 0 for a loose leaf.
    """

    path: Path
    space: gym.Space[Any]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...] | None
    fixed: bool
    nbytes: int

    @staticmethod
    def of(space: gym.Space[Any], path: Path = ()) -> Leaf:
        """Make the leaf of a space that does not nest."""
        if isinstance(space, gs.Box | gs.Discrete | gs.MultiBinary | gs.MultiDiscrete):
            dtype = np.dtype(space.dtype)
            if not dtype.hasobject:
                shape = () if isinstance(space, gs.Discrete) else tuple(space.shape)
                return Leaf(path, space, dtype, shape, True, dtype.itemsize * math.prod(shape))
        return Leaf(path, space, None, None, False, 0)

    def __str__(self) -> str:
        """Return a text such as ``uint8[7, 7, 3]``; for a loose leaf, the name of its space."""
        if self.dtype is None or self.shape is None:
            return f"a value of {type(self.space).__name__}"
        return f"{self.dtype}{list(self.shape)}"

    def mismatch(self, value: Any) -> tuple[str, str] | None:
        """Return descriptions of the leaf and of the value, (expected, got); None if the value fits.

        A Discrete leaf takes a Python int, a NumPy integer or an integer array of shape () that its dtype can hold, but
        not a bool. Every other fixed leaf takes an array of exactly its dtype and shape, or a NumPy scalar if the shape
        is (). A loose leaf takes any value: a check by its space would cost too much.
        """
        if not self.fixed:
            return None
        if isinstance(self.space, gs.Discrete):
            info = np.iinfo(self.dtype)  # type: ignore[arg-type]  # a fixed leaf has a dtype
            if is_integer(value) and info.min <= int(value) <= info.max:
                return None
            return f"an integer that fits {self.dtype}", describe(value)
        is_array = isinstance(value, np.ndarray) or (isinstance(value, np.generic) and self.shape == ())
        if is_array and value.dtype == self.dtype and value.shape == self.shape:
            return None
        return str(self), describe(value)


def is_integer(value: Any) -> bool:
    """Return True for one integer: Python's, NumPy's or an array of shape (); False for a bool."""
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype.kind in "iu"
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def describe(value: Any) -> str:
    """Describe a value in a few words: ``float64[7, 7, 3]``, ``int 5``, ``dict with keys ['a']``.

    For a tensor, the text says how it becomes an array.
    """
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, np.generic):
        return f"{value.dtype} {value}"
    if isinstance(value, dict):
        return f"dict with keys {list(value)!r}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of length {len(value)}"
    if isinstance(value, bool | int | float | str | bytes):
        text = repr(value)
        return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
    if value is None:
        return "None"
    mends = " (its .numpy() is an array)" if callable(getattr(value, "numpy", None)) else ""
    return f"an object of type {type(value).__module__}.{type(value).__qualname__}{mends}"


# The nesting of a space, as a tree whose leaves are indices into Layout.leaves.
Plan = Any


def _plan(space: gym.Space[Any], path: Path, leaves: list[Leaf]) -> Plan:
    if isinstance(space, gs.Dict):
        return {key: _plan(child, (*path, key), leaves) for key, child in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        return tuple(_plan(child, (*path, index), leaves) for index, child in enumerate(space.spaces))
    leaves.append(Leaf.of(space, path))
    return len(leaves) - 1


def plan_items(plan: Plan) -> Iterator[tuple[Any, Plan]]:
    """Yield the (key, plan) pairs of a nested plan."""
    return iter(plan.items()) if isinstance(plan, dict) else enumerate(plan)


def _outline(plan: Plan, leaves: Sequence[Leaf]) -> str:
    if isinstance(plan, int):
        return str(leaves[plan])
    return f"dict with keys {list(plan)!r}" if isinstance(plan, dict) else f"tuple of length {len(plan)}"


def check_outline(plan: Plan, value: Any, path: Path, leaves: Sequence[Leaf]) -> None:
    """Raise Mismatch unless a value has the keys, or the length, of a nested plan's own level."""
    if isinstance(plan, tuple):
        # a list for a Tuple space has the same information
        if not isinstance(value, tuple | list) or len(value) != len(plan):
            raise Mismatch(path, _outline(plan, leaves), describe(value))
        return
    if not isinstance(value, dict):
        raise Mismatch(path, _outline(plan, leaves), describe(value))
    for key in plan:
        if key not in value:
            raise Mismatch((*path, key), _outline(plan[key], leaves), "nothing (the key is missing)")
    for key in value:
        if key not in plan:
            raise Mismatch((*path, key), "no such key", describe(value[key]))


def flatten(plan: Plan, value: Any, path: Path, leaves: Sequence[Leaf], out: list[Any]) -> None:
    """Append the leaves of a value to ``out``. Raises Mismatch if it nests in another way than the plan."""
    if isinstance(plan, int):
        out.append(value)
        return
    check_outline(plan, value, path, leaves)
    for key, child in plan_items(plan):
        flatten(child, value[key], (*path, key), leaves, out)


def unflatten(plan: Plan, values: Sequence[Any]) -> Any:
    """Return the tree of one value per leaf; the inverse of `flatten`."""
    if isinstance(plan, int):
        return values[plan]
    if isinstance(plan, dict):
        return {key: unflatten(child, values) for key, child in plan.items()}
    return tuple(unflatten(child, values) for child in plan)


class Outline:
    """Flattens, checks and rebuilds the values of one space.

    Attributes:
        space: the space that it was made from.
        leaves: the leaves, depth first; a Dict's in the order of ``space.spaces``.
        fixed: indices into ``leaves`` of those with one dtype and shape.
        loose: indices of the others, which go by message.
        scalars: indices of the fixed ones of shape ().
        plan: the nesting of the space: nested dicts and tuples whose leaves are indices into ``leaves``.
        row_nbytes: bytes of the fixed leaves of one value, without padding.
        numpy_integers: True: actions of Discrete leaves are read as NumPy integers. False: as Python's. May be set.
    """

    numpy_integers = False

    def __init__(self, space: gym.Space[Any]) -> None:
        leaves: list[Leaf] = []
        self.space = space
        self.plan: Plan = _plan(space, (), leaves)
        self.leaves: tuple[Leaf, ...] = tuple(leaves)
        self.fixed: tuple[int, ...] = tuple(i for i, leaf in enumerate(leaves) if leaf.fixed)
        self.loose: tuple[int, ...] = tuple(i for i, leaf in enumerate(leaves) if not leaf.fixed)
        self.scalars: tuple[int, ...] = tuple(i for i, leaf in enumerate(leaves) if leaf.shape == ())
        self.row_nbytes: int = sum(leaf.nbytes for leaf in leaves)

    @classmethod
    def of(cls, space: gym.Space[Any]) -> Self:
        """Return the layout of a space."""
        return cls(space)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.space,), {"numpy_integers": self.numpy_integers}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.space!r})"

    def flatten(self, value: Any) -> list[Any]:
        """Return the leaves of a value in the order of ``leaves``, without checks of the leaves.

        Raises:
            Mismatch: the value nests in another way than the space: a missing or extra key, another length.
        """
        out: list[Any] = []
        flatten(self.plan, value, (), self.leaves, out)
        return out

    def unflatten(self, values: Sequence[Any]) -> Any:
        """Return the tree (dicts and tuples, as the space nests) of one value per leaf; the inverse of `flatten`."""
        return unflatten(self.plan, values)

    def untold(self, value: Any, loose: Sequence[Any] | None) -> dict[int, Any] | None:
        """Return the parts of a value that a row cannot hold, by the index of the leaf; None if there are none.

        These are the `loose` leaves' values, and scalars of another type than the row's NumPy scalars (a Python int, an
        array of shape ()).
        """
        told = dict(zip(self.loose, loose or ()))
        if self.scalars:
            values = self.flatten(value)
            for index in self.scalars:
                if type(values[index]) is not self.leaves[index].dtype.type:  # type: ignore[union-attr]  # it is fixed
                    told[index] = values[index]
        return told or None

    def problem(self, value: Any) -> Mismatch | None:
        """Return the first mismatch of a value, or None. This is the complete check, by the rules of `Leaf.mismatch`.

        Bounds and the values of loose leaves are not checked.
        """
        try:
            values = self.flatten(value)
        except Mismatch as mismatch:
            return mismatch.with_traceback(None)
        for leaf, item in zip(self.leaves, values):
            wrong = leaf.mismatch(item)
            if wrong is not None:
                return Mismatch(leaf.path, *wrong)
        return None
