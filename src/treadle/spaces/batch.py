"""Batches of actions: from a policy's batch to rows in arrays, and from the rows to the environments' actions.

A batch arrives in one of several forms (`treadle.spaces.Layout.batch_writer` lists them). First it is converted to one
column per leaf, an array [n, *shape] or a list of n values. Then every column is checked. Only then are arrays written,
so a refused batch leaves the last one unchanged.

An array of the leaf's own dtype is written bit for bit. Writing would change a column of another dtype, or a list. So
such a column also goes by message, unchanged: the environment gets the values that Gymnasium's vectors would pass.

The two most common action spaces, one Discrete and one Box of floats, have their own closures for arrays that need no
conversion. A closure accepts a batch, or passes it on to the general writer, which converts it or finds the error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces as gs
from numpy import ndarray

from treadle.spaces.leaves import (
    BatchReader,
    BatchWriter,
    Leaf,
    Mailed,
    Mismatch,
    Outline,
    Plan,
    check_outline,
    describe,
    flatten,
    plan_items,
)

# Up to these limits a set look-up of every Python int is cheaper than two reductions over the array.
_FEW_ROWS, _FEW_CHOICES = 32, 1024


def _check_arrays(layout: Outline, arrays: Sequence[ndarray | None], n: int | None) -> int:
    """Return n, or the first array's length if n is None; 0 without fixed leaves.

    Raises ValueError unless there is an array [n, *shape] for each fixed leaf, and None for each loose one.
    """
    if len(arrays) != len(layout.leaves):
        raise ValueError(f"{len(layout.leaves)} leaves need as many arrays, got {len(arrays)}")
    for leaf, array in zip(layout.leaves, arrays):
        if not leaf.fixed:
            if array is not None:
                raise ValueError(f"the loose leaf at path {leaf.path!r} has no array, got {describe(array)}")
            continue
        if isinstance(array, ndarray) and array.ndim and n is None:
            n = len(array)
        if not isinstance(array, ndarray) or array.dtype != leaf.dtype or array.shape != (n, *(leaf.shape or ())):
            raise ValueError(f"the array of the leaf at path {leaf.path!r} must be {n} x {leaf}, got {describe(array)}")
    return n or 0


def batch_writer(layout: Outline, arrays: Sequence[ndarray | None], n: int, *, cast: bool) -> BatchWriter:
    """See `treadle.spaces.Layout.batch_writer`."""
    if n < 1:
        raise ValueError(f"a batch has at least one action, got n={n}")
    _check_arrays(layout, arrays, n)
    plan, leaves = layout.plan, layout.leaves

    def write(actions: Any) -> Mailed | None:
        columns: list[Any] = [None] * len(leaves)
        try:
            _columns(plan, actions, (), leaves, n, columns)
            checked = [_checked(leaf, column, n, cast) for leaf, column in zip(leaves, columns)]
        except Mismatch as mismatch:
            mismatch.name = "action"
            raise
        mailed: Mailed = {}
        for index, (array, (values, given)) in enumerate(zip(arrays, checked)):
            if array is not None:
                with np.errstate(over="ignore"):  # numbers that are too large to be cast go by message
                    array[...] = values
            if given is not None:
                mailed[index] = given
        return mailed or None

    if isinstance(plan, int) and arrays[plan] is not None:
        return _fast_writer(leaves[plan], arrays[plan], n, write)  # type: ignore[arg-type]  # not None: a line above
    return write


def _fast_writer(leaf: Leaf, array: ndarray, n: int, general: BatchWriter) -> BatchWriter:
    """Return a writer with a quick check for arrays that need no conversion; for other leaves the general writer."""
    shape, dtype = array.shape, array.dtype
    if isinstance(leaf.space, gs.Discrete):
        first, count = int(leaf.space.start), int(leaf.space.n)
        last = first + count - 1
        if n <= _FEW_ROWS and count <= _FEW_CHOICES:
            all_allowed = frozenset(range(first, last + 1)).issuperset

            def write_few(actions: Any) -> Mailed | None:
                right = type(actions) is ndarray and actions.dtype == dtype and actions.shape == shape
                if right and all_allowed(actions.tolist()):
                    array[...] = actions
                    return None
                return general(actions)

            return write_few

        def write_many(actions: Any) -> Mailed | None:
            right = type(actions) is ndarray and actions.dtype == dtype and actions.shape == shape
            if right and first <= actions.min() and actions.max() <= last:
                array[...] = actions
                return None
            return general(actions)

        return write_many

    if dtype.kind == "f":
        isnan = np.isnan

        def write_floats(actions: Any) -> Mailed | None:
            right = type(actions) is ndarray and actions.dtype == dtype and actions.shape == shape
            if right and not isnan(actions).any():
                array[...] = actions
                return None
            return general(actions)

        return write_floats
    return general


def _columns(plan: Plan, value: Any, path: tuple[Any, ...], leaves: Sequence[Leaf], n: int, out: list[Any]) -> None:
    """Fill ``out`` with one column per leaf: the leaf's part of the batch as given, or a list of n values."""
    if isinstance(plan, int):
        out[plan] = value
    elif isinstance(value, list) or (isinstance(value, tuple) and isinstance(plan, dict)):
        indices = _indices(plan)
        rows: list[list[Any]] = []
        if len(value) != n:
            raise Mismatch(path, f"a batch of {n}", describe(value))
        for row, item in enumerate(value):
            rows.append([])
            try:
                flatten(plan, item, path, leaves, rows[-1])
            except Mismatch as mismatch:
                mismatch.row = row
                raise
        for index, column in zip(indices, zip(*rows)):
            out[index] = list(column)
    else:
        check_outline(plan, value, path, leaves)
        for key, child in plan_items(plan):
            _columns(child, value[key], (*path, key), leaves, n, out)


def _indices(plan: Plan) -> list[int]:
    """Return the indices of the leaves below a plan, in order."""
    if isinstance(plan, int):
        return [plan]
    return [index for _, child in plan_items(plan) for index in _indices(child)]


def _checked(leaf: Leaf, column: Any, n: int, cast: bool) -> tuple[Any, Any]:
    """Return (numbers [n, *shape] for the leaf's array, values for the message). Raises Mismatch.

    The numbers of a loose leaf are None. The values are None where nothing goes by message. `cast`: True: a fixed leaf
    never goes by message, so its numbers must not overflow in its dtype.
    """
    if not leaf.fixed:
        if not isinstance(column, list | tuple) or len(column) != n:
            raise Mismatch(leaf.path, f"a list or tuple of {n} values", describe(column))
        return None, column
    shape = (n, *(leaf.shape or ()))
    if isinstance(column, ndarray):
        if column.shape != shape or not _dtype_fits(column.dtype, leaf):
            raise Mismatch(leaf.path, f"{leaf.dtype}{list(shape)}", describe(column))
        batch, as_it_is = column, column.dtype == leaf.dtype
    else:
        if not isinstance(column, list | tuple):
            raise Mismatch(leaf.path, f"{leaf.dtype}{list(shape)}, or a list of {n}", describe(column))
        if len(column) != n:
            raise Mismatch(leaf.path, f"a batch of {n}", describe(column))
        stacked = _stacked(leaf, column)
        batch = _collected(leaf, column) if stacked is None else stacked
        as_it_is = all(isinstance(item, ndarray | np.generic) and item.dtype == leaf.dtype for item in column)
    _check_values(leaf, batch, 0)
    if cast:
        return _cast(leaf, batch), None
    if as_it_is or isinstance(leaf.space, gs.Discrete):  # a Discrete action is an integer in any form
        return batch, None
    return batch, copy.deepcopy(column)  # the caller may write to its own column meanwhile


def _stacked(leaf: Leaf, items: Sequence[Any]) -> ndarray | None:
    """Return all items in one array if they are of one type and need no check of each; else None."""
    types = set(map(type, items))
    if types == {ndarray}:
        dtype = items[0].dtype
        if _dtype_fits(dtype, leaf) and all(item.shape == leaf.shape and item.dtype == dtype for item in items):
            return np.stack(items)
    elif leaf.shape == () and len(types) == 1:
        (kind,) = types
        if kind is int or issubclass(kind, np.generic):
            array = np.array(items)  # dtype object if a Python int has more than 64 bits
            if array.shape == (len(items),) and _dtype_fits(array.dtype, leaf):
                return array
    return None


def _dtype_fits(dtype: np.dtype[Any], leaf: Leaf) -> bool:
    """Return True if a leaf takes numbers of this dtype (integers must also be in range)."""
    if dtype == leaf.dtype:
        return True
    if leaf.dtype is None:
        return False
    if leaf.dtype.kind in "iu":
        return dtype.kind in "iu"
    return leaf.dtype.kind == "f" and dtype.kind in "fiub"


def _cast(leaf: Leaf, batch: ndarray) -> ndarray:
    """Return a batch in the leaf's dtype. Raises Mismatch for a number that is too large for it."""
    with np.errstate(over="ignore"):
        cast: ndarray = batch.astype(leaf.dtype, copy=False)
    if cast.dtype.kind == "f" and cast.dtype != batch.dtype:
        lost = np.isinf(cast) & ~np.isinf(batch)
        if lost.any():
            where = tuple(np.argwhere(lost)[0].tolist())
            raise Mismatch(leaf.path, f"numbers that fit {leaf.dtype}", f"{batch[where]}{_at(where)}", where[0])
    return cast


def _collected(leaf: Leaf, items: Sequence[Any]) -> ndarray:
    """Check values one by one and return them in one array. Raises Mismatch."""
    rows = [_converted(leaf, item, row) for row, item in enumerate(items)]
    assert leaf.dtype is not None
    out = np.empty((len(rows), *(leaf.shape or ())), np.result_type(*rows) if leaf.dtype.kind == "f" else leaf.dtype)
    for row, array in enumerate(rows):
        out[row] = array
    return out


def _converted(leaf: Leaf, item: Any, row: int) -> ndarray:
    """Return one action's value as an array of the leaf's shape, of a dtype that fits, in range. Raises Mismatch."""
    if isinstance(item, ndarray | np.generic):
        array = np.asarray(item)
        fits = _dtype_fits(array.dtype, leaf)
    elif isinstance(item, bool | int | float | list | tuple):
        array, fits = _from_python(leaf, item)
    else:
        raise Mismatch(leaf.path, str(leaf), describe(item), row)
    if array.shape != leaf.shape or not fits:
        raise Mismatch(leaf.path, str(leaf), describe(item), row)
    _check_values(leaf, array[None], row)
    return array


def _from_python(leaf: Leaf, item: Any) -> tuple[ndarray, bool]:
    """Return (array of Python numbers, which may be in lists; True if the leaf takes its dtype)."""
    kind = leaf.dtype.kind  # type: ignore[union-attr]  # a fixed leaf has a dtype
    takes = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}.get(kind, "")
    try:
        array = np.asarray(item)
    except ValueError:  # ragged lists
        return np.empty(()), False
    return array, array.dtype.kind in takes or (array.size == 0 and bool(takes))


def _bounds(leaf: Leaf, dtype: np.dtype[Any]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of an integer leaf, arrays for a MultiDiscrete one; None: no limits."""
    space = leaf.space
    if isinstance(space, gs.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    if isinstance(space, gs.MultiDiscrete):
        start = np.asarray(space.start, np.int64)  # int64, as start + nvec may overflow a small dtype
        return start, start + np.asarray(space.nvec, np.int64) - 1
    if isinstance(space, gs.MultiBinary):
        return 0, 1
    if leaf.dtype is not None and leaf.dtype.kind in "iu" and not np.can_cast(dtype, leaf.dtype):
        info = np.iinfo(leaf.dtype)
        return info.min, info.max
    return None


def _check_values(leaf: Leaf, batch: ndarray, first_row: int) -> None:
    """Raise Mismatch for the first row of a batch [k, *shape] with NaN, or with an integer out of range."""
    if batch.dtype.kind in "fc":
        bad = np.isnan(batch)
        if bad.any():
            where = tuple(np.argwhere(bad)[0].tolist())
            raise Mismatch(leaf.path, "no NaN", f"nan{_at(where)}", first_row + where[0])
        return
    bounds = _bounds(leaf, batch.dtype)
    if bounds is None:
        return
    low, high = bounds
    bad = (batch < low) | (batch > high)
    if bad.any():
        where = tuple(np.argwhere(bad)[0].tolist())
        least, most = (int(np.broadcast_to(bound, leaf.shape or ())[where[1:]]) for bound in bounds)
        raise Mismatch(
            leaf.path, f"an integer in [{least}, {most}]", f"{batch[where]}{_at(where)}", first_row + where[0]
        )


def _at(where: tuple[int, ...]) -> str:
    return f" at index {list(where[1:])}" if len(where) > 1 else ""


def batch_reader(layout: Outline, arrays: Sequence[ndarray | None], lo: int, hi: int) -> BatchReader:
    """See `treadle.spaces.Layout.batch_reader`."""
    n = _check_arrays(layout, arrays, None)
    if not 0 <= lo <= hi or (layout.fixed and hi > n):
        raise ValueError(f"rows {lo} to {hi} are not within 0 to {n}")
    columns = [
        None if array is None else _column_reader(leaf, array[lo:hi], layout.numpy_integers)
        for leaf, array in zip(layout.leaves, arrays)
    ]

    def column_of(index: int, mailed: Mapping[int, Sequence[Any]]) -> list[Any]:
        given, stored = mailed.get(index), columns[index]
        if given is not None:  # values of a fixed leaf are copied, as an environment may write to them
            return list(given if stored is None else copy.deepcopy(given))
        if stored is None:
            raise ValueError(f"the loose leaf at path {layout.leaves[index].path!r} has no values: they go by message")
        return stored()

    if isinstance(layout.plan, int):
        only = columns[0]
        if only is None:
            return lambda mailed=None: column_of(0, mailed or {})
        return lambda mailed=None: column_of(0, mailed) if mailed else only()
    assemble = _assembler(layout.plan)
    width, count = len(layout.leaves), hi - lo

    def read(mailed: Mapping[int, Sequence[Any]] | None = None) -> list[Any]:
        return assemble([column_of(index, mailed or {}) for index in range(width)], count)

    return read


def _column_reader(leaf: Leaf, view: ndarray, numpy_integers: bool) -> Callable[[], list[Any]]:
    if isinstance(leaf.space, gs.Discrete):
        return partial(list, view) if numpy_integers else view.tolist  # type: ignore[arg-type]  # an array iterates
    return lambda: list(view.copy())


def _assembler(plan: Plan) -> Callable[[list[Any], int], list[Any]]:
    """Return a function from columns (one list of ``count`` values per leaf) to ``count`` trees."""
    children = [(child, None if isinstance(child, int) else _assembler(child)) for _, child in plan_items(plan)]
    keys = list(plan) if isinstance(plan, dict) else None

    def assemble(values: list[Any], count: int) -> list[Any]:
        columns = [values[child] if inner is None else inner(values, count) for child, inner in children]
        if not columns:
            return [() if keys is None else {} for _ in range(count)]
        rows = zip(*columns, strict=True)
        return list(rows) if keys is None else [dict(zip(keys, row)) for row in rows]

    return assemble
