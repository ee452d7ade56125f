"""Writing finished episodes down where they were made, and finding them again.

A `PartWriter` lives in the worker: it encodes an episode completely (arrays, compression, digest) and appends it to the
worker's own journal. So the caller compresses nothing when it merges, and the kill of any process loses only episodes
in play. The stored bytes of an episode are a function of the episode alone, not of the worker. A worker on another
machine sends its encoded episodes, and the caller appends them to a journal of its own.

When a run is complete its parts are removed: the dataset holds their contents, but for each episode's note and the
checksum of its record. These are kept beside it (`keep`), in `DIR/.episodes`, a journal whose records have no data.
With it the parts are made again (`reopen`), so that a complete run can be extended. Nothing is compressed again, and
where a bit has changed since, the checksums differ. (An attacker can change a checksum together with its data.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from treadle.play.episode import SUCCESS_KEYS, Episode, success_of
from treadle.record.columns import columns_of, digester, leaves
from treadle.record.hdf5 import Reader, encode
from treadle.record.journal import (
    FILE_HEAD,
    FORMAT_SIZE,
    EpisodeNote,
    Journal,
    Record,
    Sent,
    checksum,
    damaged,
    journals,
    read,
    record_of,
    trim,
)  # fmt: skip
from treadle.record.minari import check_storable, foreign_texts
from treadle.sample.keeping import Keep
from treadle.sample.scores import about_of
from treadle.whole_file import written

KEPT = ".episodes"


class PartWriter:
    """Writes the episodes of one worker.

    Args:
        directory: the folder of the run's parts. It must exist when the first episode is stored, not before: a run that
            cannot build its environments does not touch an earlier one's files.
        worker: number of the worker, which names its file.
        observation_space: the environment's.
        action_space: the environment's.
        stored: "all", or "no infos": without infos and policy infos. Or, of an evaluation, "scores": without
            observations too. Then observations are in the digest alone, and the note has `about_of`.
        success_keys: of infos, whose values say whether an episode was a success.
        send: True: episodes are returned (`Sent`) for another process to write them; False: they are written here.
        keep: the rule of the episodes that are kept; of others there is the note alone. None: all are kept.

    Raises:
        TypeError: when a dataset cannot store a space; the message names it.
    """

    def __init__(
        self,
        directory: str | Path,
        worker: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        stored: str = "all",
        success_keys: tuple[str, ...] = SUCCESS_KEYS,
        send: bool = False,
        keep: Keep | None = None,
    ) -> None:
        spaces = {"observations": observation_space, "actions": action_space}
        for name, space in spaces.items():
            check_storable(space, name)
        self._infos, self._scores, self._success_keys = stored == "all", stored == "scores", success_keys
        kept = {"actions": action_space} if self._scores else spaces
        self._foreign = [(name, *path) for name, space in kept.items() for path in foreign_texts(space)]
        self._digest, self._keep = digester(), keep
        self._journal = None if send else Journal(directory, worker)

    def add(self, episode: Episode) -> EpisodeNote | Sent:
        """Store a finished episode; when this returns, killing this process no longer loses it.

        Raises:
            TypeError, ValueError: when the episode holds what a dataset cannot keep.
            OSError: when the file cannot be written. Its `filename` and message hold the path, and everything written
                before stays readable.
        """
        if self._keep and (why := self._keep.unfit(episode, success_of(episode.final_info, self._success_keys))):
            unfit = {"unfit": why}
            note = EpisodeNote.of(episode, self._success_keys, nbytes=0, digest="0" * 32, about=unfit)
            return self._written(note, record_of(note, b"", ()))
        columns, left_out = columns_of(episode, infos=self._infos)
        digest, about = self._digest(columns).hex(), dict[str, Any]()
        if self._scores:
            columns = [column for column in columns if column.path[0] != "observations"]
            about = about_of(episode, self._success_keys)
        nbytes = sum([array.nbytes for _, array in columns])
        note = EpisodeNote.of(episode, self._success_keys, nbytes=nbytes, digest=digest, left_out=left_out, about=about)
        texts = {"texts": self._texts(episode)} if self._foreign else None
        return self._written(note, record_of(note, *encode(columns), texts))

    def _written(self, note: EpisodeNote, record: list[Any]) -> EpisodeNote | Sent:
        if self._journal is None:
            return Sent(note, b"".join(record))
        self._journal.write(record)
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
        """Close the file."""
        if self._journal is not None:
            self._journal.close()


def recover(directory: str | Path) -> list[EpisodeNote]:
    """Return the notes of all complete episodes of a run, also of a killed one, by index.

    No process may be writing to the directory. Half-written episodes are cut off; journals leave no temporary files. Of
    an index that was written twice (by a worker that died after writing, and its successor) one note is returned. The
    list is empty when the directory does not exist.

    Raises:
        ValueError: when a file is not of this kind.
        OSError: when the directory cannot be read or written.
    """
    notes: dict[int, EpisodeNote] = {}
    for path in journals(Path(directory)):
        for note in trim(path):
            notes.setdefault(note.index, note)
    return [notes[index] for index in sorted(notes)]


def write_kept(path: Path, records: Sequence[Record]) -> None:
    """Write down what a dataset of these records, in this order, does not hold. Raises OSError with the path."""
    with written(path) as file:
        file.write(FILE_HEAD["kept"])
        for record in records:
            file.writelines(record_of(record.note, checksum(record.buffer[record.begin :]), (), record.extra))


def reopen(kept: Path, data: Path, parts: Path) -> None:
    """Make the parts, in the empty directory `parts`, of the dataset whose data file is `data`.

    Raises:
        Damaged: episodes are not what was written; all of them are named.
        ValueError: when `kept` is damaged, or is not about this file.
        OSError: when something cannot be read or written.
    """
    lost: list[int | None] = []
    with Journal(parts, 0) as journal:
        for note, record in again(kept, data):
            if record is not None:
                journal.write(record)
            else:
                lost.append(note.index)
    if lost:
        raise damaged(data, lost)


def again(kept: Path, data: Path) -> Iterator[tuple[EpisodeNote, list[Any] | None]]:
    """Of each episode its note, and its record in a journal as buffers; None: it is not what was written.

    Raises ValueError and OSError as `reopen` does.
    """
    lost: list[int | None] = []
    records = list(read(kept, "kept", lost))
    if lost or os.path.getsize(kept) != sum(record.end - record.begin for record in records) + FORMAT_SIZE:
        raise ValueError(f"{kept} is damaged or cut short")
    with Reader(data, len(records)) as reader:
        for number, record in enumerate(records):
            blob = reader.blob(number, record.note)
            pieces = blob and record_of(record.note, *blob, record.extra)
            same = pieces and checksum(pieces[0]) == bytes(record.sections[0])
            yield record.note, pieces if same else None
