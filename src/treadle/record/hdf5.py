"""An episode as a piece of an HDF5 file, laid out as Minari lays it out, and a file made of such pieces.

A **blob** is one episode's group with everything below it: object headers first, raw data after. Its addresses count
from its own start, and a list says where they are; putting it into a file means adding the file position to them and
copying. So workers encode (and compress) everything, once, and whoever merges copies at near the speed of the disk.

Columns below `COMPRESS_FROM` bytes lie in one uncompressed block; larger ones in gzip-1 chunks of at most 2 MB along
time. Most small episodes of a run differ only in length and data, so the headers are prepared once per structure.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treadle.record import hdf5_format as form
from treadle.record.columns import Column, kind_of
from treadle.record.packing import LEVEL, deflater

COMPRESS_FROM = 1 << 16
CHUNK_BYTES = 2 << 20
# The id is the first attribute of the first object, so that merging can set it without reading anything else.
ID_OFFSET = 64
SEED_OFFSET = ID_OFFSET + len(form.attribute("seed", form.datatype(np.dtype("<i8")), bytes(8)))
INDEX = "episode_index"

_U64 = struct.Struct("<Q")
_PREPARED_MAX = 256
_RETURNS = ("rewards_sum", "rewards_mean", "rewards_std", "rewards_max", "rewards_min")


class Blob(NamedTuple):
    """One encoded episode: where addresses lie in `head` (u32 offsets as bytes), the head, and the raw data."""

    moves: bytes
    head: bytes
    data: list[Any]


@dataclass
class _Slot:
    """Where in the prepared bytes one column's numbers go: its rows, its address, and unless chunked its size."""

    numbers: tuple[int, ...]
    chunk_rows: int = 0  # 0 for a contiguous column
    chunks: int = 0
    tree: int = 0  # where the chunk index lies, of a chunked column


@dataclass
class _Prepared:
    """The headers of one structure, complete but for lengths, addresses and attribute values: numbers of 8 bytes."""

    head: bytearray = field(default_factory=bytearray)
    moves: list[int] = field(default_factory=list)
    slots: list[_Slot] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    packed_moves: bytes = b""
    _pieces: list[Any] = field(init=False)
    _struct: struct.Struct = field(init=False)
    _sorted: Callable[[list[Any]], tuple[Any, ...]] = field(init=False)

    def finish(self) -> None:
        """All is laid out: cut the bytes at the numbers, so that one `pack` makes the head of an episode.

        The order in which `fill` takes the numbers: seed, index, total_steps, the statistics, then column by column.
        """
        numbers = [(self.values[name], "Q") for name in ("seed", INDEX, "total_steps")]
        numbers += [(self.values[name], "d") for name in _RETURNS]
        numbers += [(at, "Q") for slot in self.slots for at in slot.numbers]
        order = sorted(range(len(numbers)), key=lambda i: numbers[i][0])
        layout, end = "<", 0
        self._pieces = []
        for at, code in (numbers[i] for i in order):
            layout += f"{at - end}s{code}"
            self._pieces += [bytes(self.head[end:at]), 0]
            end = at + 8
        self._pieces.append(bytes(self.head[end:]))
        self._struct = struct.Struct(f"{layout}{len(self.head) - end}s")
        self._sorted = itemgetter(*order)
        self.packed_moves = np.array(self.moves, "<u4").tobytes()

    def fill(self, numbers: list[Any]) -> bytes:
        """The head with these numbers in it."""
        pieces = self._pieces.copy()
        pieces[1::2] = self._sorted(numbers)
        return self._struct.pack(*pieces)


class Hdf5Encoder:
    """Turns episodes into blobs."""

    def __init__(self) -> None:
        self._prepared: dict[tuple, _Prepared] = {}

    def encode(self, columns: Sequence[Column], seed: int, index: int) -> Blob:
        """The blob of an episode. `columns` hold C-contiguous little-endian arrays; one of them is ("rewards",).

        `index`: which episode of its run it is; stored as the attribute `INDEX`, because Minari's own `id` counts what
        is in the file.
        """
        key: Any = kind_of(columns)
        if sum([array.nbytes for _, array in columns]) >= COMPRESS_FROM:  # else none of them is compressed
            key = (key, *[_chunking(array) for _, array in columns])
        key = (seed >= 2**63, key)  # Minari's own writer makes such seeds unsigned, all others signed
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= _PREPARED_MAX:
                self._prepared.clear()
            prepared = self._prepared[key] = self._prepare(columns, seed)
        data, moves, end = list[Any](), prepared.packed_moves, len(prepared.head)
        numbers = list[Any]()
        trees = list[tuple[int, bytes]]()
        for (path, array), slot in zip(columns, prepared.slots):
            if slot.chunks:
                pieces, root, tree, more_moves = _compress(array, slot, end)
                data += pieces
                end += sum(map(len, pieces))
                moves += more_moves
                trees.append((slot.tree, tree))
                numbers += (len(array), root)
            else:
                raw = array.tobytes()
                size = len(raw)
                numbers += (len(array), end if size else form.UNDEFINED, size)
                data.append(raw)
                end += size
                if size % 8:
                    data.append(bytes(-size % 8))
                    end += -size % 8
            if path == ("rewards",):
                statistics = _statistics(array)
        head = prepared.fill([seed, index, *statistics, *numbers])
        if trees:
            patched = bytearray(head)
            for at, tree in trees:
                patched[at : at + len(tree)] = tree
            head = bytes(patched)
        return Blob(moves, head, data)

    def _prepare(self, columns: Sequence[Column], seed: int) -> _Prepared:
        prepared = _Prepared()
        tree: dict[str, Any] = {"infos": {}}
        for column in columns:
            node = tree
            for name in column.path[:-1]:
                node = node.setdefault(name, {})
            node[column.path[-1]] = column
        slots: dict[tuple[str, ...], _Slot] = {}
        kinds = {"id": "<i8", "seed": "<u8" if seed >= 2**63 else "<i8", INDEX: "<i8", "total_steps": "<i8"}
        self._add_group(prepared, tree, slots, kinds | dict.fromkeys(_RETURNS, "<f8"))
        prepared.slots = [slots[column.path] for column in columns]
        for column, slot in zip(columns, prepared.slots):
            if slot.chunks:
                slot.tree = len(prepared.head)
                prepared.head += bytes(
                    sum(form.chunk_tree_levels(slot.chunks)) * form.chunk_node_size(column.array.ndim)
                )
        prepared.finish()
        return prepared

    def _add_group(
        self, prepared: _Prepared, tree: dict[str, Any], slots: dict, attributes: Mapping[str, str] | None = None
    ) -> int:
        """Append a group, then its members; its address. `attributes`: name -> kind of number."""
        head, start = prepared.head, len(prepared.head)
        messages, links = list[bytes](), list[tuple[int, Any]]()
        at = start + 16
        for name, kind in (attributes or {}).items():
            messages.append(form.attribute(name, form.datatype(np.dtype(kind)), bytes(8)))
            at += len(messages[-1])
            prepared.values[name] = at - 8
        for part in form.group_messages():
            messages.append(part)
            at += len(part)
        for name, child in tree.items():
            part, offset = form.link(name)
            links.append((at + offset, child))
            messages.append(part)
            at += len(part)
        head += form.object_header(messages)
        for where, child in links:
            inner = (
                self._add_group(prepared, child, slots)
                if isinstance(child, dict)
                else _add_data(prepared, child, slots)
            )
            _U64.pack_into(head, where, inner)
            prepared.moves.append(where)
        return start


def _add_data(prepared: _Prepared, column: Column, slots: dict) -> int:
    """Append the object header of one array; its address."""
    start, array = len(prepared.head), column.array
    chunk_rows, chunks = _chunking(array)
    space = form.message(form.DATASPACE, form.dataspace(array.shape))
    kind = form.message(form.DATATYPE, form.datatype(array.dtype), constant=True)
    before = start + 16 + len(space) + len(kind) + len(form.fill_value())
    if chunks:
        layout = form.chunked_layout((chunk_rows, *array.shape[1:]), array.itemsize)
        filters = [form.gzip_filter(LEVEL)]
        slot = _Slot((start + 32, before + 11), chunk_rows, chunks)
    else:
        layout, filters = form.contiguous_layout(), []
        slot = _Slot((start + 32, before + 10, before + 18))
    prepared.head += form.object_header([space, kind, form.fill_value(), layout, *filters])
    if array.nbytes:
        prepared.moves.append(slot.numbers[1])
    slots[column.path] = slot
    return start


def _chunking(array: np.ndarray) -> tuple[int, int]:
    """Rows per chunk and number of chunks; (0, 0) when the array is stored as one block."""
    if array.nbytes < COMPRESS_FROM:
        return 0, 0
    rows = len(array)
    chunks = -(-rows // max(1, CHUNK_BYTES // (array.nbytes // rows)))
    per_chunk = -(-rows // chunks)  # even chunks: the last one is stored at full size too
    return per_chunk, -(-rows // per_chunk)


def _compress(array: np.ndarray, slot: _Slot, start: int) -> tuple[list[bytes], int, bytes, bytes]:
    """Compress the chunks that will lie from `start` on; the pieces, the index's root, the index, and its moves."""
    raw = array.reshape(-1).view(np.uint8).data
    size = slot.chunk_rows * (array.nbytes // len(array))
    pieces, addresses, sizes = list[bytes](), list[int](), list[int]()
    compress = deflater()
    for i in range(slot.chunks):
        chunk = raw[i * size : (i + 1) * size]
        packed = compress(chunk if len(chunk) == size else bytes(chunk).ljust(size, b"\0"))
        addresses.append(start)
        sizes.append(len(packed))
        pieces.append(form.pad8(packed))
        start += len(pieces[-1])
    tree, root, moves = form.chunk_tree(slot.tree, array.ndim, slot.chunk_rows, addresses, sizes)
    return pieces, root, tree, (np.array(moves, "<u4") + slot.tree).astype("<u4").tobytes()


def _statistics(rewards: np.ndarray) -> tuple[float, ...]:
    """total_steps, and in the order of `_RETURNS` what Minari's collector writes."""
    steps = len(rewards)
    total = float(np.add.reduce(rewards))
    mean = total / steps
    away = rewards - mean
    spread = math.sqrt(float(np.add.reduce(away * away)) / steps)
    return steps, total, mean, spread, float(np.maximum.reduce(rewards)), float(np.minimum.reduce(rewards))


def moved(head: Any, moves: Any, by: int, number: int) -> bytearray:
    """A blob's head with `by` added to its addresses, and `number` as its id."""
    head, unpack_from, pack_into = bytearray(head), _U64.unpack_from, _U64.pack_into
    for at in np.frombuffer(moves, "<u4").tolist():
        pack_into(head, at, unpack_from(head, at)[0] + by)
    pack_into(head, ID_OFFSET, number)
    return head


def assemble(path: Path, blobs: Iterable[tuple[Any, Any, Any]]) -> int:
    """Write a file whose groups `episode_0`, `episode_1`, ... are the blobs in this order.

    Args:
        path: the file to make.
        blobs: of each episode the moves, the head and the data, as buffers.

    Returns:
        The size of the file in bytes.
    """
    names, addresses, end = list[bytes](), list[int](), form.SUPERBLOCK_SIZE
    with open(path, "wb", buffering=1 << 20) as file:
        file.write(bytes(form.SUPERBLOCK_SIZE))
        for number, (moves, head, data) in enumerate(blobs):
            file.write(moved(head, moves, end, number))
            file.write(data)
            names.append(b"episode_%d" % number)
            addresses.append(end)
            end += len(head) + len(data)
        root, header, tree, heap = form.root_group(end, names, addresses)
        file.write(root)
        end += len(root)
        file.seek(0)
        file.write(form.superblock(end, header, tree, heap))
    return end
