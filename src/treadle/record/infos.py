"""Info dicts as columns, and back.

The rules, key by key over the rows of one episode (so that an episode's bytes depend on that episode alone):

- Numbers, bools and arrays of numbers with one dtype and shape on every row that has the key: an array of that dtype,
  `[rows, *shape]`. When some rows lack the key (Gymnasium's resets usually do) they hold zeros, and a second column
  `_<key>`, bool[rows], says which rows have it, as in Gymnasium's vector infos. (Bools that the environment itself
  keeps under `_<key>` besides `<key>` are stored as JSON text, so that they are not taken for this.)
- Dicts with string keys, none of them empty: a group, by the same rules. A "/" in a key also makes a group.
- Everything else: JSON text per row (UTF-8 bytes, dtype `S<n>`), empty where the row lacks the key. NumPy values inside
  become plain numbers and lists, tuples become lists.
- What JSON cannot express (objects, sets, ...) is left out; the caller is told its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_MISSING = object()
_SCALARS = {bool: np.dtype(bool), int: np.dtype(np.int64), float: np.dtype(np.float64)}


def pack_infos(rows: Sequence[Mapping], left_out: list[str]) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """Columns of the infos, as (path, array) with one row per dict, sorted by path.

    Args:
        rows: the info dicts of one episode.
        left_out: gets the keys that cannot be stored, as paths joined by "/".
    """
    columns: dict[tuple[str, ...], np.ndarray] = {}
    used: set[tuple[str, ...]] = set()  # every path that is a column or leads to one
    for path, array in _pack(list(rows), (), left_out):
        taken = path in used or any(path[:i] in columns for i in range(1, len(path)))
        if taken or any(name in ("", ".") or "\0" in name for name in path):
            left_out.append("/".join(path))
        else:
            columns[path] = array
            used.update(path[:i] for i in range(1, len(path) + 1))
    return sorted(columns.items())


def _pack(rows: list, above: tuple[str, ...], left_out: list[str]) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    keys = dict.fromkeys(key for row in rows if row is not _MISSING for key in row)
    names = {str(key) for key in keys}
    for key in keys:
        values = [_MISSING if row is _MISSING else row.get(key, _MISSING) for row in rows]
        path = (*above, *str(key).split("/"))
        present = [value for value in values if value is not _MISSING]
        if all(isinstance(value, dict) and value and all(isinstance(k, str) for k in value) for value in present):
            yield from _pack(values, path, left_out)
            continue
        complete = len(present) == len(values)
        array = _as_array(present)
        if array is not None and array.dtype == bool and str(key)[:1] == "_" and str(key)[1:] in names:
            array = None
        if array is not None and complete:
            yield path, array
        elif array is not None and f"_{key}" not in names:
            mask = np.array([value is not _MISSING for value in values])
            padded = np.zeros((len(values), *array.shape[1:]), array.dtype)
            padded[mask] = array
            yield path, padded
            yield (*path[:-1], f"_{path[-1]}"), mask
        else:
            text = _as_json(values)
            if text is None:
                left_out.append("/".join(path))
            else:
                yield path, text


def _as_array(values: list) -> np.ndarray | None:
    """Numbers, bools or arrays of one dtype and shape as one array; None when they are not."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and (dtype := _SCALARS.get(next(iter(kinds)))) is not None:
        try:
            return np.array(values, dtype)
        except OverflowError:
            return None
    if len(kinds) == 1 and issubclass(next(iter(kinds)), np.generic):
        array = np.array(values)  # of one type, so nothing is converted
        return array if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8 else None
    arrays = []
    for value in values:
        if type(value) in _SCALARS:
            if type(value) is int and not -(2**63) <= value < 2**63:
                return None
            arrays.append(np.asarray(value, _SCALARS[type(value)]))
        elif isinstance(value, np.ndarray | np.generic):
            arrays.append(np.asarray(value))
        else:
            return None
        first, last = arrays[0], arrays[-1]
        if last.dtype != first.dtype or last.shape != first.shape:
            return None
    dtype = arrays[0].dtype
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        return None
    return np.ascontiguousarray(np.stack(arrays), dtype.newbyteorder("<"))


def _as_json(values: list) -> np.ndarray | None:
    try:
        texts = [b"" if v is _MISSING else json.dumps(v, default=_plain).encode() for v in values]
    except (TypeError, ValueError, RecursionError):
        return None
    return np.array(texts, dtype=f"S{max(1, max(map(len, texts)))}")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufU":
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def unpack_infos(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The info dicts of an episode from its stored infos, e.g. Minari's `EpisodeData.infos`.

    Args:
        columns: arrays by key, groups as dicts; a group with another number of rows (`policy_infos`) is ignored at
            the top level: pass it by itself.

    Returns:
        One dict per row; array columns give NumPy scalars and arrays, JSON columns plain Python values. A row has only
        the keys it had when it was stored.
    """
    if not columns:
        return []
    arrays = dict(_flat(columns, ()))
    policy = {path for path in arrays if path[0] == "policy_infos"}
    if len(policy) < len(arrays):
        arrays = {path: array for path, array in arrays.items() if path not in policy}
    rows: list[dict[str, Any]] = [{} for _ in range(len(next(iter(arrays.values()))))]
    masks = {path: arrays.get((*path[:-1], f"_{path[-1]}")) for path in arrays}
    masks = {path: mask for path, mask in masks.items() if mask is not None and mask.dtype == bool}
    hidden = {(*path[:-1], f"_{path[-1]}") for path in masks}
    for path, array in arrays.items():
        if path in hidden:
            continue
        mask = masks.get(path)
        for i, row in enumerate(rows):
            if (mask is not None and not mask[i]) or (array.dtype.kind in "SO" and not array[i]):
                continue
            for name in path[:-1]:
                row = row.setdefault(name, {})
            row[path[-1]] = json.loads(array[i]) if array.dtype.kind in "SO" else array[i]
    return rows


def _flat(columns: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    for key, value in columns.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*above, key))
        else:
            yield (*above, key), value
