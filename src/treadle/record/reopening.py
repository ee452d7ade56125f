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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.record import hdf5_format
from treadle.record.columns import Column, digester
from treadle.record.hdf5 import ID_OFFSET, SEED_OFFSET, moved
from treadle.record.journal import FORMAT_SIZE, Journal, Record, file_head, packed, read
from treadle.record.npz import NpzEncoder, rows_of
from treadle.record.parts import Format

KEPT = ".episodes"
_SIZES = struct.Struct("<QQ")


def keep(path: Path, format: Format, records: Sequence[Record]) -> None:
    """Write down what a dataset of these records, in this order, does not hold. Raises OSError with the path."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb", buffering=1 << 20) as file:
            file.write(file_head("kept"))
            for record in records:
                moves, head, data = record.sections
                # of an .npz file the head says which arrays the episode has
                known = _SIZES.pack(len(head), len(data)) + (bytes(head) if format == "npz" else b"")
                file.writelines(packed(record.note, bytes(moves), known, (), record.extra))
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


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
    arrays, digest, encoder = _mapped(path), digester(), NpzEncoder()
    starts: dict[str, int] = dict.fromkeys(arrays, 0)
    for record in records:
        table = json.loads(bytes(record.sections[1][_SIZES.size :]))
        columns = []
        rows = {name: rows_of(name, record.note.length) for name in arrays}
        for name, dtype, shape, _, _ in table:
            stored = arrays[name][starts[name] : starts[name] + rows[name]]
            columns.append(Column(tuple(name.split("/")), _as_it_was(stored, np.dtype(dtype), tuple(shape))))
        for name, count in rows.items():
            starts[name] += count
        same = digest(columns).hex() == record.note.digest
        yield encoder.encode(columns, record.note.seed, record.note.index) if same else None


def _as_it_was(stored: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An episode's rows with their own dtype: the file has texts of all episodes in one width, and what differs from
    episode to episode as JSON."""
    if stored.dtype.kind == "S" and dtype.kind != "S":
        return np.array([json.loads(text) for text in stored.tolist()], dtype).reshape(shape)
    return np.ascontiguousarray(stored).astype(dtype).reshape(shape)


def _mapped(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an uncompressed `.npz` file, read where they are used."""
    readers: dict[tuple[int, int], Callable[[Any], Any]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    found = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                shape, _, dtype = readers[np.lib.format.read_magic(file)](file)
                head = file.tell()
            with open(path, "rb") as raw:
                raw.seek(member.header_offset + 26)
                names = sum(struct.unpack("<HH", raw.read(4)))
            at = member.header_offset + 30 + names + head
            nbytes = int(np.prod(shape)) * dtype.itemsize
            array = np.memmap(path, dtype, "r", at, shape) if nbytes else np.zeros(shape, dtype)
            found[member.filename.removesuffix(".npy")] = array
    return found
