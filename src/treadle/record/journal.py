"""The file that a worker writes its finished episodes to: records one after the other, each complete in itself.

A record is handed to the kernel in one write (more, when it is too large for one), so a process that is killed loses
nothing that `append` returned from; what a kill cuts short is told by its length or checksum and is never read. A
journal is written by one process and only ever grows; anyone may read it at any time.

Layout (little-endian): 16 bytes that name the format of the bodies, then records of `magic, crc32 of the rest, sizes of
its four sections (note, moves, head, data)`, then the sections. The note says what the episode is; the others are the
encoder's.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

SUFFIX = ".episodes"
FORMAT_SIZE = 16
FILE_HEAD = {name: f"treadle1 {name}\n".encode().ljust(FORMAT_SIZE, b"\0") for name in ("hdf5", "npz", "kept")}
_FRAME = struct.Struct("<4sIIIIQ")
_NOTE = struct.Struct("<QQQdQBB16s")
_MAGIC = b"TRep"
_AFTER_CRC = 8
_WRITE_MAX = 1 << 26


@dataclass(frozen=True)
class EpisodeNote:
    """What is known of a stored episode without reading it.

    Attributes:
        index: which episode of the run it is.
        seed: what the environment's reset was given.
        length: steps.
        total_reward: undiscounted return.
        terminated: whether its last step terminated it.
        truncated: whether its last step truncated it.
        nbytes: bytes of its arrays before compression.
        digest: XXH3-128 of its arrays as stored (paths, dtypes, shapes, bytes), 32 hexadecimal digits.
        left_out: info keys that could not be stored.
    """

    index: int
    seed: int
    length: int
    total_reward: float
    terminated: bool
    truncated: bool
    nbytes: int
    digest: str
    left_out: tuple[str, ...] = ()


class Record(NamedTuple):
    """A stored episode: its note, what else its writer noted, and where in the (mapped) file its sections, and all of
    the record, are."""

    note: EpisodeNote
    extra: dict[str, Any]
    buffer: memoryview
    start: int
    sizes: tuple[int, int, int]
    begin: int
    end: int

    @property
    def sections(self) -> tuple[memoryview, memoryview, memoryview]:
        """Moves, head and data."""
        a = self.start
        b, c = a + self.sizes[0], a + self.sizes[0] + self.sizes[1]
        return self.buffer[a:b], self.buffer[b:c], self.buffer[c : c + self.sizes[2]]


class Journal:
    """A new journal in `directory`, named after the worker; an older one of the same worker is left as it is.

    Args:
        directory: exists already.
        worker: whose it is.
        format: "hdf5" or "npz".

    Raises:
        OSError: when the file cannot be made or (on `append`) written, with its path. What was appended before
            stays readable.
    """

    def __init__(self, directory: Path, worker: int, format: str) -> None:
        for number in range(1 << 20):
            self.path = Path(directory) / f"worker-{worker}-{number}{SUFFIX}"
            try:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                continue
            break
        self._end = 0
        try:
            self.write([FILE_HEAD[format]])
        except OSError:
            self.close()
            raise

    def append(
        self, note: EpisodeNote, moves: bytes, head: bytes, data: Sequence[Any], extra: dict[str, Any] | None = None
    ) -> None:
        """Write one record. When that fails the journal ends where it ended before, and can be appended to again."""
        self.write(packed(note, moves, head, data, extra))

    def write(self, pieces: Sequence[Any]) -> None:
        """As `append`, for a record as `packed` has made it."""
        end = self._end
        try:
            for piece in pieces:
                view = memoryview(piece)
                while len(view):
                    done = os.write(self._fd, view[:_WRITE_MAX])
                    view, end = view[done:], end + done
        except OSError as error:
            try:
                os.ftruncate(self._fd, self._end)
                os.lseek(self._fd, self._end, os.SEEK_SET)
            except OSError:
                self.close()  # a torn record must stay the last one
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._end = end

    def close(self) -> None:
        """Close the file; once is enough, twice does no harm."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def packed(
    note: EpisodeNote, moves: bytes, head: bytes, data: Sequence[Any], extra: dict[str, Any] | None = None
) -> list[Any]:
    """A record as buffers, one or many."""
    noted = _NOTE.pack(
        note.index, note.seed, note.length, note.total_reward, note.nbytes,
        note.terminated, note.truncated, bytes.fromhex(note.digest),
    )  # fmt: skip
    if extra or note.left_out:
        noted += json.dumps({"left_out": note.left_out, **(extra or {})}).encode()
    frame = _FRAME.pack(_MAGIC, 0, len(noted), len(moves), len(head), sum(map(len, data)))
    crc = 0
    pieces = [frame[_AFTER_CRC:], noted, moves, head, *data]
    if sum(map(len, pieces)) < 1 << 20:
        pieces = [b"".join(pieces)]
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    first = _MAGIC + struct.pack("<I", crc)
    return [first + pieces[0], *pieces[1:]] if len(pieces) == 1 else [first, *pieces]


def journals(directory: Path) -> list[Path]:
    """The journals in a directory, in the order of their names."""
    return sorted(Path(directory).glob(f"worker-*{SUFFIX}"))


def read(path: Path, format: str | None = None) -> Iterator[Record]:
    """The intact records of a journal; a torn or damaged one ends it.

    Raises:
        ValueError: when the journal was written for another format, or is none.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < FORMAT_SIZE:
            return
        buffer = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    head = bytes(buffer[:FORMAT_SIZE])
    if head not in FILE_HEAD.values():
        raise ValueError(f"{path} is not a file of episodes")
    if format is not None and head != FILE_HEAD[format]:
        raise ValueError(f"{path} was written for another format than {format}")
    at = FORMAT_SIZE
    while at + _FRAME.size <= size:
        magic, crc, *sizes = _FRAME.unpack_from(buffer, at)
        end = at + _FRAME.size + sum(sizes)
        if magic != _MAGIC or end > size or sizes[0] < _NOTE.size or zlib.crc32(buffer[at + _AFTER_CRC : end]) != crc:
            return
        start = at + _FRAME.size
        packed = buffer[start : start + sizes[0]]
        extra = json.loads(bytes(packed[_NOTE.size :])) if len(packed) > _NOTE.size else {}
        index, seed, steps, total, nbytes, terminated, truncated, digest = _NOTE.unpack_from(packed)
        left_out = tuple(extra.pop("left_out", ()))
        note = EpisodeNote(index, seed, steps, total, bool(terminated), bool(truncated), nbytes, digest.hex(), left_out)
        yield Record(note, extra, buffer, start + sizes[0], (sizes[1], sizes[2], sizes[3]), at, end)
        at = end


def trim(path: Path) -> list[EpisodeNote]:
    """Cut off what a kill left half-written, which nobody may be writing to any more; the notes of what is there."""
    found = list(read(path))
    if not found:
        os.unlink(path)
    elif os.path.getsize(path) > found[-1].end:
        os.truncate(path, found[-1].end)
    return [record.note for record in found]
