"""The layout of a space: its outline, with fast writers and readers of single values and of batches.

The contracts of the batch functions are here; `batch` implements them.

A value is written once per environment step. Each leaf is written in the cheapest way that is still an exact check:

- Arrays: ``view[:] = array`` on a one-dimensional memoryview of the row. The assignment compares format character, item
  size and length in C, so uint8, int8 and bool are not confused. It accepts any other buffer, too (bytes, array.array),
  so the type is checked first. If there are more dimensions, the shape is checked, too, and the array is written flat.
- Discrete: a type look-up, then ``cell[0] = value`` on a memoryview, which refuses values that its integer type cannot
  hold.
- Dtypes that a memoryview cannot express (foreign byte order, complex, dates), and shape (): a comparison of shape and
  dtype, then an array assignment.

Values that fail this check get the slow check, and are written if they pass it. Examples are a subclass of dict or
ndarray, np.longlong instead of np.int64, and an integer in an array of shape ().
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import getitem, itemgetter
from typing import Any

import numpy as np
from gymnasium import spaces as gs
from numpy import ndarray

from treadle.spaces import batch
from treadle.spaces.leaves import BatchReader, BatchWriter, Leaf, Outline, Plan, RowWriter, describe, plan_items

# Exact types, which exclude bool (a subclass of int) and np.bool_.
_INTEGERS = frozenset({int, *(np.dtype(code).type for code in "bBhHiIlLqQ")})

# Exceptions of the fast check for a value that it does not know: the slow check then decides.
_UNKNOWN = (KeyError, IndexError, TypeError, ValueError, NotImplementedError)

Write = Callable[[Any], None]


class Layout(Outline):
    """Flattens, checks, stores in rows and rebuilds the values of one space."""

    def row_writer(self, rows: Sequence[ndarray | None]) -> RowWriter:
        """Return a function that checks one value and writes it to ``rows``, which stay the same for all calls.

        Args:
            rows: for each fixed leaf, the array of its dtype and shape that values are written to; None for a loose
                leaf. The array of a Discrete leaf has shape (): ``array[i, ...]``, not ``array[i]``.

        Returns:
            ``write(value)``, which returns the list of the loose leaves' values (in the order of ``loose``), or None if
            the layout has no loose leaves. It raises Mismatch and may then leave the rows half written.

        Raises:
            ValueError: ``rows`` do not fit the leaves.
        """
        if len(rows) != len(self.leaves):
            raise ValueError(f"{len(self.leaves)} leaves need as many rows, got {len(rows)}")
        for leaf, row in zip(self.leaves, rows):
            if leaf.fixed:
                fits = isinstance(row, ndarray) and row.dtype == leaf.dtype and row.shape == leaf.shape
            else:
                fits = row is None
            if not fits:
                wanted = f"an array {leaf}" if leaf.fixed else "None"
                raise ValueError(f"the row of the leaf at path {leaf.path!r} must be {wanted}, got {describe(row)}")
        loose_paths = [self.leaves[index].path for index in self.loose]

        def slow(value: Any) -> list[Any] | None:
            problem = self.problem(value)
            if problem is not None:
                raise problem from None
            values = self.flatten(value)
            for row, item in zip(rows, values):
                if row is not None:
                    row[...] = item
            return [values[index] for index in self.loose] if loose_paths else None

        if isinstance(self.plan, int):
            return _leaf_writer(self.leaves[0], rows[0], slow)
        if not loose_paths:
            return _node_writer(self.plan, self.leaves, rows, slow)

        fixed = _node_writer(self.plan, self.leaves, rows, None)
        # most loose leaves have a path of one key
        getters = [itemgetter(*path) if len(path) == 1 else partial(reduce, getitem, path) for path in loose_paths]

        def write(value: Any) -> list[Any] | None:
            try:
                fixed(value)
                return [get(value) for get in getters]
            except _UNKNOWN:
                return slow(value)

        return write

    def batch_writer(self, arrays: Sequence[ndarray | None], n: int, *, cast: bool = False) -> BatchWriter:
        """Return a function that checks a batch of n actions and writes it to ``arrays``, the same for all calls.

        It accepts the batches that Gymnasium's vector environments accept:

        - for a leaf: an array [n, *shape], or a list or tuple of n values;
        - for a Dict: a dict of batches, or a list or tuple of n dicts;
        - for a Tuple: a *tuple* of batches, or a *list* of n tuples (Gymnasium reads a tuple as batches, whatever its
          length);
        - for a loose leaf: a list or tuple of n values.

        Checked before arrays are written: the number of actions, shapes, dtypes, NaN, and the range of Discrete,
        MultiDiscrete and MultiBinary. An integer leaf takes integers of any dtype that fit, a float leaf numbers of any
        dtype. The bounds of a Box are not checked: policies overshoot, and environments clip.

        The arrays hold the leaf's dtype. If values are of another type (float64 for a float32 Box, lists), they also go
        by message. Environments then get them as from Gymnasium's vectors: unrounded, and lists as lists. The actions
        of a Discrete leaf are integers in any case.

        Args:
            arrays: for each fixed leaf an array [n, *shape] of its dtype; None for a loose leaf.
            n: the number of actions in a batch, at least 1.
            cast: True: only the arrays count. Fixed leaves never go by message, and a number that is too large for
                the leaf's dtype is a Mismatch.

        Returns:
            ``write(actions)``, which returns the values for the message: None, or index of a leaf -> n values. These
            are the values of every loose leaf, and copies of the given values of fixed leaves whose type is not the
            leaf's dtype. It raises Mismatch, whose ``row`` is the first bad action.

        Raises:
            ValueError: ``arrays`` do not fit the leaves, or n is below 1.
        """
        return batch.batch_writer(self, arrays, n, cast=cast)

    def batch_reader(self, arrays: Sequence[ndarray | None], lo: int, hi: int) -> BatchReader:
        """Return a function that reads the actions lo to hi - 1 of a batch from the arrays, the same for all calls.

        Args:
            arrays: as for `batch_writer`.
            lo: the first action's row.
            hi: the row after the last action's.

        Returns:
            ``read(mailed=None)``, which returns a list of hi - lo actions that the caller may keep. ``mailed`` has the
            hi - lo values of a leaf by the leaf's index. ``read`` raises ValueError if a loose leaf is not in it.
            Without mailed values, a Discrete leaf is a Python int (NumPy's with ``numpy_integers``). Any other fixed
            leaf is then a row of a copy.

        Raises:
            ValueError: ``arrays`` do not fit the leaves, or lo and hi are not rows of them.
        """
        return batch.batch_reader(self, arrays, lo, hi)


def flat_view(leaf: Leaf, row: Any) -> Any:
    """Return a one-dimensional memoryview that writes the row with an exact check; None if the row allows none.

    The type is Any because type checkers count an ndarray as a Buffer only from Python 3.12 on.
    """
    scalar = isinstance(leaf.space, gs.Discrete)
    if not scalar and (row.ndim == 0 or (row.ndim > 1 and not row.flags.c_contiguous)):
        return None
    try:
        flat = row.reshape(-1)
        view: Any = memoryview(flat)
        if not scalar:
            view[:] = flat  # some formats can be viewed, but not assigned
    except (ValueError, NotImplementedError):  # a dtype that memoryview cannot express
        return None
    return view


def _kinds(leaf: Leaf, row: ndarray) -> frozenset[type]:
    """Return the exact types whose dtype and shape may be compared with the row's."""
    return frozenset({ndarray, row.dtype.type} if leaf.shape == () else {ndarray})


def _leaf_writer(leaf: Leaf, row: ndarray | None, slow: RowWriter) -> RowWriter:
    """Return the writer of a layout that is one leaf."""
    if row is None:
        return lambda value: [value]
    view = flat_view(leaf, row)
    everything = slice(None)  # made once: view[:] would make one for every write

    if isinstance(leaf.space, gs.Discrete) and view is not None:

        def write_integer(value: Any) -> list[Any] | None:
            if type(value) in _INTEGERS:
                try:
                    view[0] = value
                    return None
                except _UNKNOWN:
                    return slow(value)
            return slow(value)

        return write_integer

    kinds, shape, dtype = _kinds(leaf, row), row.shape, row.dtype
    if view is not None and len(shape) > 1:

        def write_image(value: Any) -> list[Any] | None:
            if type(value) is ndarray and value.shape == shape:
                try:
                    view[everything] = value.ravel()
                    return None
                except _UNKNOWN:
                    return slow(value)
            return slow(value)

        return write_image

    if view is not None:

        def write_vector(value: Any) -> list[Any] | None:
            if type(value) is ndarray:
                try:
                    view[everything] = value
                    return None
                except _UNKNOWN:
                    return slow(value)
            return slow(value)

        return write_vector

    def write_block(value: Any) -> list[Any] | None:
        if type(value) in kinds and value.shape == shape and value.dtype == dtype:
            row[...] = value
            return None
        return slow(value)

    return write_block


def _node_writer(plan: Plan, leaves: Sequence[Leaf], rows: Sequence[ndarray | None], slow: RowWriter | None) -> Write:
    """Return the writer of the fixed leaves below a Dict or Tuple: flat loops over views that are made once.

    Values that it does not know go to ``slow``. Without ``slow``, it raises one of _UNKNOWN, which an outer level
    catches.
    """
    kind, size, everything = type(plan), len(plan), slice(None)
    vectors: list[tuple[Any, Any]] = []
    cells: list[tuple[Any, Any]] = []
    images: list[tuple[Any, Any, tuple[int, ...]]] = []
    blocks: list[tuple[Any, ndarray, frozenset[type], tuple[int, ...], np.dtype[Any]]] = []
    children: list[tuple[Any, Write]] = []
    for key, child in plan_items(plan):
        if not isinstance(child, int):
            children.append((key, _node_writer(child, leaves, rows, None)))
            continue
        leaf, row = leaves[child], rows[child]
        if row is None:
            continue
        view = flat_view(leaf, row)
        if view is None:
            blocks.append((key, row, _kinds(leaf, row), row.shape, row.dtype))
        elif isinstance(leaf.space, gs.Discrete):
            cells.append((key, view))
        elif row.ndim > 1:
            images.append((key, view, row.shape))
        else:
            vectors.append((key, view))

    def write(value: Any) -> None:
        try:
            if type(value) is not kind or len(value) != size:
                raise TypeError
            for key, view in vectors:
                item = value[key]
                if type(item) is not ndarray:
                    raise TypeError
                view[everything] = item
            for key, view, shape in images:
                item = value[key]
                if type(item) is not ndarray or item.shape != shape:
                    raise TypeError
                view[everything] = item.ravel()
            for key, cell in cells:
                item = value[key]
                if type(item) not in _INTEGERS:
                    raise TypeError
                cell[0] = item
            for key, row, kinds, shape, dtype in blocks:
                item = value[key]
                if type(item) not in kinds or item.shape != shape or item.dtype != dtype:
                    raise TypeError
                row[...] = item
            for key, child in children:
                child(value[key])
        except _UNKNOWN:
            if slow is None:
                raise
            slow(value)

    return write
