"""Writing finished episodes down where they were made, and finding them again.

A `PartWriter` lives in the worker: it encodes an episode completely (arrays, compression, digest) and appends it to the
worker's own journal, so the caller only copies bytes when it merges, and killing any process loses at most the episodes
that were still running. What is stored of an episode is a function of the episode alone, not of the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym

from treadle.record.columns import columns_of, digester, leaves
from treadle.record.hdf5 import Hdf5Encoder
from treadle.record.journal import EpisodeNote, Journal, journals, packed, trim
from treadle.record.npz import NpzEncoder
from treadle.record.spaces import check_storable, foreign_texts
from treadle.sample.episode import Episode

Format = Literal["hdf5", "npz"]


class PartWriter:
    """Writes the episodes of one worker.

    Args:
        directory: where the parts of a run are kept; made when missing. None: nothing is written, the latest record
            stands in `held`.
        worker: which worker this is: names its file.
        observation_space: the environment's.
        action_space: the environment's.
        infos: whether infos and policy infos are stored.
        format: what the parts will be merged into.
        options: what every episode's reset was given as options, if anything.

    Raises:
        TypeError: when a space (or option) has no place in a dataset; the message names it.
        ValueError: when a format is unknown.
        OSError: when the directory or file cannot be written; from `add` and `flush` too. Its `filename` and message
            hold the path, and everything written before stays readable.
    """

    def __init__(
        self,
        directory: str | Path | None,
        worker: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        infos: bool = True,
        format: Format = "hdf5",
        options: Mapping[str, Any] | None = None,
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
        self._encoder: Hdf5Encoder | NpzEncoder = Hdf5Encoder(options) if format == "hdf5" else NpzEncoder()
        self._digest = digester()
        self._journal: Journal | None = None
        self.held: list[Any] = []
        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self._journal = Journal(Path(directory), worker, format)

    def add(self, episode: Episode) -> EpisodeNote:
        """Store a finished episode; when this returns, killing this process no longer loses it.

        Raises:
            TypeError, ValueError: when the episode holds what a dataset cannot keep.
            OSError: when the disk is full or fails.
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
        if self._journal is None:
            self.held = packed(note, *blob, extra)
        else:
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

    @property
    def nbytes(self) -> int:
        """Bytes on disk so far."""
        return 0 if self._journal is None else self._journal.size

    def flush(self) -> None:
        """Wait until the disk has everything that was added. Only a power failure makes that matter."""
        if self._journal is not None:
            self._journal.sync()

    def close(self) -> None:
        """Close the file. Nothing is buffered, so nothing depends on this."""
        if self._journal is not None:
            self._journal.close()


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
