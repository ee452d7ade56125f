"""Writing finished episodes down where they were made, and finding them again.

A `PartWriter` lives in the worker: it encodes an episode completely (arrays, compression, digest) and appends it to the
worker's own journal, so the caller only copies bytes when it merges, and killing any process loses at most the episodes
that were still running. What is stored of an episode is a function of the episode alone, not of the worker. One on
another machine sends what it has encoded, and the caller appends it (`Receiver`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Literal, NamedTuple

import gymnasium as gym

from treadle.record.columns import columns_of, digester, leaves
from treadle.record.hdf5 import Hdf5Encoder
from treadle.record.journal import EpisodeNote, Journal, journals, packed, trim
from treadle.record.npz import NpzEncoder
from treadle.record.spaces import check_storable, foreign_texts
from treadle.sample.episode import Episode

Format = Literal["hdf5", "npz"]


class Sent(NamedTuple):
    """An episode as it is stored. `record`: its bytes in a journal."""

    note: EpisodeNote
    record: bytes

    @property
    def total_reward(self) -> float:
        """See `EpisodeNote`."""
        return self.note.total_reward


class PartWriter:
    """Writes the episodes of one worker.

    Args:
        directory: where the parts of a run are kept. It must be there when the first episode is stored, not before: a
            run that cannot build its environments has not touched what an earlier one left.
        worker: which worker this is: names its file.
        observation_space: the environment's.
        action_space: the environment's.
        infos: whether infos and policy infos are stored.
        format: what the parts will be merged into.
        send: are episodes returned (`Sent`), for another process to write them, instead of being written here?

    Raises:
        TypeError: when a space has no place in a dataset; the message names it.
        ValueError: when a format is unknown.
    """

    def __init__(
        self,
        directory: str | Path,
        worker: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        infos: bool = True,
        format: Format = "hdf5",
        send: bool = False,
    ) -> None:
        if format not in ("hdf5", "npz"):
            raise ValueError(f"unknown dataset format {format!r}: choose 'hdf5' or 'npz'")
        check_storable(observation_space, "observations")
        check_storable(action_space, "actions")
        self._foreign = [
            *(("observations", *path) for path in foreign_texts(observation_space)),
            *(("actions", *path) for path in foreign_texts(action_space)),
        ]
        self._infos = infos
        self._encoder: Hdf5Encoder | NpzEncoder = Hdf5Encoder() if format == "hdf5" else NpzEncoder()
        self._digest = digester()
        self._directory, self._worker, self._format, self._send = Path(directory), worker, format, send
        self._journal: Journal | None = None
        self._hold = -1

    def add(self, episode: Episode) -> EpisodeNote | Sent:
        """Store a finished episode; when this returns, killing this process no longer loses it.

        Raises:
            TypeError, ValueError: when the episode holds what a dataset cannot keep.
            OSError: when the file cannot be written. Its `filename` and message hold the path, and everything written
                before stays readable.
        """
        columns, left_out = columns_of(episode, infos=self._infos)
        note = EpisodeNote(
            index=episode.index,
            seed=episode.seed,
            length=len(episode.rewards),
            total_reward=episode.total_reward,
            terminated=bool(episode.terminated[-1]),
            truncated=bool(episode.truncated[-1]),
            nbytes=sum([array.nbytes for _, array in columns]),
            digest=self._digest(columns).hex(),
            left_out=left_out,
        )
        blob = self._encoder.encode(columns, episode.seed, episode.index)
        extra = {"texts": self._texts(episode)} if self._foreign else None
        if self._send:
            return Sent(note, b"".join(packed(note, *blob, extra)))
        if self._journal is None:
            self._hold = hold_parts(self._directory)
            self._journal = Journal(self._directory, self._worker, self._format)
        self._journal.append(note, *blob, extra)
        return note

    def _texts(self, episode: Episode) -> dict[str, list]:
        """Of each text whose space must be replaced: shortest and longest length, and its characters."""
        values = dict(leaves({"observations": episode.observations, "actions": episode.actions}))
        out = {}
        for path in self._foreign:
            texts = set(values[path])
            lengths = [len(text) for text in texts]
            out["/".join(path)] = [min(lengths), max(lengths), "".join(sorted(set().union(*texts)))]
        return out

    def close(self) -> None:
        """Close the file, unless an environment has done so. Nothing is buffered, so nothing depends on this."""
        with contextlib.suppress(OSError):
            if self._journal is not None:
                self._journal.close()
        with contextlib.suppress(OSError):
            hold, self._hold = self._hold, -1  # it may be closed twice
            if hold >= 0:
                os.close(hold)


class Receiver:
    """Writes down what is sent. A context manager: leaving it closes its journal."""

    def __init__(self, parts: Path, format: Format) -> None:
        self._parts, self._format = parts, format
        self._journal: Journal | None = None

    def note(self, result: EpisodeNote | Sent) -> EpisodeNote:
        """The note of a result, which is on disk now. Raises OSError."""
        if not isinstance(result, Sent):
            return result
        if self._journal is None:
            self._journal = Journal(self._parts, 0, self._format)
        self._journal.write([result.record])
        return result.note

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._journal is not None:
            self._journal.close()


def hold_parts(parts: str | Path) -> int:
    """Say, as a worker, that this process may write to the parts until the descriptor returned is closed."""
    fd = os.open(parts, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def recover(directory: str | Path) -> list[EpisodeNote]:
    """What a run left behind, also one that was killed: the notes of every complete episode, by index.

    Nobody may be writing to the directory. Half-written episodes are cut off; there are no temporary files that could
    be left over. Of an index that was written twice (by a worker that died after writing, and its successor) one note
    is returned. An empty list when the directory does not exist.

    Raises:
        ValueError: when a file is not of this kind.
        OSError: when the directory cannot be read or written.
    """
    notes: dict[int, EpisodeNote] = {}
    for path in journals(Path(directory)):
        for note in trim(path):
            notes.setdefault(note.index, note)
    return [notes[index] for index in sorted(notes)]
