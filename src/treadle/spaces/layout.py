"""The layout of a space: its outline, with quick ways to write single values and batches of them to arrays, and to
read them back. What those of batches promise stands here; they are made in `batch`.

A value is written once per environment step, each leaf in the cheapest way that is still an exact check:

- arrays: ``view[:] = array`` on a one-dimensional memoryview of the row. It compares format character, item size and
  length in C, so uint8, int8 and bool do not pass for one another. It would also take any other buffer (bytes,
  array.array), so the type is looked at first; with more dimensions the shape as well, and the array is written flat;
- Discrete: a type look-up, then ``cell[0] = value`` on a memoryview, which refuses what its integer type cannot hold;
- dtypes a memoryview cannot express (foreign byte order, complex, dates), and shape (): comparing shape and dtype, then
  an array assignment.

Whatever does not pass at once (a subclass of dict or ndarray, np.longlong where np.int64 is due, an integer in an array
of shape ()) gets the slow check, and is written when that finds nothing wrong.
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

# Exact types, so that bool (a subclass of int) and np.bool_ are not among them.
_INTEGERS = frozenset({int, *(np.dtype(code).type for code in "bBhHiIlLqQ")})

# What the fast way raises on a value that it does not know: anything of these means "ask the slow check".
_UNKNOWN = (KeyError, IndexError, TypeError, ValueError, NotImplementedError)

Write = Callable[[Any], None]


class Layout(Outline):
    """How the values of one space are taken apart, checked, stored in rows and put together again."""

    def row_writer(self, rows: Sequence[ndarray | None]) -> RowWriter:
        """A function that checks one value and writes it to ``rows``, bound to them for good.

        Args:
            rows: for each fixed leaf the array of its shape (for a Discrete leaf one of shape (), which is
                ``array[i, ...]`` and not ``array[i]``) that the value goes to; None for a loose leaf.

        Returns:
            ``write(value)``, which returns None, or the list of the loose leaves' values (in the order of ``loose``)
            when the layout has any. It raises Mismatch and may then leave the rows half written.

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
        # of most it is a key of the value itself
        getters = [itemgetter(*path) if len(path) == 1 else partial(reduce, getitem, path) for path in loose_paths]

        def write(value: Any) -> list[Any] | None:
            try:
                fixed(value)
                return [get(value) for get in getters]
            except _UNKNOWN:
                return slow(value)

        return write

    def batch_writer(self, arrays: Sequence[ndarray | None], n: int, *, cast: bool = False) -> BatchWriter:
        """A function that checks a batch of n actions and writes it to ``arrays``, bound to them for good.

        It takes what Gymnasium's vector environments take. For a leaf: an array [n, *shape], or a list or tuple of n
        values. For a Dict: a dict of batches, or a list or tuple of n dicts. For a Tuple: a *tuple* of batches, or a
        *list* of n tuples (Gymnasium reads a tuple as batches, whatever its length). For a loose leaf: a list or tuple
        of n values.

        Checked before anything is written: the number of actions, shapes, dtypes (integers go to an integer leaf when
        they fit, numbers of any kind to a float leaf), the range of Discrete, MultiDiscrete and MultiBinary, NaN. The
        bounds of a Box are not: policies overshoot, and environments clip.

        What is written is of the leaf's dtype. Where that is not what was given (float64 for a float32 Box, lists), the
        values are to go by message as well, so that environments get them as Gymnasium's vectors would hand them over:
        unrounded, a list as a list. Only of a Discrete leaf every action is an integer.

        Args:
            arrays: for each fixed leaf an array [n, *shape] of its dtype; None for a loose one.
            n: how many actions make a batch, at least 1.
            cast: what is written is what counts: fixed leaves never go by message, and a number that is too large for
                their dtype is a Mismatch.

        Returns:
            ``write(actions)``, which returns what is to go by message: None, or a batch of n values by the index of its
            leaf: of every loose leaf, and copies of those of fixed leaves that are not of their dtype as they were
            given. It raises Mismatch, whose ``row`` is the first bad action.

        Raises:
            ValueError: ``arrays`` do not fit the leaves, or n is below 1.
        """
        return batch.batch_writer(self, arrays, n, cast=cast)

    def batch_reader(self, arrays: Sequence[ndarray | None], lo: int, hi: int) -> BatchReader:
        """A function that reads the actions lo to hi - 1 of a batch, bound to the arrays for good.

        Args:
            arrays: as for `batch_writer`.
            lo: the first action's row.
            hi: the row after the last one's.

        Returns:
            ``read(mailed=None)``: a list of hi - lo actions, each the caller's to keep. A Discrete leaf is a Python
            int (or NumPy's: ``numpy_integers``), another fixed one a row of a private copy, unless ``mailed`` has its
            hi - lo values, as it must of every loose leaf: by the index of the leaf.

        Raises:
            ValueError: ``arrays`` do not fit the leaves, or lo and hi are not rows of them.
        """
        return batch.batch_reader(self, arrays, lo, hi)


def flat_view(leaf: Leaf, row: Any) -> Any:
    """A one-dimensional memoryview that writes the row with an exact check, or None if there can be none.

    Typed Any because an ndarray is a Buffer in the eyes of type checkers from Python 3.12 on only.
    """
    scalar = isinstance(leaf.space, gs.Discrete)
    if not scalar and (row.ndim == 0 or (row.ndim > 1 and not row.flags.c_contiguous)):
        return None
    try:
        flat = row.reshape(-1)
        view: Any = memoryview(flat)
        if not scalar:
            view[:] = flat  # some formats can be viewed and not assigned to
    except (ValueError, NotImplementedError):  # a dtype that memoryview cannot express
        return None
    return view


def _kinds(leaf: Leaf, row: ndarray) -> frozenset[type]:
    """The exact types whose dtype and shape may be compared with the row's."""
    return frozenset({ndarray, row.dtype.type} if leaf.shape == () else {ndarray})


def _leaf_writer(leaf: Leaf, row: ndarray | None, slow: RowWriter) -> RowWriter:
    """The writer of a layout that is one leaf."""
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
    """The writer of the fixed leaves below a Dict or Tuple: flat loops over what was looked up beforehand.

    What it does not know goes to ``slow``; with no ``slow`` it raises one of _UNKNOWN, for an outer level to catch.
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
