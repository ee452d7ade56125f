"""Episodes in an HDF5 file, laid out as Minari lays them out: the only file that imports h5py.

Workers encode: arrays below `COMPRESS_FROM` bytes as they are, larger ones in gzip-1 chunks of at most 2 MB along time.
The merging process passes those bytes to the HDF5 library, which neither compresses nor converts them. It writes in one
fixed order and keeps no times, so the episodes and the library's version alone decide a file's bytes. Links are kept in
the order in which they were made: an episode that is read back has the bytes that it was encoded to.

Encoding has to keep up with stepping. A raw Pong frame has 100,800 bytes and takes 200 us of stepping. Level 1 of zlib
encodes it in 135 us. ISA-L makes smaller deflate streams in 21 us (all measured on one core). Any reader of gzip or
HDF5 reads the streams. The bytes of a stream may differ between versions of the library, and between processors. A
digest is over the arrays before compression, so it does not differ.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treadle.errors import needed
from treadle.interrupts import Closes, Later
from treadle.record.columns import Column
from treadle.record.journal import EpisodeNote, Record
from treadle.whole_file import opened

LEVEL = 1
COMPRESS_FROM = 1 << 16
CHUNK_BYTES = 2 << 20
INLINE = 1 << 15  # bytes up to which an array lies in its header
FORMS = 256  # kept at a time: each takes some 100 KB
INDEX = "episode_index"  # which episode of its run it is: Minari's own `id` counts what is in the file
_RETURNS = ("rewards_sum", "rewards_mean", "rewards_std", "rewards_max", "rewards_min")


class Blob(NamedTuple):
    """One encoded episode: the head says what its arrays are and where they lie in the data."""

    head: bytes
    data: list[Any]


@cache
def library() -> Any:
    """h5py. Raises MissingExtra."""
    # later: modules of Cython make other errors of a Ctrl-C that comes while they begin
    with needed("datasets need h5py", "data"), Later():
        import h5py
    return h5py


@cache
def deflater() -> Callable[[Any], bytes]:
    """`compress(buffer) -> bytes`: a zlib stream of level 1. Raises MissingExtra."""
    with needed("datasets are compressed by isal", "data"):
        from isal import isal_zlib
    compress = isal_zlib.compress
    return lambda data: compress(data, LEVEL)


def encode(columns: Sequence[Column]) -> Blob:
    """The blob of an episode. `columns` hold C-contiguous little-endian arrays; one of them is ("rewards",)."""
    table, data = list[Any](), list[Any]()
    returns: tuple[float, ...] = ()
    for path, array in columns:
        rows = _chunk_rows(array)
        pieces = _compressed(array, rows) if rows else [array.tobytes()]
        table.append((path, array.dtype.str, array.shape, rows, [len(piece) for piece in pieces]))
        data += pieces
        if path == ("rewards",):
            returns = _statistics(array)
    return _blob(returns, table, data)


def _blob(returns: Sequence[float], table: Sequence[Any], data: list[Any]) -> Blob:
    return Blob(json.dumps([returns, table]).encode(), data)


def _chunk_rows(array: np.ndarray) -> int:
    """Rows per chunk; 0 when the array is stored as one block."""
    if array.nbytes < COMPRESS_FROM:
        return 0
    rows = len(array)
    chunks = -(-rows // max(1, CHUNK_BYTES // (array.nbytes // rows)))
    return -(-rows // chunks)  # even chunks: the last one is stored at full size too


def _compressed(array: np.ndarray, rows: int) -> list[bytes]:
    raw = array.reshape(-1).view(np.uint8).data
    size, compress = rows * (array.nbytes // len(array)), deflater()
    chunks = (raw[at : at + size] for at in range(0, len(raw), size))
    return [compress(chunk if len(chunk) == size else bytes(chunk).ljust(size, b"\0")) for chunk in chunks]


def _statistics(rewards: np.ndarray) -> tuple[float, ...]:
    """In the order of `_RETURNS` what Minari's collector writes."""
    total = float(np.add.reduce(rewards))
    mean = total / len(rewards)
    away = rewards - mean
    spread = math.sqrt(float(np.add.reduce(away * away)) / len(rewards))
    return total, mean, spread, float(np.maximum.reduce(rewards)), float(np.minimum.reduce(rewards))


class _File(io.FileIO):
    """The file below HDF5. HDF5 does not see a failed write, which would end the process: `check` raises it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._error: tuple[Any, ...] | None = None  # what it said; the error itself would keep its frames

    def check(self) -> None:
        """Raises OSError when a write has failed."""
        if self._error is not None:
            raise OSError(*self._error)

    def write(self, data: Any) -> int:
        left = memoryview(data)
        size = len(left)
        try:
            while len(left) and self._error is None:
                left = left[super().write(left) :]
        except OSError as error:
            self._error = error.args
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            super().truncate(size)
        except OSError as error:
            self._error = self._error or error.args
        return size or 0


class _Writer:
    """Writes episodes to a file. Both files are open ones of h5py's lower interface; the one in memory is empty.

    HDF5 fills and copies a group in a quarter of the time of making one. So all episodes with arrays of the same kinds
    share one group in memory: each episode is written into the group, which is then copied.
    """

    def __init__(self, file: Any, memory: Any) -> None:
        h5 = library()
        self._h5, self._file, self._memory = h5, file, memory
        self._group_list, self._data_list = h5.h5p.create(h5.h5p.GROUP_CREATE), h5.h5p.create(h5.h5p.DATASET_CREATE)
        for each in (self._group_list, self._data_list):
            each.set_obj_track_times(False)
        self._group_list.set_attr_phase_change(32, 0)  # attributes in the group's header
        self._group_list.set_link_creation_order(h5.h5p.CRT_ORDER_TRACKED)
        self._data_list.set_fill_time(h5.h5d.FILL_TIME_NEVER)
        self._inline = self._data_list.copy()
        self._inline.set_layout(h5.h5d.COMPACT)
        self._type, self._form = cache(self._new_type), lru_cache(FORMS)(self._new_form)

    def _new_type(self, code: str) -> Any:
        h5, dtype = self._h5, np.dtype(code)
        return h5.h5t.py_create(h5.string_dtype("utf-8", dtype.itemsize) if dtype.kind == "S" else dtype, logical=True)

    def _new_form(self, seed: str, *kinds: Any) -> tuple[Any, list[tuple[Any, str]], list[Any]]:
        """A group for episodes with arrays of these kinds, its attributes with their types, and its arrays; all open.

        A kind: path, type, shape, and rows of a chunk (0: it is stored as one block).
        """
        h5, groups = self._h5, dict[tuple[str, ...], Any]()

        def group_at(path: tuple[str, ...]) -> Any:
            if path not in groups:
                above, name = (group_at(path[:-1]), path[-1].encode()) if path else (self._memory, None)
                groups[path] = h5.h5g.create(above, name, None, self._group_list)
            return groups[path]

        def array(path: tuple[str, ...], code: str, shape: tuple[int, ...], rows: int) -> Any:
            how = self._inline if math.prod(shape) * np.dtype(code).itemsize <= INLINE else self._data_list
            if rows:
                how = self._data_list.copy()
                how.set_chunk((rows, *shape[1:]))
                how.set_deflate(LEVEL)
            space, name = h5.h5s.create_simple(shape), path[-1].encode()
            return h5.h5d.create(group_at(path[:-1]), name, self._type(code), space, how)

        codes = {"id": "<i8", "seed": seed, INDEX: "<i8", "total_steps": "<i8", **dict.fromkeys(_RETURNS, "<f8")}
        create, scalar, group = h5.h5a.create, h5.h5s.create(h5.h5s.SCALAR), group_at(())
        attributes = [(create(group, name.encode(), self._type(c), scalar), c) for name, c in codes.items()]
        arrays = [array(*kind) for kind in kinds]
        group_at(("infos",))  # which may be empty
        return group, attributes, arrays

    def add(self, number: int, record: Record) -> None:
        """Write an episode."""
        head, data = record.sections
        note, (returns, table) = record.note, json.loads(bytes(head))
        kinds = [(tuple(path), code, tuple(shape), rows) for path, code, shape, rows, _ in table]
        # Minari's own writer makes large seeds unsigned
        group, attributes, arrays = self._form("<u8" if note.seed >= 2**63 else "<i8", *kinds)
        values = (number, note.seed, note.index, note.length, *returns)
        for value, (attribute, code) in zip(values, attributes, strict=True):
            attribute.write(np.array(value, code), self._type(code))
        every, compressed = self._h5.h5s.ALL, list[tuple[tuple[str, ...], tuple[int, ...], list[int], memoryview]]()
        for (path, code, shape, rows), array, (*_, sizes) in zip(kinds, arrays, table, strict=True):
            part, data = data[: sum(sizes)], data[sum(sizes) :]
            if rows:
                compressed.append((path, (rows, *[0] * (len(shape) - 1)), sizes, part))
            elif len(part):
                array.write(every, every, np.frombuffer(part, code).reshape(shape), self._type(code))
        self._h5.h5o.copy(group, b".", self._file, f"episode_{number}".encode())
        for path, (rows, *rest), sizes, part in compressed:
            array = self._h5.h5d.open(self._file, "/".join((f"episode_{number}", *path)).encode())
            for i, size in enumerate(sizes):
                array.write_direct_chunk((i * rows, *rest), bytes(part[:size]), 0)
                part = part[size:]


def assemble(path: Path, records: Iterable[Record]) -> int:
    """Write a file whose groups `episode_0`, `episode_1`, ... are the episodes in this order; its size in bytes."""
    h5 = library()
    made, access = h5.h5p.create(h5.h5p.FILE_CREATE), h5.h5p.create(h5.h5p.FILE_ACCESS)
    made.set_obj_track_times(False)
    access.set_libver_bounds(h5.h5f.LIBVER_V18, h5.h5f.LIBVER_V110)  # headers with checksums, readable since 1.8
    access.set_fclose_degree(h5.h5f.CLOSE_STRONG)
    create, name, below = h5.h5f.create, os.fsencode(path), _File(path)
    try:
        access.set_fapl_core(1 << 20, False)
        with closing(create(name + b".forms", h5.h5f.ACC_TRUNC, made, access)) as memory:  # which is on no disk
            access.set_fileobj_driver(h5.h5fd.fileobj_driver, below)
            with closing(create(name, h5.h5f.ACC_TRUNC, made, access)) as file:
                writer = _Writer(file, memory)
                for number, record in enumerate(records):
                    writer.add(number, record)
                    below.check()
        below.check()
    finally:
        below.close()
    return path.stat().st_size


class Reader(Closes):
    """Reads a file that `assemble` has written, which may be damaged. A context manager.

    Raises:
        ValueError: when it is not an HDF5 file, or lacks some of the `episodes`.
        OSError: when it is not there or may not be read.
    """

    def __init__(self, path: Path, episodes: int) -> None:
        opened(path).close()  # its errors say more than the library's
        self._path = path
        try:
            self._file = library().File(path, "r", locking=False)
            found = len(self._file)
        except (OSError, RuntimeError, KeyError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        if found != episodes:
            self._file.close()
            raise ValueError(f"{path} has {found:,} episodes where {episodes:,} are to be")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def blob(self, number: int, note: EpisodeNote) -> Blob | None:
        """The blob of an episode; None: it cannot be read. Raises ValueError when there is another one."""
        try:
            group = library().h5g.open(self._file.id, f"episode_{number}".encode())
            about = [_attribute(group, name) for name in ("id", "seed", INDEX, *_RETURNS)]
            table, data = list[Any](), list[Any]()
            for path, array in _arrays(group, ()):
                rows, pieces = _stored(array)
                table.append((path, array.dtype.str, array.shape, rows, [len(piece) for piece in pieces]))
                data += pieces
            blob = _blob(about[3:], table, data)
        except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, MemoryError):
            return None
        if about[:3] != [number, note.seed, note.index]:
            raise ValueError(f"{self._path} has another episode than {note.index} where that is to be")
        return blob


# h5py's lower interface reads an episode of few arrays in a third of the time of the upper one


def _attribute(group: Any, name: str) -> Any:
    attribute = library().h5a.open(group, name.encode())
    attribute.read(found := np.empty((), attribute.dtype))
    return found.item()


def _arrays(group: Any, above: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], Any]]:
    """The arrays below a group, in the order in which they were written."""
    h5, names = library(), list[bytes]()
    group.links.iterate(names.append, idx_type=h5.h5.INDEX_CRT_ORDER)
    for name in names:
        found, path = h5.h5o.open(group, name), (*above, name.decode())
        if isinstance(found, h5.h5g.GroupID):
            yield from _arrays(found, path)
        else:
            yield path, found


def _whole(array: Any) -> np.ndarray:
    found = np.empty(array.shape, array.dtype)
    if found.size:
        every = library().h5s.ALL
        array.read(every, every, found)
    return found


def _stored(array: Any) -> tuple[int, list[bytes]]:
    """Rows of a chunk, and the chunks as they are stored; 0, and the array in one piece."""
    how, h5d = array.get_create_plist(), library().h5d
    if how.get_layout() != h5d.CHUNKED:
        return 0, [_whole(array).tobytes()]
    (rows, *_), chunks = how.get_chunk(), list[bytes]()
    for at in range(0, array.shape[0], rows):
        left_out, chunk = array.read_direct_chunk((at, *[0] * (array.rank - 1)))
        if left_out:
            raise ValueError("a chunk is not compressed")
        chunks.append(bytes(chunk))
    return rows, chunks


def arrays_of(path: Path, number: int) -> dict[str, np.ndarray]:
    """Return the stored arrays of one episode of a file, by path. Raises ValueError if it is not an HDF5 file."""
    opened(path).close()
    with library().File(path, "r") as file:
        return {"/".join(name): _whole(array) for name, array in _arrays(file[f"episode_{number}"].id, ())}
