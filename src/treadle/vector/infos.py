"""Infos of a batch, from one dict a slot to the three forms that training scripts read.

*gymnasium*: a dict of columns, each with a mask under "_" + its key (bool[n]: which slots have it). A column is an
array [n] of the value's dtype for numbers, [n, *shape] for arrays, a dict of columns for dicts, else an object array;
where a slot has none there is 0, or None in an object array. Where slots moved on within the step, `final_obs` (an
object array) and `final_info` (columns) belong to the episode that ended.

*legacy*: the same with the names of Gymnasium 0.29: `final_observation` and `final_info` are object arrays, of
observations and of whole dicts.

*list*: a list of n dicts, slot by slot.

Columns follow `gymnasium.vector.VectorEnv._add_info`, type by type. They part where that function fails or falsifies:
values that a column's dtype cannot hold (a string among integers, 0.5 where the first was the integer 0, another
shape) widen the column, to object where nothing else will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from operator import itemgetter
from typing import Any

import numpy as np

from treadle.errors import UsageError
from treadle.pool.info_rows import InfoRows, Structure

Infos = Mapping[int, dict[str, Any]]
Finals = dict[int, tuple[Any, dict[str, Any]]]


class InfoStyle(StrEnum):
    """How a vector hands out infos; see the module."""

    GYMNASIUM = "gymnasium"
    LEGACY = "legacy"
    LIST = "list"

    @classmethod
    def of(cls, name: str) -> InfoStyle:
        """Raises UsageError for an unknown name."""
        try:
            return cls(name)
        except ValueError:
            raise UsageError(f"infos must be one of {', '.join(cls)}, got {name!r}") from None


def batcher(style: InfoStyle, n: int) -> Callable[[Infos, Finals], Any]:
    """A function from a batch's infos and finals (slots without any are not in the dicts) to one of the forms."""
    build = {InfoStyle.GYMNASIUM: gymnasium_infos, InfoStyle.LEGACY: legacy_infos, InfoStyle.LIST: list_infos}[style]
    return lambda infos, finals: build(n, infos, finals)


def gymnasium_infos(n: int, infos: Infos, finals: Finals) -> dict[str, Any]:
    """Columns and masks; see the module."""
    out = columns(n, infos)
    if finals:
        mask = _mask(n, finals)
        out["final_obs"], out["_final_obs"] = _objects(n, {slot: final[0] for slot, final in finals.items()}), mask
        out["final_info"] = columns(n, {slot: final[1] for slot, final in finals.items() if final[1]})
        out["_final_info"] = mask.copy()
    return out


def legacy_infos(n: int, infos: Infos, finals: Finals) -> dict[str, Any]:
    """The form of Gymnasium 0.29; see the module."""
    out = columns(n, infos)
    if finals:
        mask = _mask(n, finals)
        for key, part in (("final_observation", 0), ("final_info", 1)):
            out[key] = _objects(n, {slot: final[part] for slot, final in finals.items()})
            out[f"_{key}"] = mask.copy()
    return out


def list_infos(n: int, infos: Infos, finals: Finals) -> list[dict[str, Any]]:
    """One dict a slot; where it moved on within the step, with `final_obs` and `final_info`."""
    out = [dict(infos.get(slot, ())) for slot in range(n)]
    for slot, (observation, info) in finals.items():
        out[slot].update(final_obs=observation, final_info=info)
    return out


def columns(n: int, infos: Infos) -> dict[str, Any]:
    """Columns and masks of one dict a slot, in slot order."""
    if type(infos) is InfoRows and (out := _columns_of_rows(n, infos)) is not None:
        return out
    if len(infos) == n and (out := _columns_of_like(n, infos)) is not None:
        return out
    rows: dict[str, dict[int, Any]] = {}
    for slot, info in infos.items():
        for key, value in info.items():
            rows.setdefault(key, {})[slot] = value
    out = {}
    for key, row in rows.items():
        out[key] = _column(n, key, row)
        out[f"_{key}"] = _mask(n, row)
    return out


def _columns_of_rows(n: int, infos: InfoRows) -> dict[str, Any] | None:
    """The same where all slots have the same keys and types, which lie in one array. None: they have not."""
    if infos.rest or len(infos.groups) != 1:
        return None
    ((schema, records),) = infos.records()
    everywhere, slots = _everywhere(n), records["slot"]
    if len(records) == n:
        chosen, mask = slice(None) if (slots[:-1] < slots[1:]).all() else slots, everywhere
    else:
        chosen, mask = slots, np.zeros(n, np.bool_)
        mask[slots] = True
    fields = iter(range(len(schema.leaves)))

    def column(kind: Any) -> Any:
        if isinstance(kind, list):
            return build(tuple(kind))
        values = records[str(next(fields))]
        out = (
            np.empty(values.shape, values.dtype)
            if mask is everywhere
            else np.zeros((n, *values.shape[1:]), values.dtype)
        )
        out[chosen] = values
        return out

    def build(structure: Structure) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, kind in structure:
            out[key] = column(kind)
            out[f"_{key}"] = mask.copy()
        return out

    return build(schema.structure)


def _columns_of_like(n: int, infos: Infos) -> dict[str, Any] | None:
    """The same where all slots have the same keys, as most often: without a look-up by slot. None: they have not."""
    dicts = list(infos.values())
    keys = tuple(dicts[0])
    if set(map(len, dicts)) != {len(keys)}:
        return None
    try:  # for a single key, itemgetter does not return tuples
        picked = (
            zip(*map(itemgetter(*keys), dicts)) if len(keys) > 1 else [[each[key] for each in dicts] for key in keys]
        )
    except KeyError:
        return None
    out: dict[str, Any] = {}
    everywhere = _everywhere(n)
    for key, values in zip(keys, picked):
        kinds = set(map(type, values))
        kind = kinds.pop()
        if not kinds and _is_number(kind) and key != "final_obs":
            out[key] = _numbers(values, kind)
        else:
            out[key] = _column(n, key, dict(zip(infos, values)))
        out[f"_{key}"] = everywhere.copy()
    return out


@cache
def _everywhere(n: int) -> np.ndarray:
    return np.ones(n, np.bool_)


def _mask(n: int, slots: Iterable[int]) -> np.ndarray:
    mask = np.zeros(n, np.bool_)
    for slot in slots:
        mask[slot] = True
    return mask


def _column(n: int, key: str, rows: dict[int, Any]) -> Any:
    values = list(rows.values())
    if key == "final_obs":
        return _objects(n, rows)
    if isinstance(values[0], dict):
        return columns(n, rows) if all(isinstance(value, dict) for value in values) else _objects(n, rows)
    kind = type(values[0])
    if _is_number(kind):
        column: np.ndarray = np.zeros(n, kind)
    elif isinstance(values[0], np.ndarray):
        column = np.zeros((n, *values[0].shape), values[0].dtype)
    else:
        return _objects(n, rows)
    for slot, value in rows.items():
        wider = _room_for(column, value)
        if wider is None:
            return _objects(n, rows)
        column = wider
        try:
            column[slot] = value
        except OverflowError:  # a Python integer beyond the column's
            return _objects(n, rows)
    return column


def _room_for(column: np.ndarray, value: Any) -> np.ndarray | None:
    """The column, or a wider one, that can hold the value as one of its rows; None: no array of numbers can."""
    kind = type(value)
    if not _is_number(kind) and not isinstance(value, np.ndarray | np.bool_):
        return None
    array = np.asarray(value)
    if array.shape != column.shape[1:]:
        return None
    if array.dtype == column.dtype or np.can_cast(array.dtype, column.dtype, "same_kind"):
        return column
    try:
        wider = np.result_type(column.dtype, array.dtype)
    except TypeError:
        return None
    return None if wider.hasobject else column.astype(wider)


def _numbers(values: Sequence[Any], kind: type) -> np.ndarray:
    try:
        return np.array(values, kind)
    except OverflowError:  # Python integers beyond 64 bits
        return np.array(values, object)


def _objects(n: int, rows: dict[int, Any]) -> np.ndarray:
    out = np.empty(n, object)
    for slot, value in rows.items():
        out[slot] = value
    return out


def _is_number(kind: type) -> bool:
    return kind is int or kind is float or kind is bool or issubclass(kind, np.number)


__all__ = ["Finals", "InfoStyle", "Infos", "batcher", "columns", "gymnasium_infos", "legacy_infos", "list_infos"]
