"""Infos of a batch, from one dict a slot to the three forms that training scripts read.

*gymnasium*: a dict of columns, each with a mask under "_" + its key (bool[n]: which slots have it). A column of numbers
is an array [n] of their dtype, a column of arrays [n, *shape]. A column of dicts is a dict of columns. Any other column
is an object array. A slot without the key has 0, or None in an object array. Where slots moved on within the step,
`final_obs` (an object array) and `final_info` (columns) belong to the episode that ended.

*legacy*: the same with the names of Gymnasium 0.29: `final_observation` and `final_info` are object arrays, of
observations and of whole dicts.

*list*: a list of n dicts, slot by slot.

The vector's own infos have names of their own: those of the final observations and infos. A vector that goes on after a
worker's death has "aborted", "restarted" and "dropped", too. They come from the batch, never from an info. An
environment's own value under a name that the vector may use is kept as "env_" + name.

Columns follow `gymnasium.vector.VectorEnv._add_info`, type by type, except where that function fails or changes values.
Values that a column's dtype cannot hold widen the column, to object in the last resort. Such values are a string among
integers, 0.5 where the first was the integer 0, or another shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache, partial
from typing import Any

import numpy as np

from treadle import gone, trees
from treadle.errors import UsageError
from treadle.lockstep.batch import NO_NEWS, Batch, News
from treadle.program.base import kept_as, own_names
from treadle.wire.info_rows import InfoRows, columns_of_rows

Infos = Mapping[int, dict[str, Any]]
Finals = dict[int, tuple[Any, dict[str, Any]]]
Five = tuple[Any, np.ndarray, np.ndarray, np.ndarray, Any]

FINALS = frozenset({"final_obs", "final_info", "final_observation"})  # what `next_obs` reads, whatever the mode
NEWS = {News.ABORTED: "aborted", News.RESTARTED: "restarted", News.DROPPED: "dropped"}


class InfoStyle(StrEnum):
    """How a vector hands out infos; see the module."""

    GYMNASIUM = "gymnasium"
    LEGACY = "legacy"
    LIST = "list"

    @classmethod
    def of(cls, name: str) -> InfoStyle:
        """Raises UsageError for an unknown name. `LIST` itself is for interfaces of ours that want a dict a slot."""
        if type(name) is not cls and name not in (cls.GYMNASIUM, cls.LEGACY):
            raise UsageError(gone.instead(f"infos={name!r}") or f"infos must be 'gymnasium' or 'legacy', got {name!r}")
        return cls(name)


def batcher(style: InfoStyle, n: int, goes_on: bool = False) -> Callable[..., Any]:
    """A function from a batch's infos, finals and news (slots without any are not in the dicts) to one of the forms.

    `goes_on`: does the vector go on after a worker's death? Then it has more names of its own.
    """
    build = {InfoStyle.GYMNASIUM: gymnasium_infos, InfoStyle.LEGACY: legacy_infos, InfoStyle.LIST: list_infos}[style]
    own = FINALS.union(NEWS.values()) if goes_on else FINALS
    return partial(build, n, own=own)


class BatchForm:
    """How a vector hands out a batch of its engine's: in Gymnasium's five parts.

    Args:
        style: of the infos.
        n: slots.
        loose: are there leaves without a fixed shape? They come as lists; Gymnasium batches them as tuples.
        goes_on: see `batcher`.

    Attributes:
        infos: see `batcher`.
        empty: the infos of a batch that has none.
    """

    def __init__(self, style: InfoStyle, n: int, loose: bool, goes_on: bool) -> None:
        self._loose, self.infos = loose, batcher(style, n, goes_on)
        self.empty: Callable[[], Any] = (lambda: [{} for _ in range(n)]) if style is InfoStyle.LIST else dict

    def five(self, batch: Batch) -> Five:
        """Observations, rewards, terminations, truncations, infos."""
        observations = batch.observations
        if self._loose:
            observations = trees.map(lambda leaf: tuple(leaf) if isinstance(leaf, list) else leaf, observations)
        some = batch.infos or batch.finals or batch.news
        infos = self.infos(batch.infos, batch.finals, batch.news) if some else self.empty()
        return observations, batch.rewards, batch.terminated, batch.truncated, infos

    def keep_partial(self, error: BaseException) -> None:
        """Convert the other slots' results that an error holds to this form."""
        partial = getattr(error, "partial", None)
        if isinstance(partial, Batch):
            error.partial = self.five(partial)  # type: ignore[attr-defined]  # it has one: a line above


def gymnasium_infos(
    n: int, infos: Infos, finals: Finals, news: Mapping[int, News] = NO_NEWS, own: frozenset[str] = FINALS
) -> dict[str, Any]:
    """Columns and masks; see the module. `own`: the vector's own names."""
    out = _left_free(columns(n, infos), own)
    if finals:
        mask = _mask(n, finals)
        out["final_obs"], out["_final_obs"] = _objects(n, {slot: final[0] for slot, final in finals.items()}), mask
        told = _left_free(columns(n, {slot: final[1] for slot, final in finals.items() if final[1]}), own - FINALS)
        _tell(n, told, _of_finals(news, finals))
        out["final_info"], out["_final_info"] = told, mask.copy()
    if news:
        _tell(n, out, _of_rows(news))
    return out


def legacy_infos(
    n: int, infos: Infos, finals: Finals, news: Mapping[int, News] = NO_NEWS, own: frozenset[str] = FINALS
) -> dict[str, Any]:
    """The form of Gymnasium 0.29; see the module. `own`: the vector's own names."""
    out = _left_free(columns(n, infos), own)
    if finals:
        seen = {slot: final[0] for slot, final in finals.items()}
        for key, rows in (("final_observation", seen), ("final_info", _final_infos(finals, news, own))):
            out[key], out[f"_{key}"] = _objects(n, rows), _mask(n, finals)
    _tell(n, out, _of_rows(news))
    return out


def list_infos(
    n: int, infos: Infos, finals: Finals, news: Mapping[int, News] = NO_NEWS, own: frozenset[str] = FINALS
) -> list[dict[str, Any]]:
    """One dict a slot; where it moved on within the step, with `final_obs` and `final_info`."""
    out: list[dict[str, Any]] = [{} for _ in range(n)]
    for slot, info in infos.items():
        out[slot] = own_names(info, own, "env")
    if finals:
        told = _final_infos(finals, news, own)
        for slot, (observation, _) in finals.items():
            out[slot].update(final_obs=observation, final_info=told[slot])
    if news:
        for slot, each in _of_rows(news).items():
            out[slot].update(_words(each))
    return out


def _left_free(out: dict[str, Any], own: frozenset[str]) -> dict[str, Any]:
    """`own_names` for columns and their masks, in place."""
    if not own.isdisjoint(out):
        for name in own.intersection(out):
            kept = kept_as(name, "env", out)
            out[kept], out[f"_{kept}"] = out.pop(name), out.pop(f"_{name}")
    return out


def _words(news: News) -> dict[str, bool]:
    return {NEWS[each]: True for each in news}


def _tell(n: int, out: dict[str, Any], news: Mapping[int, News]) -> None:
    """Add columns of the vector's own infos."""
    if news:
        out.update(columns(n, {slot: _words(each) for slot, each in sorted(news.items()) if each}))


def _of_rows(news: Mapping[int, News]) -> dict[int, News]:
    """Return the news of each row. Where the row is a fresh environment's, the end of the last one is not its news."""
    return {slot: each & ~News.ABORTED if News.RESTARTED in each else each for slot, each in news.items()}


def _of_finals(news: Mapping[int, News], finals: Finals) -> dict[int, News]:
    """Return the news of the episodes that have ended."""
    return {slot: each & ~News.RESTARTED for slot, each in news.items() if slot in finals}


def _final_infos(finals: Finals, news: Mapping[int, News], own: frozenset[str]) -> Infos:
    own = own - FINALS
    found: Infos = {slot: own_names(info, own, "env") for slot, (_, info) in finals.items()}
    for slot, each in _of_finals(news, finals).items():
        found[slot].update(_words(each))
    return found


def columns(n: int, infos: Infos) -> dict[str, Any]:
    """Columns and masks of one dict a slot, in slot order."""
    if type(infos) is InfoRows and not infos.rest and (made := columns_of_rows(n, infos.groups)) is not None:
        return made
    out: dict[str, Any] = {}
    told = [*infos.values()]
    if len(told) == n and len({*map(tuple, told)}) == 1:  # as most often
        for key in told[0]:
            out[key] = _column(n, key, range(n), [info[key] for info in told])
            out[f"_{key}"] = _everywhere(n).copy()
        return out
    rows: dict[str, dict[int, Any]] = {}
    for slot, info in infos.items():
        for key, value in info.items():
            rows.setdefault(key, {})[slot] = value
    for key, row in rows.items():
        out[key] = _column(n, key, row, [*row.values()])
        out[f"_{key}"] = _mask(n, row)
    return out


def _mask(n: int, slots: Mapping[int, Any]) -> np.ndarray:
    if len(slots) == n:
        return _everywhere(n).copy()
    mask = np.zeros(n, np.bool_)
    mask[list(slots)] = True
    return mask


@cache
def _everywhere(n: int) -> np.ndarray:
    """To be copied, which takes a third of the time of `np.ones`."""
    return np.ones(n, np.bool_)


def _column(n: int, key: str, slots: Iterable[int], values: Sequence[Any]) -> Any:
    if key != "final_obs" and len(values) == n and (numbers := _of_numbers(values)) is not None:
        return numbers
    rows, first = dict(zip(slots, values, strict=True)), values[0]
    if key == "final_obs":
        return _objects(n, rows)
    if isinstance(first, dict):
        return columns(n, rows) if all(isinstance(value, dict) for value in values) else _objects(n, rows)
    if _is_number(type(first)):
        column: np.ndarray = np.zeros(n, type(first))
    elif isinstance(first, np.ndarray):
        column = np.zeros((n, *first.shape), first.dtype)
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


def _of_numbers(values: Sequence[Any]) -> np.ndarray | None:
    """A column of numbers of one kind, or of integers among floats; None for anything else."""
    kinds, kind = set(map(type, values)), type(values[0])
    if len(kinds) == 1 and _is_number(kind):
        with suppress(OverflowError):  # Python integers beyond 64 bits
            return np.array(values, kind)
    if kinds == {int, float} and min(values) >= -(2**63) and max(values) < 2**63:
        return np.array(values, float)
    return None


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


def _objects(n: int, rows: Mapping[int, Any]) -> np.ndarray:
    out = np.empty(n, object)
    for slot, value in rows.items():
        out[slot] = value
    return out


def _is_number(kind: type) -> bool:
    return kind is int or kind is float or kind is bool or issubclass(kind, np.number)


def rows_of_infos(infos: dict[str, Any], k: int) -> dict[int, dict[str, Any]]:
    """One dict for each row that has anything, from columns and masks; the inverse of `columns`.

    A column without a mask has a value for every row. A value that is not a column of k values goes to every row.
    """
    rows: dict[int, dict[str, Any]] = {}
    for key, column in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        told = range(k) if mask is None else np.flatnonzero(mask).tolist()
        values: Any
        if isinstance(column, dict):
            nested = rows_of_infos(column, k)
            values = {row: nested.get(row, {}) for row in told}
        elif isinstance(column, np.ndarray | list | tuple) and len(column) == k:
            values = column
        else:
            values = dict.fromkeys(told, column)
        for row in told:
            rows.setdefault(row, {})[key] = values[row]
    return rows
