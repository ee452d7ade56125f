"""The file that a worker writes its finished episodes to: records one after the other, each complete in itself.

A record is handed to the kernel in one write (more, when it is too large for one). So a killed process loses no record
whose `write` returned. A record that a kill cuts short shows by its length or checksum and is never read. One process
writes a journal, which only grows; any process may read it at any time.

Readers raise `Damaged` for a record with another fault, by its checksum, where others follow.

Layout (little-endian): 16 bytes that name the format of the bodies, then records of `magic, crc32 of the rest, sizes of
its three sections (note, head, data)`, then the sections. The note describes the episode; the other sections
are the encoder's.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from treadle.errors import TreadleError
from treadle.interrupts import Closes
from treadle.play.episode import Episode, success_of
from treadle.whole_file import opened, why

SUFFIX = ".episodes"
FORMAT_SIZE = 16
FILE_HEAD = {name: f"treadle2 {name}\n".encode().ljust(FORMAT_SIZE, b"\0") for name in ("hdf5", "kept")}
_FRAME = struct.Struct("<4sIIIQ")
_NOTE = struct.Struct("<QQQdQBB16s")
_MAGIC = b"TRep"
_AFTER_CRC = 8
_WRITE_MAX = 1 << 26
REMEDY = "put a copy of the file in its place, or remove it: --resume makes again what is missing"
MOST_NAMED = 20  # damaged episodes that an error names


class Damaged(TreadleError):
    """Stored episodes, which the message names, are not what was written. Nothing of them was taken over."""


def damaged(path: Path, episodes: Sequence[int | None], remedy: str = REMEDY) -> Damaged:
    """The error for episodes of a file (None: one whose index cannot be read), with what to do."""
    named = [f"episode {'(of which the index cannot be read)' if each is None else each}" for each in episodes]
    named[MOST_NAMED:] = [f"{len(named) - MOST_NAMED:,} more"] if len(named) > MOST_NAMED else []
    return Damaged(f"{path} is damaged: {', '.join(named)}: not what was written; {remedy}")


@dataclass(frozen=True)
class EpisodeNote:
    """The facts of a stored episode that need no reading of its arrays.

    Attributes:
        index: of the episode in the run.
        seed: of the environment's reset.
        length: steps.
        total_reward: undiscounted return.
        terminated: whether its last step terminated it.
        truncated: whether its last step truncated it.
        nbytes: bytes of its arrays before compression.
        digest: XXH3-128 of its arrays as stored (paths, dtypes, shapes, bytes), 32 hexadecimal digits.
        left_out: info keys that could not be stored.
        success: whether it was a success; None: its environment does not say.
        about: further facts of an evaluation's episode, as JSON; "unfit": why it is not kept.
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
    success: bool | None = None
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def unfit(self) -> str:
        """Why it is not kept; "": it is."""
        return str(self.about.get("unfit", ""))

    @classmethod
    def of(cls, episode: Episode, success_keys: Iterable[str], **known: Any) -> EpisodeNote:
        """The note of an episode, where it was made. known: what does not follow from it alone."""
        return cls(
            index=episode.index,
            seed=episode.seed,
            length=len(episode),
            total_reward=episode.total_reward,
            terminated=bool(episode.terminated[-1]),
            truncated=bool(episode.truncated[-1]),
            success=success_of(episode.final_info, success_keys),
            **known,
        )


class Record(NamedTuple):
    """A stored episode: its note, what else its writer noted, and where in the (mapped) file its sections, and all of
    the record, are."""

    note: EpisodeNote
    extra: dict[str, Any]
    buffer: memoryview
    start: int
    sizes: tuple[int, int]
    begin: int
    end: int

    @property
    def sections(self) -> tuple[memoryview, memoryview]:
        """Head and data."""
        a = self.start
        b = a + self.sizes[0]
        return self.buffer[a:b], self.buffer[b : b + self.sizes[1]]


class Sent(NamedTuple):
    """An episode as it is stored. `record`: its bytes in a journal."""

    note: EpisodeNote
    record: bytes

    @property
    def total_reward(self) -> float:
        """See `EpisodeNote`."""
        return self.note.total_reward


class Journal(Closes):
    """A new journal in `directory`, named after the worker; an older one of the same worker is left as it is.

    The first record makes the file. From then on until it is closed it holds a shared lock on the directory, which
    shows that a process may write there. A context manager: leaving it closes the file.

    Args:
        directory: exists when the first record is written.
        worker: number of the worker.

    Raises (on `write`):
        OSError: when the file cannot be made or written, with its path. Earlier records stay readable.
    """

    def __init__(self, directory: str | Path, worker: int) -> None:
        self._directory, self._worker = Path(directory), worker
        self._fds: list[int] = []  # of the directory, and of the file
        self._end = 0

    def _open(self) -> None:
        try:
            self._fds.append(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            fcntl.flock(self._fds[0], fcntl.LOCK_SH | fcntl.LOCK_NB)
            for number in range(1 << 20):
                self.path = self._directory / f"worker-{self._worker}-{number}{SUFFIX}"
                with contextlib.suppress(FileExistsError):
                    self._fds.append(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
                    break
            self._end = 0
            self.write([FILE_HEAD["hdf5"]])
        except BaseException:
            self.close()
            raise

    def note(self, result: EpisodeNote | Sent) -> EpisodeNote:
        """The note of an episode, which is written down now if it was sent. Raises OSError."""
        if not isinstance(result, Sent):
            return result
        self.write([result.record])
        return result.note

    def write(self, pieces: Sequence[Any]) -> None:
        """Write one record, as `packed` has made it. When that fails the journal ends where it ended before, and can be
        written to again."""
        if not self._fds:
            self._open()
        fd, end = self._fds[1], self._end
        try:
            for piece in pieces:
                view = memoryview(piece)
                while len(view):
                    done = os.write(fd, view[:_WRITE_MAX])
                    view, end = view[done:], end + done
        except OSError as error:
            try:
                os.ftruncate(fd, self._end)
                os.lseek(fd, self._end, os.SEEK_SET)
            except OSError:
                self.close()  # a torn record must stay the last one
            raise OSError(error.errno, why(error), str(self.path)) from error
        self._end = end

    def close(self) -> None:
        """Close the file, unless an environment has done so. Nothing is buffered, so nothing depends on this."""
        fds, self._fds = self._fds, []  # it may be closed twice
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)


def record_of(note: EpisodeNote, head: bytes, data: Sequence[Any], extra: dict[str, Any] | None = None) -> list[Any]:
    """A record as buffers, one or many."""
    success = 0 if note.success is None else 2 + 4 * note.success  # bits beside `truncated`: is it known, was it one?
    noted = _NOTE.pack(
        note.index, note.seed, note.length, note.total_reward, note.nbytes,
        note.terminated, note.truncated + success, bytes.fromhex(note.digest),
    )  # fmt: skip
    if extra or note.left_out or note.about:
        about = {"about": note.about} if note.about else {}
        noted += json.dumps({"left_out": note.left_out, **about, **(extra or {})}).encode()
    frame = _FRAME.pack(_MAGIC, 0, len(noted), len(head), sum(map(len, data)))
    crc = 0
    pieces = [frame[_AFTER_CRC:], noted, head, *data]
    if sum(map(len, pieces)) < 1 << 20:
        pieces = [b"".join(pieces)]
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    first = _MAGIC + struct.pack("<I", crc)
    return [first + pieces[0], *pieces[1:]] if len(pieces) == 1 else [first, *pieces]


def journals(directory: Path) -> list[Path]:
    """The journals in a directory, in the order of their names."""
    return sorted(Path(directory).glob(f"worker-*{SUFFIX}"))


def checksum(record: Any) -> bytes:
    """Of a record that begins in this buffer: the crc32 of all but the checksum itself."""
    return bytes(record[len(_MAGIC) : _AFTER_CRC])


def read(path: Path, format: str | None = None, lost: list[int | None] | None = None) -> Iterator[Record]:
    """The intact records of a journal. A torn one ends it, as does a damaged one that no intact one follows: that
    episode is as good as not finished.

    Args:
        lost: gets the indices of the damaged episodes, the last one's too; intact records after them are read. None of
            them is an episode that a kill has cut short.

    Raises:
        Damaged: a record is damaged and an intact one follows; not with `lost`.
        ValueError: when the journal was written for another format, or is none.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < FORMAT_SIZE:
            return
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    buffer, at = memoryview(mapped), FORMAT_SIZE
    head = bytes(buffer[:FORMAT_SIZE])
    if head not in FILE_HEAD.values():
        raise ValueError(f"{path} is not a file of episodes")
    if format is not None and head != FILE_HEAD[format]:
        raise ValueError(f"{path} was written for another format than {format}")
    bad: list[int | None] = []  # since the last intact record
    torn = False  # is the last of them?
    while 0 <= at <= size - _FRAME.size:
        magic, crc, *sizes = _FRAME.unpack_from(buffer, at)
        start, end = at + _FRAME.size, at + _FRAME.size + sum(sizes)
        torn = magic != _MAGIC or end > size or sizes[0] < _NOTE.size
        if torn or zlib.crc32(buffer[at + _AFTER_CRC : end]) != crc:
            bad.append(_NOTE.unpack_from(buffer, start)[0] if start + _NOTE.size <= size else None)
            at = mapped.find(_MAGIC, at + 1)
            continue
        if bad and lost is None:
            raise damaged(path, bad)
        if lost is not None:
            lost += bad
        bad = []
        packed = buffer[start : start + sizes[0]]
        extra = json.loads(bytes(packed[_NOTE.size :])) if len(packed) > _NOTE.size else {}
        index, seed, steps, total, nbytes, terminated, truncated, digest = _NOTE.unpack_from(packed)
        left_out, about = tuple(extra.pop("left_out", ())), extra.pop("about", {})
        note = EpisodeNote(
            index, seed, steps, total, bool(terminated), bool(truncated & 1), nbytes, digest.hex(), left_out,
            bool(truncated & 4) if truncated & 2 else None, about,
        )  # fmt: skip
        yield Record(note, extra, buffer, start + sizes[0], (sizes[1], sizes[2]), at, end)
        at = end
    if lost is not None:
        lost += bad[: len(bad) - torn]


def trim(path: Path) -> list[EpisodeNote]:
    """Cut off a half-written record, once no process writes to the file, and return the notes of the others.

    Raises Damaged, and then cuts off nothing.
    """
    found = list(read(path))
    if not found:
        os.unlink(path)
    elif os.path.getsize(path) > found[-1].end:
        os.truncate(path, found[-1].end)
    return [record.note for record in found]
