"""Infos as columns: one array a key, time first.

An environment may say a thing on some steps only (Gymnasium's do). Then rows without it hold zero, or None where the
values are no numbers, and the column `_<key>` (bool) tells which rows have it: Gymnasium's own way for its vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from treadle.sample.padding import array_of, joined


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
        there: see `padding.joined`.

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
