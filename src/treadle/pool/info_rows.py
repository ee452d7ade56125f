"""Infos as rows of numbers: what a batch's info dicts become on their way from a worker to its caller.

Most environments give the same few numbers in every step's info, and to pickle and unpickle them costs more than the
steps of a small environment. So a worker that meets a dict of numbers (`Schema`: its keys and the type of each value)
writes nothing but the values from then on, one after the other, behind the slot's number. The schema itself travels
once. The caller reads all slots' values of a key as one array (`records`), or any slot's dict as it was
(`InfoRows` is a mapping): the same keys in the same order, values of the same types, a dict of one's own.

What is a number is decided by the exact type: Python's and NumPy's numbers and Python's bools, small arrays of them,
and dicts of all these. A subclass (an IntEnum), an integer beyond 64 bits, np.bool_ (an object column in Gymnasium),
text, None and everything else leave the whole info to the message. So does a key that begins with an underscore, which
may be the mask of another one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

SLOT = "="  # no padding: numpy's packed records, byte for byte
MOST_BYTES = 1024  # of an array: a larger one is better sent as it is
MOST_DEPTH = 16  # of dicts within dicts: a schema needs more of the stack than the dict that it describes
MOST_SCHEMAS = 64  # of a worker; an environment that makes up its keys is not worth remembering

# type of a value -> how `struct` writes it
NUMBERS: dict[type, str] = {int: "q", float: "d", bool: "?", np.int64: "q", np.uint64: "Q"}
NUMBERS |= {np.dtype(code).type: code for code in "bhiBHIefd"}  # "q" and "Q" of NumPy are other types than int64
PLAIN = (int, float, bool)  # what `struct` reads as it was
ARRAY_KINDS = "biufc"

# key -> a number's type, (dtype, shape) of an array, or a dict's own Structure as a list
Structure = tuple[tuple[str, Any], ...]


class Schema:
    """The keys of an info, in order, and what stands under each.

    Args:
        number: the worker's name for it.
        structure: of the info.
    """

    def __init__(self, number: int, structure: Structure) -> None:
        self.number, self.structure, self.key = number, structure, _hashable(structure)
        self.leaves: list[Any] = list(_leaves(structure))
        self.flat = all(isinstance(kind, type) for _, kind in structure)
        self.struct = struct.Struct(SLOT + "i" + "".join(_code(leaf) for leaf in self.leaves))
        self.size = self.struct.size

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (self.number, self.structure)

    @cached_property
    def dtype(self) -> np.dtype:
        """Of a record: the slot, then a field "0", "1", ... for each leaf."""
        fields = [(str(at), *_field(leaf)) for at, leaf in enumerate(self.leaves)]
        return np.dtype([("slot", "=i4"), *fields])

    def write(self, buffer: Any, at: int, slot: int, info: dict[str, Any]) -> None:
        """Raises struct.error for an integer that 64 bits cannot hold."""
        values = info.values() if self.flat else _values(info)
        self.struct.pack_into(buffer, at, slot, *values)

    def read(self, record: Any) -> dict[str, Any]:
        """The info of a record, as it was."""
        _, *values = self.struct.unpack(record)
        return _dict_of(self.structure, iter(values))


def _leaves(structure: Structure) -> Iterator[Any]:
    for _, kind in structure:
        if isinstance(kind, list):
            yield from _leaves(tuple(kind))
        else:
            yield kind


def _code(leaf: Any) -> str:
    return NUMBERS[leaf] if isinstance(leaf, type) else f"{_nbytes(leaf)}s"


def _nbytes(leaf: tuple[str, tuple[int, ...]]) -> int:
    return np.dtype(leaf[0]).itemsize * int(np.prod(leaf[1], dtype=np.int64))


def _field(leaf: Any) -> tuple[Any, ...]:
    return (np.dtype(leaf),) if isinstance(leaf, type) else leaf


def _values(info: dict[str, Any]) -> Iterator[Any]:
    for value in info.values():
        kind = type(value)
        if kind is dict:
            yield from _values(value)
        else:
            yield value.tobytes() if kind is np.ndarray else value


def _dict_of(structure: Structure, values: Iterator[Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, kind in structure:
        if isinstance(kind, list):
            out[key] = _dict_of(tuple(kind), values)
        elif isinstance(kind, tuple):
            out[key] = np.frombuffer(next(values), kind[0]).reshape(kind[1]).copy()
        else:
            value = next(values)
            out[key] = value if kind in PLAIN else kind(value)
    return out


def structure_of(info: Any, depth: int = MOST_DEPTH) -> Structure | None:
    """What stands under each key; None where an info must go by message."""
    if type(info) is not dict or not depth:
        return None
    found: list[tuple[str, Any]] = []
    for key, value in info.items():
        if type(key) is not str or key.startswith("_") or key == "final_obs":
            return None
        kind: Any = type(value)
        if kind is dict:
            inner = structure_of(value, depth - 1)
            if inner is None:
                return None
            kind = list(inner)
        elif kind is np.ndarray:
            if value.dtype.kind not in ARRAY_KINDS or not value.nbytes or value.nbytes > MOST_BYTES:
                return None
            kind = (value.dtype.str, value.shape)
        elif kind not in NUMBERS:
            return None
        found.append((key, kind))
    return tuple(found)


class InfoRows(Mapping[int, Any]):
    """Infos of some slots, in slot order: a mapping from a slot to its info, read only when it is asked for.

    Args:
        groups: (schema, its records one after the other).
        rest: slot -> info, of those that went by message.
    """

    def __init__(self, groups: list[tuple[Schema, bytes]], rest: dict[int, Any] | None = None) -> None:
        self.groups, self.rest = groups, {} if rest is None else rest

    def records(self) -> list[tuple[Schema, np.ndarray]]:
        """Of each schema, the records: a structured array with the fields of `Schema.dtype`, in no order."""
        return [(schema, np.frombuffer(data, schema.dtype)) for schema, data in self.groups]

    @cached_property
    def _places(self) -> dict[int, tuple[Schema, int, bytes] | None]:
        places: dict[int, Any] = dict.fromkeys(self.rest)
        for (schema, data), (_, records) in zip(self.groups, self.records(), strict=True):
            for at, slot in enumerate(records["slot"].tolist()):
                places[slot] = schema, at * schema.size, data
        return dict(sorted(places.items()))

    def __getitem__(self, slot: int) -> Any:
        place = self._places[slot]
        if place is None:
            return self.rest[slot]
        schema, at, data = place
        return schema.read(data[at : at + schema.size])

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self.rest) + sum(len(data) // schema.size for schema, data in self.groups)

    def __bool__(self) -> bool:
        return bool(self.groups or self.rest)

    def __contains__(self, slot: object) -> bool:
        return slot in self._places

    def __reduce__(self) -> tuple[Any, ...]:
        return InfoRows, (self.groups, self.rest)

    # -- without pickle, for those who know the schemas ----------------------------------------------------------------

    def raw(self) -> bytes:
        """What `from_raw` reads where the schemas are known. Without the rest."""
        return b"".join(part for schema, data in self.groups for part in (HEAD.pack(schema.number, len(data)), data))

    @classmethod
    def from_raw(cls, data: bytes, schemas: Mapping[int, Schema]) -> InfoRows:
        """The other way round."""
        groups, at = [], 0
        while at < len(data):
            number, size = HEAD.unpack_from(data, at)
            at += HEAD.size
            groups.append((schemas[number], data[at : at + size]))
            at += size
        return cls(groups)


def joined(parts: Iterable[Mapping[int, Any]]) -> Mapping[int, Any]:
    """The infos of several workers as one mapping in slot order; of two for one slot the later one counts."""
    parts = [part for part in parts if part]
    if any(type(part) is InfoRows for part in parts):
        groups: dict[Any, tuple[Schema, list[bytes]]] = {}
        rest: dict[int, Any] = {}
        for part in parts:
            if type(part) is InfoRows:
                rest.update(part.rest)
                for schema, data in part.groups:
                    groups.setdefault(schema.key, (schema, []))[1].append(data)
            else:
                rest.update(part)
        found = InfoRows([(schema, b"".join(data)) for schema, data in groups.values()], rest)
        if not rest or len(found) == len(found._places):
            return found
        # a note about a slot stands in for what the slot has said itself
    return dict(sorted({slot: info for part in parts for slot, info in part.items()}.items()))


HEAD = struct.Struct("=ii")  # number of the schema, bytes of its records


def _hashable(structure: Structure) -> Any:
    return tuple((key, tuple(_hashable(tuple(kind))) if isinstance(kind, list) else kind) for key, kind in structure)


class InfoPacker:
    """A worker's half: makes rows of its slots' infos, and remembers the schemas that it has met."""

    def __init__(self) -> None:
        self._schemas: dict[Any, Schema] = {}
        self._flat: dict[tuple[Any, Any], Schema] = {}  # (keys, types of values), of flat ones

    def pack(self, infos: dict[int, Any], first: int) -> tuple[list[tuple[Schema, bytes]], dict[int, Any]]:
        """Rows of the infos, as `InfoRows` takes them, and those that do not fit. `first`: added to slots in rows."""
        rest: dict[int, Any] = {}
        groups: dict[int, list[Any]] = {}
        schema_of, flat = self._schema_of, self._flat
        for slot, info in infos.items():
            try:
                schema = flat.get((tuple(info), tuple(map(type, info.values()))))
                if schema is None or type(info) is not dict:
                    schema = schema_of(info)
            except Exception:  # noqa: BLE001 - whatever a foreign mapping does: pickling will tell
                schema = None
            if schema is None:
                rest[slot] = info
                continue
            group = groups.get(schema.number)
            if group is None:
                room = schema.size * len(infos)
                group = groups[schema.number] = [schema, bytearray(room), 0]
            try:
                schema.write(group[1], group[2], first + slot, info)
                group[2] += schema.size
            except struct.error:
                rest[slot] = info
        return [(schema, bytes(memoryview(buffer)[:size])) for schema, buffer, size in groups.values() if size], rest

    def _schema_of(self, info: Any) -> Schema | None:
        structure = structure_of(info)
        if structure is None:
            return None
        key = _hashable(structure)
        schema = self._schemas.get(key)
        if schema is None:
            if len(self._schemas) == MOST_SCHEMAS:
                return None
            schema = self._schemas[key] = Schema(len(self._schemas), structure)
            if schema.flat:
                self._flat[tuple(info), tuple(map(type, info.values()))] = schema
        return schema


__all__ = ["InfoPacker", "InfoRows", "Schema", "joined", "structure_of"]
