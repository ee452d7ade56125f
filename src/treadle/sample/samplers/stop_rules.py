"""When a sampling has enough, and what of it is taken, in which order: pure decisions, no processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from treadle.sample.samplers.trajectories import Trajectories
from treadle.sample.schedule import Schedule


class StopRule:
    """Attributes:
    needs_all: can it not be kept when a worker is gone?
    ahead: orders of one sampling that a worker may have at a time.
    steps, episodes: that were taken.
    """

    needs_all, ahead = False, 1
    steps = 0
    episodes: int

    @property
    def done(self) -> bool:
        """Is there enough?"""
        raise NotImplementedError

    def wants(self, worker: int, mine: int) -> dict[str, Any] | None:
        """What a worker that has `mine` orders already is to make: fields of an `Order`. None: nothing more."""
        raise NotImplementedError

    def lose(self, indices: Iterable[int]) -> None:
        """A worker that was to make rollouts of these indices is gone: they are made again."""

    def take(self, worker: int, batch: Trajectories) -> Trajectories | None:
        """What of the batch is taken; None: nothing."""
        raise NotImplementedError

    def settled(self) -> Iterator[Trajectories]:
        """Batches that were taken and whose place in the result is certain, each once, in its order."""
        raise NotImplementedError

    def batches(self) -> list[Trajectories]:
        """All that was taken, in the order of the result."""
        raise NotImplementedError


class AtLeast(StopRule):
    """Whole rollouts, in order of arrival, until there are so many steps.

    Args:
        steps: how many, at least 1.
    """

    def __init__(self, steps: int) -> None:
        self.wanted = steps
        self.steps = self.episodes = self._settled = 0
        self._taken: list[Trajectories] = []

    @property
    def done(self) -> bool:
        return self.steps >= self.wanted

    def wants(self, worker: int, mine: int) -> dict[str, Any] | None:
        return {}

    def take(self, worker: int, batch: Trajectories) -> Trajectories | None:
        if self.done:
            return None
        count = 0
        for steps in batch.steps.tolist():
            count += 1
            self.steps += steps
            if self.done:
                break
        taken = batch.part(0, count)
        self.episodes += len(taken.lengths)
        self._taken.append(taken)
        return taken

    def settled(self) -> Iterator[Trajectories]:
        while self._settled < len(self._taken):
            self._settled += 1
            yield self._taken[self._settled - 1]

    def batches(self) -> list[Trajectories]:
        return self._taken


class Exactly(StopRule):
    """So many episodes of each worker, in worker order.

    Args:
        episodes: of each worker, at least 1.
        workers: how many workers there are.
    """

    needs_all = True

    def __init__(self, episodes: int, workers: int) -> None:
        self.each = episodes
        self.wanted = episodes * workers
        self.have = [0] * workers
        self.steps = 0
        self._turn = self._settled = 0  # the worker whose batches are next, and how many of them are settled
        self._taken: list[list[Trajectories]] = [[] for _ in range(workers)]

    @property
    def episodes(self) -> int:  # type: ignore[override]
        return sum(self.have)

    @property
    def done(self) -> bool:
        return self.episodes >= self.wanted

    def wants(self, worker: int, mine: int) -> dict[str, Any] | None:
        left = self.each - self.have[worker]
        return {"most": left} if left else None

    def take(self, worker: int, batch: Trajectories) -> Trajectories | None:
        count = min(len(batch.lengths), self.each - self.have[worker])
        if count <= 0:
            return None
        taken = batch if count == len(batch.lengths) else batch.first_episodes(count)
        self.have[worker] += count
        self.steps += int(taken.lengths.sum())
        self._taken[worker].append(taken)
        return taken

    def settled(self) -> Iterator[Trajectories]:
        while self._turn < len(self.have):
            batches = self._taken[self._turn]
            while self._settled < len(batches):
                self._settled += 1
                yield batches[self._settled - 1]
            if self.have[self._turn] < self.each:
                return
            self._turn, self._settled = self._turn + 1, 0

    def batches(self) -> list[Trajectories]:
        return [batch for batches in self._taken for batch in batches]


class ByIndex(StopRule):
    """The rollouts of a schedule, in order of index.

    Args:
        schedule: which. Its indices are 0, 1, 2, ...
        workers: how many workers there are.
        base: what is added to an index where rollouts are made: an earlier sampling has used those below.
    """

    ahead = 2

    def __init__(self, schedule: Schedule, workers: int, base: int = 0) -> None:
        self.schedule, self.base, self._workers = schedule, base, workers
        self.steps = self.episodes = self._settled = 0
        self._taken: dict[int, Trajectories] = {}  # index of its first rollout -> batch of consecutive ones

    @property
    def done(self) -> bool:
        return self.schedule.complete

    def take(self, worker: int, batch: Trajectories) -> Trajectories | None:
        indices = [index - self.base for index in batch.indices]
        steps = batch.steps.tolist()
        new = [self.schedule.finish(index, length) for index, length in zip(indices, steps, strict=True)]
        if not any(new):
            return None
        if all(new) and indices == list(range(indices[0], indices[0] + len(indices))):
            self._taken[indices[0]] = batch
        else:  # some were made twice, because their worker seemed to be gone
            for i, index in enumerate(indices):
                if new[i]:
                    self._taken[index] = batch.part(i, i + 1)
        self.steps += sum(length for length, first in zip(steps, new, strict=True) if first)
        self.episodes += int(batch.rollouts[new].sum())
        return batch

    def settled(self) -> Iterator[Trajectories]:
        while (batch := self._taken.get(self._settled)) is not None:
            self._settled += len(batch.rollouts)
            yield batch

    def wants(self, worker: int, mine: int) -> dict[str, Any] | None:
        count, ahead = self.schedule.share(self._workers)
        found: list[int] = []
        while (ahead or not mine) and len(found) < count and (index := self.schedule.take()) is not None:
            found.append(index + self.base)
        return {"indices": tuple(found)} if found else None

    def lose(self, indices: Iterable[int]) -> None:
        for index in indices:
            self.schedule.lose(index - self.base)

    def batches(self) -> list[Trajectories]:
        """All that belongs to the schedule, in the order of the result."""
        end, index, found = self.schedule.end, 0, []
        assert end is not None
        while index < end:
            batch = self._taken[index]
            found.append(batch.part(0, min(len(batch.rollouts), end - index)))
            index += len(batch.rollouts)
        return found
