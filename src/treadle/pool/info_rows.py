"""Infos as rows of numbers: what a batch's info dicts become on their way from a worker to its caller.

Most environments give the same few numbers in every step's info, and to pickle and unpickle them costs more than the
steps of a small environment. So a worker that meets a dict of numbers (`Schema`: its keys and what stands under each)
writes nothing but the values from then on, all slots' one after the other. The schema itself travels once. The caller
makes columns of them (`plan`), or reads any slot's dict as it was (`InfoRows` is a mapping): the same keys in the same
order, values of the same types, a dict of one's own.

What is a number is decided by the exact type: Python's and NumPy's numbers and Python's bools, small arrays of them,
and dicts of all these. A subclass (an IntEnum), an integer beyond 64 bits, np.bool_ (an object column in Gymnasium),
text, None and everything else leave the whole info to the message. So does a key that begins with an underscore, which
may be the mask of another one.

A number is a cell of eight bytes, whatever its type: as a double all of NumPy's smaller floats are what they were, and
as an integer of 64 bits all other numbers. So a row is read and written by one `struct`, and a column is one copy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

MOST_BYTES = 1024  # of an array: a larger one is better sent as it is
MOST_DEPTH = 16  # of dicts within dicts
MOST_SCHEMAS = 64  # of a worker; an environment that makes up its keys is not worth remembering
MOST_CELLS = 4096  # that one `struct` writes at once

CELL = 8
FLOATS = (float, np.float64, np.float32, np.float16)
UNSIGNED = np.uint64  # what no signed cell holds; NumPy's longlong and ulonglong are other types
NUMBERS: frozenset[type] = frozenset(FLOATS) | {int, bool, np.int64, UNSIGNED}
NUMBERS |= {np.dtype(code).type for code in "bhiBHI"}
PLAIN = (int, float)  # what `struct` reads as it was
ARRAY_KINDS = "biufc"

OPEN, CLOSE = 1, -1  # among keys: the dict that stands under the key before, from here to there

Keys = tuple[Any, ...]
Kinds = tuple[Any, ...]  # of each value: a number's type, or (dtype, shape) of an array


class Form:
    """Keys and kinds: one object for equal ones, so that to compare and to hash it takes nothing."""

    def __init__(self, keys: Keys, kinds: Kinds) -> None:
        self.keys, self.kinds = keys, kinds

    @cached_property
    def tree(self) -> list[tuple[str, Any]]:
        """(key, number of its value) in order; instead of a number, a list of the same for a dict within."""
        above: list[list[tuple[str, Any]]] = [[]]
        count = 0
        for at, key in enumerate(self.keys):
            if key == OPEN:
                above.append(above[-1][-1][1])
            elif key == CLOSE:
                above.pop()
            elif self.keys[at + 1 : at + 2] == (OPEN,):
                above[-1].append((key, []))
            else:
                above[-1].append((key, count))
                count += 1
        return above[0]


_form = lru_cache(1024)(Form)


class Schema:
    """What infos have in common.

    Args:
        number: the worker's name for it.
        keys: in order; dicts within stand between OPEN and CLOSE.
        kinds: of the values, in order.

    Attributes:
        form: keys and kinds, by which rows of several workers are put together.
    """

    def __init__(self, number: int, keys: Keys, kinds: Kinds) -> None:
        self.number, self.form = number, _form(keys, kinds)
        self.keys, self.kinds = self.form.keys, self.form.kinds
        self.flat = len(keys) == len(kinds)
        self.codes = "".join(_code(kind) for kind in kinds)
        self.struct = struct.Struct(f"={self.codes}")
        self.size = self.struct.size
        self.arrays = [at for at, kind in enumerate(kinds) if type(kind) is tuple]

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (self.number, self.keys, self.kinds)

    def read(self, row: Any) -> dict[str, Any]:
        """The info of a row, as it was."""
        values = list(self.struct.unpack(row))
        for at, make in self._makers:
            values[at] = make(values[at])
        return dict(zip(self.keys, values)) if self.flat else _nested(self.form.tree, values)

    @cached_property
    def _makers(self) -> list[tuple[int, Any]]:
        """Of each value that is another as `struct` reads it: its number, what makes the right one of it."""
        makers: list[tuple[int, Any]] = []
        for at, kind in enumerate(self.kinds):
            if type(kind) is tuple:
                makers.append((at, partial(_array, np.dtype(kind[0]), kind[1])))
            elif kind not in PLAIN:
                makers.append((at, kind))
        return makers


def _array(dtype: np.dtype, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    return np.ndarray(shape, dtype, data).copy()


def _nested(tree: list[tuple[str, Any]], values: list[Any]) -> dict[str, Any]:
    return {key: _nested(at, values) if type(at) is list else values[at] for key, at in tree}


def cells_of(kind: Any) -> int:
    """How many cells a value of this kind takes."""
    if type(kind) is not tuple:
        return 1
    return -(-np.dtype(kind[0]).itemsize * int(np.prod(kind[1], dtype=np.int64)) // CELL)


def _code(kind: Any) -> str:
    if type(kind) is tuple:
        return f"{cells_of(kind) * CELL}s"
    return "d" if kind in FLOATS else "Q" if kind is UNSIGNED else "q"


Group = tuple[Schema, tuple[int, ...], bytes]  # infos of one schema: the slots, and their rows one after the other


class Row(NamedTuple):
    """One slot's info, unread."""

    schema: Schema
    data: bytes


class InfoRows(Mapping[int, Any]):
    """Infos of some slots: a mapping from a slot to its info, in slot order, read only when it is asked for.

    Args:
        groups: each slot is in one of them at most.
        rest: slot -> info, of those that went by message.
    """

    def __init__(self, groups: list[Group], rest: dict[int, Any] | None = None) -> None:
        self.groups, self.rest = groups, {} if rest is None else rest

    def rows(self) -> dict[int, Any]:
        """slot -> its `Row`, or its info if that went by message. In no order."""
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
    """Final infos, as `Extras.finals` tells them: a mapping from a slot to (its info, what its row does not tell)."""

    def __getitem__(self, slot: int) -> Any:
        found = super().__getitem__(slot)
        return found if slot in self.rest else (found, None)


def gathered(rows: Mapping[int, Any]) -> Mapping[int, Any]:
    """The other way round of `InfoRows.rows`."""
    groups: list[Group] = [(row.schema, (slot,), row.data) for slot, row in rows.items() if type(row) is Row]
    if not groups:
        return rows
    return InfoRows(_together(groups), {slot: row for slot, row in rows.items() if type(row) is not Row})


def joined(parts: Iterable[Mapping[int, Any]]) -> Mapping[int, Any]:
    """The infos of several workers as one mapping in slot order."""
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
    """One for each schema."""
    if len(groups) == 1:
        return groups
    if len(groups) == 2:  # the caller's own slots and a worker's, most often
        (schema, slots, data), (other, more, rows) = groups
        return [(schema, slots + more, data + rows)] if schema.form is other.form else groups
    found: dict[int, list[Group]] = {}
    for group in groups:
        found.setdefault(id(group[0].form), []).append(group)
    return [
        (same[0][0], tuple([slot for _, slots, _ in same for slot in slots]), b"".join([data for _, _, data in same]))
        for same in found.values()
    ]


# -- columns -----------------------------------------------------------------------------------------------------------

# What the schemas of a batch make together is found once for each succession of them (`plan`): most batches are of one
# schema, and those in which slots begin an episode of two. From then on a batch is one copy a schema into an array of
# cells, of which each column is a row.

DOUBLE, INTEGER = np.dtype(np.float64), np.dtype(np.int64)


class _Column:
    """Where a column's cells begin, and how they become values.

    Attributes:
        as_it_is: its row of cells is the column.
        double: its row is one of doubles, else of integers.
    """

    def __init__(self, first: int, kind: Any) -> None:
        self.kind, self.array = kind, type(kind) is tuple
        self.cells = range(first, first + cells_of(kind))
        self.first, self._end = first, self.cells.stop
        self.dtype = np.dtype(kind[0] if self.array else kind)
        self._shape: tuple[int, ...] = kind[1] if self.array else ()
        self.double = not self.array and kind in FLOATS
        self.as_it_is = not self.array and self.dtype in (DOUBLE, INTEGER)

    def goes_with(self, kind: Any) -> bool:
        """Do values of that kind go into this column as they are?"""
        return self.kind == kind or (self.as_it_is and type(kind) is not tuple and np.dtype(kind) == self.dtype)

    def read(self, cells: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
        """A column that is not its row as it is, [n, *shape], from cells [cells, n] and the rows that they are."""
        if not self.array:
            return rows[self.first].astype(self.dtype)
        raw = cells[self.first : self._end].T.copy()
        if self.dtype != DOUBLE and self.dtype != INTEGER:
            size = self.dtype.itemsize * int(np.prod(self._shape, dtype=np.int64))
            raw = np.ascontiguousarray(raw.view(np.uint8)[:, :size])
        return raw.view(self.dtype).reshape(len(raw), *self._shape)


Tree = dict[str, tuple[str, int, Any]]  # key -> (name of its mask, number of that, `_Column`, or the tree of a dict)


class Plan:
    """How rows of schemas of some forms become columns and masks.

    Attributes:
        fits: False where values of different kinds stand under the same key: there are no such columns then.
    """

    def __init__(self, forms: Sequence[Form]) -> None:
        self._cells = self._masks = 0
        self._tree: Tree = {}
        self._doubles = self._integers = False
        self.fits = True
        self._places: list[tuple[np.ndarray, np.ndarray]] = []  # of each form: where its cells and its masks go
        for form in forms:
            cells: list[int] = []
            masks: list[int] = []
            self._merge(self._tree, form.tree, form.kinds, cells, masks)
            self._places.append((np.array(cells, np.intp)[:, None], np.array(masks, np.intp)[:, None]))

    def _merge(self, tree: Tree, more: list[tuple[str, Any]], kinds: Kinds, cells: list[int], masks: list[int]) -> None:
        for key, value in more:
            inner = type(value) is list
            if key not in tree:
                tree[key] = f"_{key}", self._masks, {} if inner else self._column(kinds[value])
                self._masks += 1
            _, mask, there = tree[key]
            masks.append(mask)
            if inner and type(there) is dict:
                self._merge(there, value, kinds, cells, masks)
            elif not inner and type(there) is _Column and there.goes_with(kinds[value]):
                cells += there.cells
            else:
                self.fits = False

    def _column(self, kind: Any) -> _Column:
        column = _Column(self._cells, kind)
        self._cells = column.cells.stop
        self._doubles |= column.double
        self._integers |= not column.double and not column.array
        return column

    def columns(self, n: int, groups: Sequence[Group]) -> dict[str, Any]:
        """Columns [n, ...] and masks bool[n], the caller's own, of rows of the plan's forms, in their order."""
        if len(groups) == 1 and groups[0][1] == _every(n):
            cells = np.frombuffer(groups[0][2], INTEGER).reshape(n, -1).T.copy()
            masks = np.ones((self._masks, n), np.bool_)
        else:
            cells, masks = np.zeros((self._cells, n), INTEGER), np.zeros((self._masks, n), np.bool_)
            for (to_cells, to_masks), (_, slots, data) in zip(self._places, groups):
                at = np.array(slots, np.intp)
                cells[to_cells, at] = np.frombuffer(data, INTEGER).reshape(len(slots), -1).T
                masks[to_masks, at] = True
        rows = list(cells.view(DOUBLE)) if self._doubles else [], list(cells) if self._integers else []
        return _told(self._tree, cells, rows, list(masks))


def _told(tree: Tree, cells: np.ndarray, rows: tuple[list[Any], list[Any]], masks: list[np.ndarray]) -> dict[str, Any]:
    doubles, integers = rows
    out: dict[str, Any] = {}
    for key, (name, mask, there) in tree.items():
        if type(there) is dict:
            out[key] = _told(there, cells, rows, masks)
        elif there.as_it_is:
            out[key] = (doubles if there.double else integers)[there.first]
        else:
            out[key] = there.read(cells, doubles if there.double else integers)
        out[name] = masks[mask]
    return out


plan = lru_cache(256)(Plan)  # of the forms of a batch's groups, in this order


@cache
def _every(n: int) -> tuple[int, ...]:
    return tuple(range(n))


# -- how rows travel where the schemas are known ---------------------------------------------------------------------

HEAD = struct.Struct("=iii")  # number of the schema, how many slots, are they final infos?


@cache
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f"={count}i")


def raw_of(infos: Mapping[int, Any], finals: Mapping[int, Any], schemas: Mapping[int, Schema]) -> bytes | None:
    """Both as bytes; None where they hold more than rows of known schemas."""
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
    """The infos and the final infos of `raw_of`."""
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
        self._slots, self._all = slots, tuple(range(len(slots)))
        self._schemas: dict[Any, Schema | None] = {}  # None: goes by message
        self._latest: _Alike | None = None
        self._alike: dict[tuple[Any, int], _Alike] = {}  # by the keys of an info, and how many have them

    def pack(self, infos: dict[int, Any]) -> tuple[list[Group], dict[int, Any]]:
        """Rows of the infos, and those that do not fit."""
        latest = self._latest
        if latest is not None and len(infos) == latest.count:
            data = latest.pack(infos.values())
            if data is not None:
                return [(latest.schema, self._slots_of(infos), data)], {}
        by_keys = _by_keys(infos)
        groups: list[Group] = []
        rest: dict[int, Any] = {}
        for keys, some in by_keys.items():
            alike = self._alike.get((keys, len(some)))
            data = None if alike is None else alike.pack(some.values())
            if alike is not None and data is not None:
                groups.append((alike.schema, self._slots_of(some), data))
            else:
                fitting, others = self.pack_each(some)
                groups += fitting
                rest.update(others)
                alike = None if others or len(fitting) != 1 else self._remember(keys, fitting[0][0], len(some))
            if alike is not None and len(by_keys) == 1:
                self._latest = alike
        return groups, rest if len(by_keys) == 1 else dict(sorted(rest.items()))

    def _remember(self, keys: Any, schema: Schema, count: int) -> _Alike | None:
        if schema.size * count > MOST_CELLS * CELL:
            return None
        if len(self._alike) == MOST_SCHEMAS:
            self._alike.clear()
        self._alike[keys, count] = _Alike(schema, count)
        return self._alike[keys, count]

    def _slots_of(self, places: Iterable[int]) -> tuple[int, ...]:
        places = tuple(places)
        return self._slots if places == self._all else tuple([self._slots[i] for i in places])

    def pack_each(self, infos: dict[int, Any]) -> tuple[list[Group], dict[int, Any]]:
        """The same, one by one, for those that are not what the next ones will be like."""
        rest: dict[int, Any] = {}
        found: dict[int, tuple[Schema, list[int], list[bytes]]] = {}
        for i, info in infos.items():
            try:
                schema, values = self._read(info)
                row = None if schema is None else schema.struct.pack(*values)
            except Exception:  # noqa: BLE001 - an integer beyond its cell; whatever a foreign key does: pickling tells
                schema = row = None
            if schema is None or row is None:
                rest[i] = info
                continue
            _, places, rows = found.setdefault(schema.number, (schema, [], []))
            places.append(i)
            rows.append(row)
        return [(schema, self._slots_of(at), b"".join(rows)) for schema, at, rows in found.values()], rest

    def _read(self, info: Any) -> tuple[Schema | None, list[Any]]:
        """Its schema, None where it must go by message; its values, as `struct` takes them."""
        keys: list[Any] = []
        values: list[Any] = []
        kinds: list[Any] = []
        if type(info) is not dict or not _expand(info, keys, values, MOST_DEPTH):
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


def _by_keys(infos: dict[int, Any]) -> dict[Any, dict[int, Any]]:
    """Infos of the same keys together: most are alike, but those of resets have others than those of steps."""
    found: dict[Any, dict[int, Any]] = {}
    try:
        for i, info in infos.items():
            found.setdefault(tuple(info) if type(info) is dict else None, {})[i] = info
    except Exception:  # noqa: BLE001 - what a foreign key does: see `InfoPacker.pack_each`
        return {None: infos}
    return found


def _expand(info: dict[str, Any], keys: list[Any], values: list[Any], depth: int) -> bool:
    """Lay out a dict with those within it. False where they are too deep."""
    for key, value in info.items():
        keys.append(key)
        if type(value) is dict:
            if depth == 1:
                return False
            keys.append(OPEN)
            if not _expand(value, keys, values, depth - 1):
                return False
            keys.append(CLOSE)
        else:
            values.append(value)
    return True


def _fit(keys: Keys, kinds: Kinds) -> bool:
    """Are these keys and values that rows can tell?"""
    names = [key for key in keys if type(key) is str]
    if len(names) != len(kinds) + keys.count(OPEN):  # another key, be it one that looks like OPEN or CLOSE
        return False
    if any(name.startswith("_") or name == "final_obs" for name in names):
        return False
    for kind in kinds:
        if type(kind) is tuple:
            dtype = np.dtype(kind[0])
            nbytes = dtype.itemsize * int(np.prod(kind[1], dtype=np.int64))
            if dtype.kind not in ARRAY_KINDS or not 0 < nbytes <= MOST_BYTES:
                return False
        elif kind not in NUMBERS:
            return False
    return bool(kinds)


class _Alike:
    """Packs infos that are all of one schema, in one pass over their values, as long as they are."""

    def __init__(self, schema: Schema, count: int) -> None:
        self.schema, self.count = schema, count
        self._keys = list(schema.keys) * count
        self._types = [np.ndarray if type(kind) is tuple else kind for kind in schema.kinds] * count
        self._arrays = [(at, np.dtype(schema.kinds[at][0]), schema.kinds[at][1]) for at in schema.arrays]
        self._struct = struct.Struct("=" + schema.codes * count)

    def pack(self, infos: Iterable[Any]) -> bytes | None:
        """The rows; None where an info is of another schema, or of none."""
        keys: list[Any] = []
        values: list[Any] = []
        flat = self.schema.flat
        try:
            for info in infos:
                if type(info) is not dict:
                    return None
                if flat:
                    keys += info
                    values += info.values()
                elif not _expand(info, keys, values, MOST_DEPTH):
                    return None
            if keys != self._keys or list(map(type, values)) != self._types:
                return None
            every = len(self.schema.kinds)
            for first, dtype, shape in self._arrays:
                for at in range(first, len(values), every):
                    array = values[at]
                    if array.dtype != dtype or array.shape != shape:
                        return None
                    values[at] = array.tobytes()
            return self._struct.pack(*values)
        except Exception:  # noqa: BLE001 - see `InfoPacker.pack_each`, which looks at each of them
            return None
