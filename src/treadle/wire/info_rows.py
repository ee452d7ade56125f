"""Infos as rows of numbers: the form of a batch's info dicts on their way from a worker to its caller.

Most environments give the same few numbers in every step's info. To pickle and unpickle them costs more than the steps
of a small environment. So a worker that meets a dict of numbers writes only its values from then on, all slots' one
after the other. A `Schema` has the keys and the kinds of the values. The schema travels once. The caller makes columns
of them (`columns_of_rows`), or reads any slot's dict as it was (`InfoRows` is a mapping). That is a dict of its own,
with the same keys in the same order, and values of the same types.

The exact type decides what counts as a number: Python's and NumPy's numbers and Python's bools, small arrays of them,
and dicts of all these. Any other value leaves the whole info to the message. Such are text, None, a subclass (an
IntEnum), an integer beyond 64 bits, and np.bool_ (an object column in Gymnasium). So does a key that begins with an
underscore, which may be the mask of another one.

A row is written by one `struct`, and is a record of a structured dtype. A dict within is a record within, and a column
is the copy of a field.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

MOST_BYTES = 1024  # of an array: a larger one goes by message
MOST_DEPTH = 16  # of dicts within dicts
MOST_SCHEMAS = 64  # of a worker; an environment that makes up its keys is not worth remembering

CODES = {np.dtype(code).str[1:]: code for code in "dfeqihbQIHB?"}  # codes of `struct`, by NumPy's
# NumPy's longlong and ulonglong are other types, and so is its bool_
NUMBERS: frozenset[type] = frozenset([int, float, bool] + [np.dtype(name).type for name in CODES]) - {np.bool_}
PLAIN = (int, float, bool)  # types whose values `struct` reads as they were
ARRAY_KINDS = "biufc"

OPEN, CLOSE = 1, -1  # among keys: a dict stands under the key that follows, up to CLOSE

Keys = tuple[Any, ...]
Kinds = tuple[Any, ...]  # of each value: a number's type, or (dtype, shape) of an array


# keys and kinds as one object for equal ones, so that comparing costs nothing
_form = lru_cache(1024)(lambda keys, kinds: (keys, kinds))


def _record(keys: Iterator[Any], kinds: Iterator[Any]) -> np.dtype:
    """Return the dtype of a row."""
    fields: list[Any] = []
    for key in keys:
        if key == CLOSE:
            break
        if key == OPEN:
            fields.append((next(keys), _record(keys, kinds)))
        else:
            kind = next(kinds)
            fields.append((key, *kind) if type(kind) is tuple else (key, kind))
    return np.dtype(fields)


class Schema:
    """The keys and the kinds of values that infos share.

    Args:
        number: the worker's name for it.
        keys: in order; dicts within stand between OPEN and CLOSE.
        kinds: of the values, in order.

    Attributes:
        form: keys and kinds, by which rows of several workers are put together.
        dtype: of a row.
    """

    def __init__(self, number: int, keys: Keys, kinds: Kinds) -> None:
        self.number, self.form = number, _form(keys, kinds)
        self.keys, self.kinds = self.form
        self.flat, self.dtype = len(keys) == len(kinds), _record(iter(keys), iter(kinds))
        dtypes = map(np.dtype, kinds)
        codes = (f"{d.itemsize}s" if type(k) is tuple else CODES[d.str[1:]] for k, d in zip(kinds, dtypes))
        self.struct = struct.Struct("=" + "".join(codes))
        self.size = self.struct.size
        self._keys, self._types = list(keys), [np.ndarray if type(kind) is tuple else kind for kind in kinds]
        self._arrays = [(at, np.dtype(k[0]), k[1]) for at, k in enumerate(kinds) if type(k) is tuple]

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (self.number, self.keys, self.kinds)

    def row(self, info: dict[Any, Any]) -> bytes | None:
        """Return the row of an info with the schema's keys; None where the info does not fit the schema."""
        values = list(info.values())
        if not self.flat:
            keys: list[Any] = []
            values.clear()
            if not _expand(info, keys, values, MOST_DEPTH) or keys != self._keys:
                return None
        if list(map(type, values)) != self._types:
            return None
        for at, dtype, shape in self._arrays:
            if values[at].dtype != dtype or values[at].shape != shape:
                return None
            values[at] = values[at].tobytes()
        return self.struct.pack(*values)

    def read(self, row: Any) -> dict[str, Any]:
        """Return the info of a row, as it was."""
        values = list(self.struct.unpack(row))
        for at, make in self._makers:
            values[at] = make(values[at])
        return dict(zip(self.keys, values)) if self.flat else _nested(self.dtype, iter(values))

    @cached_property
    def _makers(self) -> list[tuple[int, Any]]:
        """For each value that `struct` reads as another type: its number, and the function that restores it."""
        makers: list[tuple[int, Any]] = []
        for at, kind in enumerate(self.kinds):
            if type(kind) is tuple:
                makers.append((at, partial(_array, np.dtype(kind[0]), kind[1])))
            elif kind not in PLAIN:
                makers.append((at, kind))
        return makers


def _array(dtype: np.dtype, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    return np.ndarray(shape, dtype, data).copy()


def _nested(dtype: np.dtype, values: Iterator[Any]) -> dict[str, Any]:
    within = ((key, dtype[key]) for key in dtype.names or ())
    return {key: next(values) if each.names is None else _nested(each, values) for key, each in within}


Group = tuple[Schema, tuple[int, ...], bytes]  # infos of one schema: the slots, and their rows one after the other


class Row(NamedTuple):
    """One slot's info as a row that is not read yet."""

    schema: Schema
    data: bytes


class InfoRows(Mapping[int, Any]):
    """Infos of some slots: a mapping from a slot to its info, in slot order, read only on demand.

    Args:
        groups: each slot is in one of them at most.
        rest: slot -> info, of those that went by message.
    """

    def __init__(self, groups: list[Group], rest: dict[int, Any] | None = None) -> None:
        self.groups, self.rest = groups, {} if rest is None else rest

    def rows(self) -> dict[int, Any]:
        """Return slot -> its `Row`, or its info if that went by message. In no order."""
        found: dict[int, Any] = dict(self.rest)
        for schema, slots, data in self.groups:
            size = schema.size
            for at, slot in enumerate(slots):
                found[slot] = Row(schema, data[at * size : at * size + size])
        return found

    @cached_property
    def _rows(self) -> dict[int, Any]:
        return dict(sorted(self.rows().items()))

    def __getitem__(self, slot: int) -> Any:
        row = self._rows[slot]
        return row.schema.read(row.data) if type(row) is Row else row

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self.rest) + sum(len(slots) for _, slots, _ in self.groups)

    def __bool__(self) -> bool:
        return bool(self.groups or self.rest)

    def __contains__(self, slot: object) -> bool:
        return slot in self._rows

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.groups, self.rest)


class FinalRows(InfoRows):
    """Final infos, in the form of `Extras.finals`: a mapping from a slot to (its info, what its row lacks)."""

    def __getitem__(self, slot: int) -> Any:
        found = super().__getitem__(slot)
        return found if slot in self.rest else (found, None)


def gathered(rows: Mapping[int, Any]) -> Mapping[int, Any]:
    """Return rows by slot as infos: the reverse of `InfoRows.rows`."""
    groups: list[Group] = [(row.schema, (slot,), row.data) for slot, row in rows.items() if type(row) is Row]
    if not groups:
        return rows
    return InfoRows(_together(groups), {slot: row for slot, row in rows.items() if type(row) is not Row})


def joined(parts: Iterable[Mapping[int, Any]]) -> Mapping[int, Any]:
    """Return the infos of several workers as one mapping in slot order."""
    groups: list[Group] = []
    rest: dict[int, Any] = {}
    for part in parts:
        if type(part) is InfoRows:
            groups += part.groups
            if part.rest:
                rest.update(part.rest)
        elif part:
            rest.update(part)
    if groups:
        return InfoRows(_together(groups), rest)
    return dict(sorted(rest.items())) if len(rest) > 1 else rest


def _together(groups: list[Group]) -> list[Group]:
    """Join the groups of each schema."""
    if len(groups) == 1:
        return groups
    found: dict[int, list[Group]] = {}
    for group in groups:
        found.setdefault(id(group[0].form), []).append(group)
    return [
        (same[0][0], tuple([slot for _, slots, _ in same for slot in slots]), b"".join([data for _, _, data in same]))
        for same in found.values()
    ]


# -- columns -----------------------------------------------------------------------------------------------------------


def columns_of_rows(n: int, groups: Sequence[Group]) -> dict[str, Any] | None:
    """Return columns [n, ...] and masks bool[n], the caller's own. None: values of different kinds share a key."""
    if len(groups) == 1 and groups[0][1] == _every(n):
        return _whole(np.frombuffer(groups[0][2], groups[0][0].dtype), np.ones(n, np.bool_))
    groups = sorted(groups, key=lambda group: min(group[1]))  # columns stand in the order in which slots have them
    return _merged(n, [(np.array(slots, np.intp), np.frombuffer(data, schema.dtype)) for schema, slots, data in groups])


def _whole(rows: np.ndarray, everywhere: np.ndarray) -> dict[str, Any]:
    """Return columns of the records of all slots."""
    out: dict[str, Any] = {}
    for key in rows.dtype.names or ():
        column = rows[key]
        out[key] = column.copy() if column.dtype.names is None else _whole(column, everywhere)
        out[f"_{key}"] = everywhere.copy()
    return out


def _merged(n: int, some: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any] | None:
    """Return columns of records of several dtypes, each of some slots."""
    having: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for slots, rows in some:
        for key in rows.dtype.names or ():
            having.setdefault(key, []).append((slots, rows[key]))
    out: dict[str, Any] = {}
    for key, parts in having.items():
        first, mask = parts[0][1], np.zeros(n, np.bool_)
        dtype: np.dtype | None = first.dtype
        shape, nested = first.shape[1:], first.dtype.names is not None
        for _, values in parts:
            if (values.dtype.names is not None) is not nested or values.shape[1:] != shape:
                return None
            if not nested and (dtype := _wider(dtype, values.dtype)) is None:
                return None
        column: Any = _merged(n, parts) if nested else np.zeros((n, *shape), dtype)
        if column is None:
            return None
        for slots, values in parts:
            mask[slots] = True
            if not nested:
                column[slots] = values
        out[key], out[f"_{key}"] = column, mask
    return out


@cache
def _wider(dtype: Any, other: np.dtype) -> np.dtype | None:
    """Return the dtype of a column that holds both without loss, as `treadle.vector.infos` widens it.

    None: such a column may round.
    """
    if np.can_cast(other, dtype, "same_kind"):
        return dtype if np.can_cast(other, dtype) else None
    return np.result_type(dtype, other)


@cache
def _every(n: int) -> tuple[int, ...]:
    return tuple(range(n))


# -- how rows travel where the schemas are known ---------------------------------------------------------------------

HEAD = struct.Struct("=iii")  # number of the schema, how many slots, 1 for final infos


@cache
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f"={count}i")


def raw_of(infos: Mapping[int, Any], finals: Mapping[int, Any], schemas: Mapping[int, Schema]) -> bytes | None:
    """Return both as bytes; None where they hold more than rows of known schemas."""
    parts: list[bytes] = []
    for final, rows in enumerate((infos, finals)):
        if isinstance(rows, InfoRows):
            if rows.rest:
                return None
            for schema, slots, data in rows.groups:
                if schema.number not in schemas:
                    return None
                count = len(slots)
                parts += (HEAD.pack(schema.number, count, final), _numbers(count).pack(*slots), data)
        elif rows:
            return None
    return b"".join(parts)


def from_raw(data: bytes, schemas: Mapping[int, Schema]) -> tuple[InfoRows, Mapping[int, Any]]:
    """Return the infos and the final infos of `raw_of`."""
    groups: tuple[list[Group], list[Group]] = [], []
    at = 0
    while at < len(data):
        number, count, final = HEAD.unpack_from(data, at)
        at += HEAD.size
        schema, end = schemas[number], at + 4 * count
        slots = _numbers(count).unpack_from(data, at)
        at = end + schema.size * count
        groups[final].append((schema, slots, data[end:at]))
    return InfoRows(groups[0]), FinalRows(groups[1]) if groups[1] else {}


# -- the worker's half -------------------------------------------------------------------------------------------------


class InfoPacker:
    """Makes rows of a worker's infos, and remembers the schemas that it has met.

    Args:
        slots: the worker's. Infos are keyed by their place in it.
    """

    def __init__(self, slots: tuple[int, ...]) -> None:
        self._slots = slots
        self._schemas: dict[Any, Schema | None] = {}  # by keys and kinds; None: such infos go by message
        self._latest: dict[Any, Schema] = {}  # by the keys of an info, those of dicts within left out

    def pack(self, infos: dict[int, Any]) -> tuple[list[Group], dict[int, Any]]:
        """Return rows of the infos, and the infos that do not fit."""
        rest: dict[int, Any] = {}
        found: dict[Schema, dict[int, bytes]] = {}
        for i, info in infos.items():
            try:
                schema, row = self._row(info)
            except Exception:  # noqa: BLE001 - an integer beyond its cell; a foreign key's error: pickling raises it
                schema = None
            if schema is None:
                rest[i] = info
            elif schema in found:
                found[schema][self._slots[i]] = row
            else:
                found[schema] = {self._slots[i]: row}
        return [(schema, tuple(rows), b"".join(rows.values())) for schema, rows in found.items()], rest

    def _row(self, info: Any) -> tuple[Schema | None, bytes]:
        """Return an info's schema and row."""
        if type(info) is not dict:
            return None, b""
        names = tuple(info)
        latest = self._latest.get(names)
        if latest is not None and (row := latest.row(info)) is not None:
            return latest, row
        schema, values = self._read(info)
        if schema is None:
            return None, b""
        self._latest[names] = schema
        return schema, schema.struct.pack(*values)

    def _read(self, info: Any) -> tuple[Schema | None, list[Any]]:
        """Return an info's schema (None where it must go by message) and its values, in the form for `struct`."""
        keys: list[Any] = []
        values: list[Any] = []
        kinds: list[Any] = []
        if not _expand(info, keys, values, MOST_DEPTH):
            return None, values
        for at, value in enumerate(values):
            kind: Any = type(value)
            if kind is np.ndarray:
                kind = value.dtype.str, value.shape
                if value.dtype.kind in ARRAY_KINDS and value.nbytes <= MOST_BYTES:
                    values[at] = value.tobytes()
            kinds.append(kind)
        key = tuple(keys), tuple(kinds)
        if key not in self._schemas:
            if len(self._schemas) == MOST_SCHEMAS:
                return None, values
            self._schemas[key] = Schema(len(self._schemas), *key) if _fit(*key) else None
        return self._schemas[key], values


def _expand(info: dict[str, Any], keys: list[Any], values: list[Any], depth: int) -> bool:
    """Lay out a dict with those within it. Returns False where they are too deep."""
    for key, value in info.items():
        if type(value) is dict:
            keys += OPEN, key
            if depth == 1 or not _expand(value, keys, values, depth - 1):
                return False
            keys.append(CLOSE)
        else:
            keys.append(key)
            values.append(value)
    return True


def _fit(keys: Keys, kinds: Kinds) -> bool:
    """Return True if rows can hold these keys and kinds of values."""
    names = [key for key in keys if type(key) is str]
    if len(names) != len(kinds) + keys.count(OPEN):  # another key, even one that looks like OPEN or CLOSE
        return False
    if any(name.startswith("_") or name in ("", "final_obs") for name in names):
        return False
    for kind in kinds:
        if type(kind) is tuple:
            if np.dtype(kind[0]).kind not in ARRAY_KINDS or not 0 < np.dtype(kind).itemsize <= MOST_BYTES:
                return False
        elif kind not in NUMBERS:
            return False
    return bool(kinds)
