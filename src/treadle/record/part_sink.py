"""Where a worker of a run puts its finished episodes: a `PartWriter` of its own, opened with the first one; on another
machine into what it tells the caller, who writes them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym

from treadle.record.journal import EpisodeNote, Journal
from treadle.record.parts import Format, PartWriter
from treadle.record.run_directory import hold_parts
from treadle.record.spaces import check_storable
from treadle.sample.episode import Episode


class Sent(NamedTuple):
    """An episode as it is stored. `record`: its bytes in a journal."""

    note: EpisodeNote
    record: bytes

    @property
    def total_reward(self) -> float:
        """See `EpisodeNote`."""
        return self.note.total_reward


@dataclass(frozen=True)
class PartSink:
    """A factory of sinks, as `treadle.sample.rollout_slot.RolloutRecipe` takes it.

    Attributes:
        directory: of the parts; it must be there when the first episode is stored, not before: a run that cannot
            build its environments has not touched what an earlier one left.
        infos, format: as for `PartWriter`.
        send: are episodes sent to the caller (`Sent`), instead of being written where they are made?

    Raises:
        TypeError: when the environment's spaces have no place in a dataset.
    """

    directory: str
    infos: bool
    format: Format
    send: bool = False

    def __call__(self, worker: int, observation_space: gym.Space, action_space: gym.Space) -> OpenSink:
        check_storable(observation_space, "observations")
        check_storable(action_space, "actions")
        return OpenSink(self, worker, observation_space, action_space)


class OpenSink:
    """One worker's."""

    def __init__(self, parts: PartSink, worker: int, observation_space: gym.Space, action_space: gym.Space) -> None:
        self._parts, self._worker = parts, worker
        self._spaces = observation_space, action_space
        self._writer: PartWriter | None = None
        self._hold = -1

    def add(self, episode: Episode) -> EpisodeNote | Sent:
        """See `PartWriter.add`."""
        parts = self._parts
        if self._writer is None:
            if not parts.send:
                self._hold = hold_parts(parts.directory)
            place = None if parts.send else parts.directory
            self._writer = PartWriter(place, self._worker, *self._spaces, infos=parts.infos, format=parts.format)
        note = self._writer.add(episode)
        return Sent(note, b"".join(self._writer.held)) if parts.send else note

    def close(self) -> None:
        """Close what was opened, unless an environment has done so."""
        with contextlib.suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError):
            if self._hold >= 0:
                os.close(self._hold)


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
