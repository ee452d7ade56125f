"""Where a worker of a run puts its finished episodes: a `PartWriter` of its own, opened with the first one."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import gymnasium as gym

from treadle.record.journal import EpisodeNote
from treadle.record.parts import Format, PartWriter
from treadle.record.run_directory import hold_parts
from treadle.record.spaces import check_storable
from treadle.sample.episode import Episode


@dataclass(frozen=True)
class PartSink:
    """A factory of sinks, as `treadle.sample.rollout_slot.RolloutRecipe` takes it.

    Attributes:
        directory: of the parts; it must be there when the first episode is stored, not before: a run that cannot
            build its environments has not touched what an earlier one left.
        infos, format: as for `PartWriter`.

    Raises:
        TypeError: when the environment's spaces have no place in a dataset.
    """

    directory: str
    infos: bool
    format: Format

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

    def add(self, episode: Episode) -> EpisodeNote:
        """See `PartWriter.add`."""
        if self._writer is None:
            parts = self._parts
            self._hold = hold_parts(parts.directory)
            self._writer = PartWriter(
                parts.directory, self._worker, *self._spaces, infos=parts.infos, format=parts.format
            )
        return self._writer.add(episode)

    def close(self) -> None:
        """Close what was opened, unless an environment has done so."""
        with contextlib.suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError):
            if self._hold >= 0:
                os.close(self._hold)
