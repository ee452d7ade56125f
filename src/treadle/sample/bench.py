"""Where a worker makes its rollouts, and where they lie until they are sent."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from treadle.pool.file_buffers import Lender
from treadle.sample.contract import in_step
from treadle.sample.direct_rollouts import DirectRollouts, direct_rollouts
from treadle.sample.episode_batch import EpisodeBatch
from treadle.sample.haul import Haul, haul_of

BATCH, BATCH_SECONDS, BATCH_BYTES = 64, 0.05, 1 << 20  # small rollouts travel together, but none waits long


class Interrupted(BaseException):
    """Raised between two steps when the caller has stopped the stream. No `except Exception` of a worker's takes it."""


class Bench:
    """One worker at work.

    Args:
        worker: it has `rollout`; see `treadle.sample.worker.Worker` for the rest.
        lender: None, or whose files observations are to lie in; see `treadle.pool.file_buffers`.

    Attributes:
        made: rollouts that lie here.
        begun: episodes that were begun before the present rollout, whatever became of them.
    """

    def __init__(self, worker: Any, lender: Lender | None = None) -> None:
        self.worker, self._lender = worker, lender
        self._step = getattr(worker, "step_episode", None)
        self._interruptible = self._step is not None and bool(getattr(worker, "interruptible", False))
        self._direct: DirectRollouts | None = None
        self._batches: list[EpisodeBatch] = []
        self._steps = self.made = self.begun = 0
        self._since = perf_counter()

    def guard(self, stopped: Callable[[], bool]) -> None:
        """Let `stopped` in between any two steps, also in a `rollout` that a user has written."""
        self._stopped = stopped
        step, worker = self._step, self.worker
        if step is None or not self._interruptible:
            return
        one = getattr(worker, "by_index", False)  # one episode at a time: `_eps_length` is its

        def step_episode() -> bool:
            if stopped():
                raise Interrupted
            try:
                return step()
            except Exception as error:
                if one:
                    episode = self.begun + len(getattr(worker, "_lengths", ()))
                    in_step(error, getattr(worker, "_eps_length", 0) + 1, episode)
                raise

        worker.step_episode = step_episode

    def play(self) -> bool:
        """Make one rollout. False: it was stopped, and is forgotten. Raises what the worker raises."""
        try:
            direct = self._direct_rollouts()
            result: Any = self.worker.rollout() if direct is None else direct.rollout(self._stopped)
        except Interrupted:
            self.worker.discard_episode()
            self.begun += 1
            return False
        except BaseException as error:
            in_step(error, None, self.begun)
            self.begun += 1
            if self._interruptible:  # else only the worker itself knows how to begin anew
                self.worker.discard_episode()
            raise
        self.begun += len(result.lengths) if isinstance(result, EpisodeBatch) else 1
        if result is False:
            return False
        if not self.made:
            self._since = perf_counter()
        self.made += 1
        if result is True:
            assert direct is not None
            self._steps += direct.length
        else:
            if not isinstance(result, EpisodeBatch):
                raise TypeError(f"a worker's rollout returns an EpisodeBatch, this one's a {type(result).__name__}")
            self._batches.append(result)
            self._steps += len(result)
        return True

    def _direct_rollouts(self) -> DirectRollouts | None:
        direct, env = self._direct, getattr(self.worker, "env", None)
        if direct is not None and direct.env is env:
            return direct
        if self.made:  # what lies here is sent first
            return None
        self._direct = direct_rollouts(self.worker, self._lender)
        return self._direct

    def due(self, steps: int, rollouts: int = BATCH) -> bool:
        """Is what lies here worth a message, if so many steps or rollouts are?"""
        direct = self._direct
        return (
            self._steps >= steps
            or self.made >= rollouts
            or perf_counter() - self._since > BATCH_SECONDS
            or (direct is not None and direct.nbytes > BATCH_BYTES)
        )

    def hauls(self, *, copy: bool) -> list[Haul]:
        """All that lies here, in order. Without `copy` the arrays are good until `clear`."""
        hauls = []
        if self._direct is not None and self._direct.episodes:
            hauls.append(self._direct.haul(copy=copy))
        if self._batches:
            hauls.append(haul_of(self._batches))
        return hauls

    def clear(self) -> None:
        """The hauls are on their way."""
        self._batches = []
        self._steps = self.made = 0
        if self._direct is not None:
            self._direct.clear()
