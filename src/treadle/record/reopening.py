"""A finished dataset back into parts, so that a complete run can go on.

When a run is complete its parts are removed, and the dataset holds every byte of them; what it does not hold is small:
of each episode the note, and where its numbers and addresses lie. That is kept beside it, in `DIR/.episodes`, a journal
whose records have no data. Taking an HDF5 file apart with it undoes what `hdf5.assemble` did and reads nothing else, so
nothing is compressed again, and the parts are the very bytes that they were. What cannot be had back is made again.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from treadle.record import hdf5_format
from treadle.record.columns import Column, digester
from treadle.record.hdf5 import ID_OFFSET, SEED_OFFSET, moved
from treadle.record.journal import FILE_HEAD, FORMAT_SIZE, Journal, Record, packed, read
from treadle.record.npz import PER_EPISODE, NpzEncoder, rows_of
from treadle.record.parts import Format
from treadle.whole_file import written

KEPT = ".episodes"
_SIZES = struct.Struct("<QQ")


def keep(path: Path, format: Format, records: Sequence[Record]) -> None:
    """Write down what a dataset of these records, in this order, does not hold. Raises OSError with the path."""
    with written(path) as file:
        file.write(FILE_HEAD["kept"])
        for record in records:
            moves, head, data = record.sections
            # of an .npz file the head says which arrays the episode has
            known = _SIZES.pack(len(head), len(data)) + (bytes(head) if format == "npz" else b"")
            file.writelines(packed(record.note, bytes(moves), known, (), record.extra))


def reopen(kept: Path, data: Path, format: Format, parts: Path) -> None:
    """Make the parts, in the empty directory `parts`, of the dataset whose data file is `data`.

    Raises:
        ValueError: when `kept` is damaged, or is not about this file.
        OSError: when something cannot be read or written.
    """
    try:
        records = list(read(kept, "kept"))
        if os.path.getsize(kept) != sum(map(_size, records)) + FORMAT_SIZE:
            raise ValueError(f"{kept} is cut short")
        blobs = _hdf5(records, data) if format == "hdf5" else _npz(records, data)
        journal = Journal(parts, 0, format)
        try:
            for record, blob in zip(records, blobs, strict=True):
                if blob is not None:
                    journal.append(record.note, *blob, record.extra)
        finally:
            journal.close()
    except (KeyError, IndexError, TypeError, struct.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{kept} does not fit {data}: {error}") from error


def _size(record: Record) -> int:
    return record.end - record.begin


def _hdf5(records: Sequence[Record], path: Path) -> Iterator[tuple[bytes, bytes, list[Any]]]:
    sizes = [_SIZES.unpack(record.sections[1]) for record in records]
    with open(path, "rb") as file:
        buffer = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    at = hdf5_format.SUPERBLOCK_SIZE
    if at + sum(map(sum, sizes)) > len(buffer):
        raise ValueError(f"{path} is shorter than its episodes")
    for number, (record, (head, data)) in enumerate(zip(records, sizes, strict=True)):
        moves = bytes(record.sections[0])
        found = struct.unpack_from("<Q", buffer, at + ID_OFFSET) + struct.unpack_from("<Q", buffer, at + SEED_OFFSET)
        if found != (number, record.note.seed):
            raise ValueError(f"{path} has another episode than {record.note.index} where that is to be")
        yield moves, bytes(moved(buffer[at : at + head], moves, -at, 0)), [buffer[at + head : at + head + data]]
        at += head + data


def _npz(records: Sequence[Record], path: Path) -> Iterator[tuple[bytes, bytes, list[Any]] | None]:
    digest, encoder = digester(), NpzEncoder()
    with zipfile.ZipFile(path) as archive, ExitStack() as stack:
        names = [name for name in (each.removesuffix(".npy") for each in archive.namelist()) if name not in PER_EPISODE]
        arrays = {name: _Rows(stack.enter_context(archive.open(f"{name}.npy"))) for name in names}
        for record in records:
            table = json.loads(bytes(record.sections[1][_SIZES.size :]))
            stored = {name: rows.next(rows_of(name, record.note.length)) for name, rows in arrays.items()}
            columns = [
                Column(tuple(name.split("/")), _as_it_was(stored[name], np.dtype(dtype), tuple(shape)))
                for name, dtype, shape, _, _ in table
            ]
            same = digest(columns).hex() == record.note.digest
            yield encoder.encode(columns, record.note.seed, record.note.index) if same else None


class _Rows:
    """The rows of an array in an `.npz` file, one after the other."""

    def __init__(self, file: Any) -> None:
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, self._dtype = header[np.lib.format.read_magic(file)](file)
        self._file, self._shape = file, shape[1:]

    def next(self, count: int) -> np.ndarray:
        nbytes = count * self._dtype.itemsize * int(np.prod(self._shape))
        return np.frombuffer(self._file.read(nbytes), self._dtype).reshape(count, *self._shape)


def _as_it_was(stored: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An episode's rows with their own dtype: the file has texts of all episodes in one width, and what differs from
    episode to episode as JSON."""
    if stored.dtype.kind == "S" and dtype.kind != "S":
        return np.array([json.loads(text) for text in stored.tolist()], dtype).reshape(shape)
    return np.ascontiguousarray(stored).astype(dtype).reshape(shape)
