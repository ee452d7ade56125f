"""What a vector has done so far, and the count of it."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from treadle.errors import UsageError
from treadle.lockstep.lockstep import Lockstep
from treadle.pool.pool import Pool
from treadle.wire.line import BUSY_NS


@dataclass(frozen=True)
class VectorStats:
    """Attributes:
    steps: int64[n], transitions of each slot; rows that are resets are not counted.
    episodes: int64[n], episodes begun in each slot.
    restarts: int64[n], how often each slot's worker was started anew.
    busy: for each worker the share of `elapsed` that it was at work, by the worker's index. The caller's own share of
        slots is not among them: the caller is busy with them whenever it steps.
    elapsed: seconds since the vector was made.
    """

    steps: np.ndarray
    episodes: np.ndarray
    restarts: np.ndarray
    busy: dict[int, float]
    elapsed: float


class Counts:
    """What the calls of a vector have asked for.

    Attributes:
        calls: steps of all slots.
        singles: of each slot in partial batches.
        resets: int64[n].
    """

    def __init__(self, n: int) -> None:
        self._since = monotonic()
        self.calls, self.resets = 0, np.zeros(n, np.int64)
        self.singles = [0] * n

    @property
    def begun(self) -> bool:
        """Has anything been asked for?"""
        return bool(self.calls or self.resets.any())

    def note_resets(self, slots: list[int] | None) -> None:
        """Resets of these slots (None: all) are asked for. Raises UsageError for some, before any of all."""
        if slots is not None and not self.begun:
            raise UsageError("the first reset() must be of all slots: the others have no observation to keep")
        self.resets[slice(None) if slots is None else slots] += 1

    def stats(self, pool: Pool, lockstep: Lockstep, next_step: bool) -> VectorStats:
        """What has come of it. `next_step`: is a slot's step after an episode's end a reset?"""
        elapsed, episodes = monotonic() - self._since, lockstep.episodes
        steps = self.calls + np.array(self.singles) - lockstep.missed
        if next_step:
            steps -= np.maximum(0, episodes - self.resets)
        return VectorStats(steps, episodes, np.array(pool.restarts, np.int64), busy_shares(pool, elapsed), elapsed)


def busy_shares(pool: Any, elapsed: float) -> dict[int, float]:
    """The share of `elapsed` seconds that each worker with a line to the caller was at work."""
    shares = {}
    for worker in pool.workers:
        if worker.line is not None:
            shares[worker.index] = min(1.0, worker.line.words[BUSY_NS] * 1e-9 / elapsed)
    return shares
