"""Writing one slot's value to its rows: the function that runs once per environment step.

Each leaf is written in the cheapest way that is still an exact check:

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
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from gymnasium import spaces as gs
from numpy import ndarray

from treadle.spaces.leaves import Leaf, Outline, Plan, RowWriter, describe, plan_items

# Exact types, so that bool (a subclass of int) and np.bool_ are not among them.
_INTEGERS = frozenset({int, *(np.dtype(code).type for code in "bBhHiIlLqQ")})

# What the fast way raises on a value that it does not know: anything of these means "ask the slow check".
_UNKNOWN = (KeyError, IndexError, TypeError, ValueError, NotImplementedError)

Write = Callable[[Any], None]


def row_writer(layout: Outline, rows: Sequence[ndarray | None]) -> RowWriter:
    """See `treadle.spaces.Layout.row_writer`."""
    if len(rows) != len(layout.leaves):
        raise ValueError(f"{len(layout.leaves)} leaves need as many rows, got {len(rows)}")
    for leaf, row in zip(layout.leaves, rows):
        if leaf.fixed:
            fits = isinstance(row, ndarray) and row.dtype == leaf.dtype and row.shape == leaf.shape
        else:
            fits = row is None
        if not fits:
            wanted = f"an array {leaf}" if leaf.fixed else "None"
            raise ValueError(f"the row of the leaf at path {leaf.path!r} must be {wanted}, got {describe(row)}")
    loose_paths = [layout.leaves[index].path for index in layout.loose]

    def slow(value: Any) -> list[Any] | None:
        problem = layout.problem(value)
        if problem is not None:
            raise problem from None
        values = layout.flatten(value)
        for row, item in zip(rows, values):
            if row is not None:
                row[...] = item
        return [values[index] for index in layout.loose] if loose_paths else None

    if isinstance(layout.plan, int):
        return _leaf_writer(layout.leaves[0], rows[0], slow)
    if not loose_paths:
        return _node_writer(layout.plan, layout.leaves, rows, slow)

    fixed = _node_writer(layout.plan, layout.leaves, rows, None)
    if all(len(path) == 1 for path in loose_paths):
        keys = [path[0] for path in loose_paths]

        def write_flat(value: Any) -> list[Any] | None:
            try:
                fixed(value)
                return [value[key] for key in keys]
            except _UNKNOWN:
                return slow(value)

        return write_flat

    def write_nested(value: Any) -> list[Any] | None:
        try:
            fixed(value)
            return [reduce(getitem, path, value) for path in loose_paths]
        except _UNKNOWN:
            return slow(value)

    return write_nested


def _view(leaf: Leaf, row: Any) -> Any:
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
    view = _view(leaf, row)
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
        view = _view(leaf, row)
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
