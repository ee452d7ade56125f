"""Treadle's entries: what users hold, `treadle.make_vec`, with everything on (checks, infos, leases)."""

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
        made: Any = row.workload.make_rows if options.get("owned") else row.workload.make
        return treadle.make_vec(made, row.n_envs, **options)

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


class Partial(Treadle):
    """By `send` and `recv`: whichever environments are ready first, `batch` at a time (None: half of them)."""

    def __init__(self, name: str, *, batch: int | None = None, **options: Any) -> None:
        super().__init__(name, **options)
        self._batch = batch

    def setup(self, row: Row, workers: int) -> Session:
        return PartialSession(self.vector(row, workers), row, self._batch or max(1, row.n_envs // 2))


class PartialSession:
    """Requests stay out from one run to the next: every env is busy when the clock starts, and when it stops."""

    def __init__(self, envs: Any, row: Row, batch: int) -> None:
        self._envs, self._batch, self._act = envs, batch, actions_of(row)
        envs.async_reset(seed=SEED)

    def run(self, seconds: float) -> Measure:
        at: list[float] = []
        found = measure(lambda: self._stretch(seconds, at))
        return replace(found, **quantiles(at))

    def _stretch(self, seconds: float, at: list[float]) -> tuple[int, float]:
        envs, act, batch, count, clock = self._envs, self._act, self._batch, np.count_nonzero, perf_counter
        steps = 0
        start = now = clock()
        at.append(start)
        while now - start < seconds or not steps:
            observations, _, _, _, infos = envs.recv(min=batch, max=envs.num_envs)
            steps += int(count(infos["valid"]))
            ids = infos["env_id"]
            envs.send(act(observations, ids), ids)
            now = clock()
            at.append(now)
        return steps, now - start

    def close(self) -> None:
        self._envs.recv(min=self._envs.num_envs)  # what is still out
        self._envs.close()


class Rollouts(Treadle):
    """Rollouts of T steps, which workers write; each is let go before the next is asked for."""

    def setup(self, row: Row, workers: int) -> Session:
        envs = self.vector(row, workers)
        envs.reset(seed=SEED)
        return RolloutSession(envs, row)


class RolloutSession:
    """A batch's time is a rollout's divided by its steps."""

    def __init__(self, envs: Any, row: Row) -> None:
        self._envs, self._act = envs, actions_of(row)

    def run(self, seconds: float) -> Measure:
        at: list[float] = []
        found = measure(lambda: self._stretch(seconds, at))
        return replace(found, **quantiles(at, 1e3 / T))

    def _stretch(self, seconds: float, at: list[float]) -> tuple[int, float]:
        act, steps = self._act, 0
        start = now = perf_counter()
        at.append(start)
        while now - start < seconds or not steps:
            steps += int(np.count_nonzero(self._envs.rollout(lambda seen: act(seen, None), steps=T).valid))
            now = perf_counter()
            at.append(now)
        return steps, now - start

    def close(self) -> None:
        self._envs.close()


class Groups(Treadle):
    """Two groups: the policy acts for one while the other is stepped."""

    def setup(self, row: Row, workers: int) -> Session:
        envs = self.vector(row, workers)
        envs.reset(seed=SEED)
        return GroupsSession(envs, row)


class GroupsSession:
    """One loop for all runs; between two of them the caller holds a group. A batch is a group's."""

    def __init__(self, envs: Any, row: Row) -> None:
        self._envs, self._act, self._loop = envs, actions_of(row), envs.groups()
        self._group = next(self._loop)

    def run(self, seconds: float) -> Measure:
        at: list[float] = []
        found = measure(lambda: self._stretch(seconds, at))
        return replace(found, **quantiles(at))

    def _stretch(self, seconds: float, at: list[float]) -> tuple[int, float]:
        loop, act, group, count, clock = self._loop, self._act, self._group, np.count_nonzero, perf_counter
        steps = 0
        start = now = clock()
        at.append(start)
        while now - start < seconds or not steps:
            group.step(act(group.observations, group.slots))
            group = next(loop)
            if group.t:
                steps += int(count(group.valid))
            now = clock()
            at.append(now)
        self._group = group
        return steps, now - start

    def close(self) -> None:
        self._envs.close()


def _share(row: Row, cores: int) -> int:
    return -(-row.n_envs // cores)


def contestants() -> list[Treadle]:
    """ "auto" first; the next four are what it can choose from (`ARMS`)."""
    return [
        Treadle("Treadle auto"),
        Treadle("Treadle serial", backend="serial"),
        Treadle("Treadle inline", workers=lambda row, cores: max(1, cores - 1), inline=_share),
        Treadle("Treadle workers only", workers=lambda row, cores: cores, inline=0),
        WorkerEach("Treadle worker each", workers=lambda row, cores: row.n_envs, inline=0),
        Partial("Treadle partial", workers=lambda row, cores: cores, inline=0),
        Rollouts("Treadle rollout"),
        Groups("Treadle groups", groups=2),
    ]


AUTO = "Treadle auto"
ARMS = ("Treadle serial", "Treadle inline", "Treadle workers only", "Treadle worker each")
