"""Treadle's entries: what users hold, `treadle.make_vec`, with everything on (checks, infos, lent batches)."""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.contestants import Library, Session, VectorSession, actions_of, quantiles
from benchmarks.measure import Measure, measure
from benchmarks.rows import Row
from benchmarks.workloads import SEED

T = 64  # steps of a rollout
MOST_PROCESSES = 32  # a worker for each of more environments is nobody's choice


class Treadle(Library):
    """`make_vec` with some options, stepped like any vector.

    options: of make_vec; a function of the row and the number of cores where it depends on them. keep: makes what the
    caller does with each batch that `step` returns, besides letting it go, from the vector.
    """

    library = "treadle.vector.make_vec"

    def __init__(self, name: str, *, keep: Callable[[Any], Callable[[Any], Any]] | None = None, **options: Any) -> None:
        self.name, self._keep, self._options = name, keep, options

    def refusal(self, row: Row) -> str | None:
        return None

    def vector(self, row: Row, workers: int) -> Any:
        """The vector, not yet reset."""
        import treadle

        options = {key: ask(row, workers) if callable(ask) else ask for key, ask in self._options.items()}
        return treadle.make_vec(row.workload.make, row.n_envs, **options)

    def setup(self, row: Row, workers: int) -> Session:
        envs = self.vector(row, workers)
        observations = envs.reset(seed=SEED)[0]
        step = keeping(envs.step, self._keep(envs)) if self._keep else envs.step
        return VectorSession(step, row, observations, close=envs.close, reset_rows=True)


def keeping(step: Callable[[Any], Any], keep: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A step whose batches are shown to `keep`."""

    def stepped(actions: Any) -> Any:
        batch = step(actions)
        keep(batch)
        return batch

    return stepped


class WorkerEach(Treadle):
    """A process for each environment."""

    def refusal(self, row: Row) -> str | None:
        return None if row.n_envs <= MOST_PROCESSES else f"{row.n_envs} processes"


class BatchesSession:
    """Takes batch after batch, by `_batch`, which returns how many steps were in it.

    each: how many steps of a slot the time from one batch to the next is that of.
    """

    each = 1

    def __init__(self, envs: Any, row: Row) -> None:
        self._envs, self._act = envs, actions_of(row)

    def run(self, seconds: float) -> Measure:
        at: list[float] = []
        found = measure(lambda: self._stretch(seconds, at))
        return replace(found, **quantiles(at, 1e3 / self.each))

    def _stretch(self, seconds: float, at: list[float]) -> tuple[int, float]:
        take, clock, steps = self._batch, perf_counter, 0
        start = now = clock()
        at.append(start)
        while now - start < seconds or not steps:
            steps += take()
            now = clock()
            at.append(now)
        return steps, now - start

    def _batch(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        self._envs.close()


class Partial(Treadle):
    """By `send` and `recv`: whichever environments are ready first, `batch` at a time (None: half of them)."""

    def __init__(self, name: str, *, batch: int | None = None, **options: Any) -> None:
        super().__init__(name, **options)
        self._batch = batch

    def setup(self, row: Row, workers: int) -> Session:
        return PartialSession(self.vector(row, workers), row, self._batch or max(1, row.n_envs // 2))


class PartialSession(BatchesSession):
    """Requests stay out from one run to the next: every env is busy when the clock starts, and when it stops."""

    def __init__(self, envs: Any, row: Row, least: int) -> None:
        super().__init__(envs, row)
        self._least = least
        envs.async_reset(seed=SEED)

    def _batch(self) -> int:
        envs = self._envs
        observations, _, _, _, infos = envs.recv(min=self._least, max=envs.num_envs)
        ids = infos["env_id"]
        envs.send(self._act(observations, ids), ids)
        return int(np.count_nonzero(infos["valid"]))

    def close(self) -> None:
        self._envs.recv(min=self._envs.num_envs)  # what is still out
        super().close()


class Rollouts(Treadle):
    """Rollouts of T steps, which workers write; each is let go before the next is asked for."""

    def setup(self, row: Row, workers: int) -> Session:
        envs = self.vector(row, workers)
        envs.reset(seed=SEED)
        return RolloutSession(envs, row)


class RolloutSession(BatchesSession):
    each = T

    def _batch(self) -> int:
        rollout = self._envs.rollout(lambda seen: self._act(seen, None), steps=T)
        return int(np.count_nonzero(rollout.valid))


def _share(row: Row, cores: int) -> int:
    return -(-row.n_envs // cores)


def in_the_caller(row: Row, cores: int) -> Any:
    """Nothing but the caller's own thread."""
    from treadle import WorkerOptions

    return WorkerOptions(backend="serial")


def contestants() -> list[Treadle]:
    """ "auto" first; the next four are what it can choose from (`ARMS`)."""
    return [
        Treadle("Treadle auto"),
        Treadle("Treadle serial", worker_options=in_the_caller),
        Treadle("Treadle inline", workers=lambda row, cores: max(1, cores - 1), inline=_share),
        Treadle("Treadle workers only", workers=lambda row, cores: cores, inline=0),
        WorkerEach("Treadle worker each", workers=lambda row, cores: row.n_envs, inline=0),
        Partial("Treadle partial", workers=lambda row, cores: cores, inline=0),
        Rollouts("Treadle rollout"),
    ]


AUTO = "Treadle auto"
ARMS = ("Treadle serial", "Treadle inline", "Treadle workers only", "Treadle worker each")
