"""Infos as they were, of the columns that are stored of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import repeat
from typing import Any

import numpy as np

from treadle.record.columns import POLICY_INFOS


def unpack_infos(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The info dicts of an episode from its stored infos, e.g. Minari's `EpisodeData.infos`.

    Args:
        columns: arrays by key, groups as dicts; a group with another number of rows (`policy_infos`) is ignored at
            the top level: pass it by itself.

    Returns:
        One dict per row; array columns give NumPy scalars and arrays, JSON columns plain Python values. A row has only
        the keys it had when it was stored.
    """
    return _unpacked({key: column for key, column in columns.items() if key != POLICY_INFOS} or columns)


def _unpacked(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    masks = {key: each for key, each in columns.items() if key[:1] == "_" and key[1:] in columns and _is_mask(each)}
    for key in [key for key in columns if key not in masks]:
        values, there = columns[key], masks.get(f"_{key}", repeat(True))
        if isinstance(values, Mapping):
            there = values = _unpacked(values)  # a stored group is never empty
        elif values.dtype.kind in "SO":
            there, values = values, [json.loads(text) if text else None for text in values]
        rows = rows or [{} for _ in values]
        for row, value, has in zip(rows, values, there):
            if has:
                row[key] = value
    return rows


def _is_mask(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype == bool
