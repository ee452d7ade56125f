"""What a vector has done so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.pool.line import BUSY_NS


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


def busy_shares(pool: Any, elapsed: float) -> dict[int, float]:
    """The share of `elapsed` seconds that each worker with a line to the caller was at work."""
    shares = {}
    for worker in pool.workers:
        if worker.line is not None:
            shares[worker.index] = min(1.0, worker.line.words[BUSY_NS] * 1e-9 / elapsed)
    return shares


__all__ = ["VectorStats", "busy_shares"]
