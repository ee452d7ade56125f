"""Episodes as one `.npz` file: every array of the run concatenated along time.

Members: the arrays under their paths joined by "/" (`observations`, `observations/image`, `actions`, `rewards`,
`terminations`, `truncations`, `infos/...`; text as UTF-8 bytes), and, with one entry per episode, `episode_indices`,
`seeds`, `lengths`, `returns`, `episode_starts` (the first row in arrays of T rows an episode) and
`observation_starts` (the same for observations and infos, which have T + 1 rows). An info whose dtype or shape is not
the same in all episodes becomes JSON text, one row per step, empty where it is missing.

Members are stored without compression and written one after the other, so a run larger than memory can be merged.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.record.columns import POLICY_INFOS, Column
from treadle.record.hdf5 import Blob
from treadle.record.journal import EpisodeNote, Record
from treadle.record.packing import deflater

_COMPRESS_FROM = 1 << 16
PER_EPISODE = ("episode_indices", "seeds", "lengths", "returns", "episode_starts", "observation_starts")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same bytes whenever the file is written


class NpzEncoder:
    """Turns episodes into raw arrays, the large ones compressed while they wait to be merged."""

    def encode(self, columns: Sequence[Column], seed: int, index: int) -> Blob:
        """The blob of an episode: its head is JSON that says what lies where in the data."""
        table, pieces = list[list[Any]](), list[bytes]()
        for path, array in columns:
            raw = array.tobytes()
            packed = deflater()(raw) if len(raw) >= _COMPRESS_FROM else raw
            table.append(["/".join(path), array.dtype.str, array.shape, len(packed), packed is not raw])
            pieces.append(packed)
        return Blob(b"", json.dumps(table).encode(), pieces)


class _Stored:
    """The arrays of one stored episode, read one at a time."""

    def __init__(self, record: Record) -> None:
        _, head, self._data = record.sections
        self.table: dict[str, tuple] = {}
        at = 0
        for name, dtype, shape, size, packed in json.loads(bytes(head)):
            self.table[name] = (np.dtype(dtype), tuple(shape), at, size, packed)
            at += size

    def kind(self, name: str) -> tuple[Any, ...] | None:
        """Dtype ("S" for text of any length) and shape of a row; None when the episode lacks it."""
        if name not in self.table:
            return None
        dtype, shape = self.table[name][:2]
        return ("S" if dtype.kind == "S" else dtype, shape[1:])

    def array(self, name: str) -> np.ndarray:
        dtype, shape, at, size, packed = self.table[name]
        raw = self._data[at : at + size]
        return np.frombuffer(zlib.decompress(raw) if packed else raw, dtype).reshape(shape)


def assemble_npz(path: Path, records: Sequence[Record]) -> int:
    """Write the file; its size in bytes. `records` are in the order in which they shall be stored."""
    notes: list[EpisodeNote] = [record.note for record in records]
    lengths = np.array([note.length for note in notes], np.int64)
    per_episode = (
        np.array([note.index for note in notes], np.int64),
        np.array([note.seed for note in notes], np.uint64),
        lengths,
        np.array([note.total_reward for note in notes], np.float64),
        np.cumsum(lengths) - lengths,
        np.cumsum(lengths + 1) - (lengths + 1),
    )
    names = dict.fromkeys(name for record in records for name in _Stored(record).table)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name in names:
            _write_member(archive, name, records)
        for name, array in zip(PER_EPISODE, per_episode, strict=True):
            with archive.open(zipfile.ZipInfo(f"{name}.npy", _EPOCH), "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return path.stat().st_size


def rows_of(name: str, length: int) -> int:
    """How many rows an array has for an episode of `length` steps."""
    resets = name.split("/")[0] in ("observations", "infos") and not name.startswith(f"infos/{POLICY_INFOS}/")
    return length + resets


def _write_member(archive: zipfile.ZipFile, name: str, records: Sequence[Record]) -> None:
    kinds = {_Stored(record).kind(name) for record in records}
    rows = sum(rows_of(name, record.note.length) for record in records)
    if len(kinds) == 1:
        dtype, shape = next(iter(kinds)) or (np.dtype(bool), ())
        if dtype == "S":
            dtype = np.dtype(f"S{max(_Stored(record).table[name][0].itemsize for record in records)}")
        pieces = (_Stored(record).array(name).astype(dtype, copy=False) for record in records)
    else:
        texts = [_as_text(_Stored(record), name, rows_of(name, record.note.length)) for record in records]
        dtype, shape = np.dtype(f"S{max(t.dtype.itemsize for t in texts)}"), ()
        pieces = (text.astype(dtype) for text in texts)
    head = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, *shape)}
    with archive.open(zipfile.ZipInfo(f"{name}.npy", _EPOCH), "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, head)
        for piece in pieces:
            member.write(np.ascontiguousarray(piece).tobytes())


def _as_text(stored: _Stored, name: str, rows: int) -> np.ndarray:
    if name not in stored.table:
        return np.zeros(rows, "S1")
    array = stored.array(name)
    if array.dtype.kind == "S":
        return array
    texts = [json.dumps(row).encode() for row in array.tolist()]
    return np.array(texts, dtype=f"S{max(1, max(map(len, texts)))}")


def arrays_of(path: Path, lengths: Sequence[int], number: int) -> dict[str, np.ndarray]:
    """The arrays of one episode as they are stored, by path. `lengths`: steps of each episode."""
    found = {}
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            if name not in PER_EPISODE:
                start = sum(rows_of(name, length) for length in lengths[:number])
                found[name] = archive[name][start : start + rows_of(name, lengths[number])]
    return found


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """All members of the file."""
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)
