"""Arrays with time as the first axis: episodes one after the other ("packed") against one row an episode ("padded"),
slices, and joining; and infos as such columns. Values may be arrays, lists, or nested dicts and tuples of these.

An environment may say a thing on some steps only (Gymnasium's do). Then rows without it hold zero, or None where the
values are no numbers, and the column `_<key>` (bool) tells which rows have it: Gymnasium's own way for its vectors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
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


def kept(info: Mapping[str, Any]) -> dict[str, Any]:
    """An info to keep: its arrays are copied, since environments use theirs again; anything else is as it is."""
    return {key: value.copy() if type(value) is np.ndarray else value for key, value in info.items()}


def columns_of(infos: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """One array of len(infos) rows for each key. A key that some rows lack gets a second column, `_<key>`."""
    if not any(infos):
        return {}
    rows = len(infos)
    values: dict[str, list[Any]] = {}
    places: dict[str, list[int]] = {}
    for row, info in enumerate(infos):
        for key, value in info.items():
            if key in values:
                values[key].append(value)
                places[key].append(row)
            else:
                values[key], places[key] = [value], [row]
    columns = {}
    for key, found in values.items():
        array = array_of(found)
        if len(found) < rows:
            there = np.zeros(rows, np.bool_)
            there[places[key]] = True
            whole = _absent(array, rows)
            whole[there] = array
            columns[key], columns[f"_{key}"] = whole, there
        else:
            columns[key] = array
    return columns


def join_columns(
    tables: Sequence[dict[str, Any]],
    lengths: Sequence[int],
    *,
    strict: str | None = None,
    there: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """The tables of infos of several batches as one.

    Args:
        tables: keys and columns.
        lengths: rows of each table.
        strict: None: keys that some tables lack are filled as in `columns_of`. Otherwise what to call the tables in
            the error that is raised instead.
        there: see `joined`.

    Raises:
        ValueError: a key is missing somewhere, with `strict` given; or nested columns differ in structure.
    """
    first = tables[0]
    if not any(tables):
        return {}
    if all(table.keys() == first.keys() for table in tables):
        return {key: joined([table[key] for table in tables], there) for key in first}
    keys = dict.fromkeys(key for table in tables for key in table)
    if strict is not None:
        for key in keys:
            for i, table in enumerate(tables):
                if key not in table:
                    raise ValueError(f"{strict} of batch {i} lack the key {key!r}, which another batch has")
    columns = {}
    for key in [key for key in keys if key[:1] != "_" or key[1:] not in keys]:  # but for the masks
        some = next(table[key] for table in tables if key in table)
        pairs = list(zip(tables, lengths, strict=True))
        columns[key] = joined([table[key] if key in table else _absent(some, rows) for table, rows in pairs])
        if any(key not in table or f"_{key}" in table for table in tables):
            columns[f"_{key}"] = joined([table.get(f"_{key}", np.full(rows, key in table)) for table, rows in pairs])
    return columns


def _absent(like: Any, rows: int) -> Any:
    if isinstance(like, dict):
        return {key: _absent(value, rows) for key, value in like.items()}
    if like.dtype.kind in "biufc":
        return np.zeros((rows, *like.shape[1:]), like.dtype)
    return np.full((rows, *like.shape[1:]), None, object)


BY_EPISODE = frozenset({"episode_infos", "last_observations", "lengths"})  # columns of a table with one row an episode
INFOS = frozenset({"episode_infos", "env_infos", "agent_infos"})

Table = dict[str, Any]  # what a batch consists of, by name; without `lengths` all of it has one row a step


def join_tables(tables: Sequence[Table], there: Callable[..., Any] | None = None) -> Table:
    """Tables one after the other, in one pass over their arrays; keys of agents' infos must not come and go.

    `there`: see `joined`. Raises as `joined` and `join_columns`.
    """
    rows = list(map(len, map(itemgetter("rewards"), tables)))
    episodes = list(map(len, map(itemgetter("lengths"), tables))) if "lengths" in tables[0] else rows
    columns = {}
    for name in tables[0]:
        values = list(map(itemgetter(name), tables))
        if name in INFOS:
            strict, sizes = name if name == "agent_infos" else None, episodes if name in BY_EPISODE else rows
            columns[name] = join_columns(values, sizes, strict=strict, there=there)
        else:
            columns[name] = joined(values, there)
    return columns


def cut_table(table: Table, first: int, last: int, begin: int, end: int) -> Table:
    """Episodes first to last-1, whose steps are begin to end-1; arrays are views."""
    return {
        name: rows_of(values, first, last) if name in BY_EPISODE else rows_of(values, begin, end)
        for name, values in table.items()
    }
