"""Stop rules: when a sampling has enough, and which rollouts it takes in which order. Pure decisions, no processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treadle.sample.schedule import Schedule
from treadle.samplers.trajectories import Trajectories


class StopRule:
    """Base of stop rules.

    Attributes:
        needs_all: True if the rule cannot be kept once a worker is gone.
        ahead: orders of one sampling that a worker may have at a time.
    """

    needs_all, ahead = False, 1

    def __init__(self) -> None:
        self._told = 0
        self._result: list[Trajectories] = []  # taken batches whose place in the result is certain, in order

    @property
    def done(self) -> bool:
        """Return True if there is enough."""
        raise NotImplementedError

    def wants(self, worker: int, mine: int) -> dict[str, Any] | None:
        """Return fields of the next `SamplerOrder` of a worker that has `mine` of them; None: no order."""
        raise NotImplementedError

    def lose(self, indices: Iterable[int]) -> None:
        """Make these indices again, as the worker that had them is gone."""

    def take(self, worker: int, batch: Trajectories) -> Trajectories | None:
        """Return the part of the batch that is taken; None: the batch is dropped."""
        raise NotImplementedError

    def settled(self) -> list[Trajectories]:
        """Return taken batches whose place in the result has become certain, in order, each once."""
        new, self._told = self._result[self._told :], len(self._result)
        return new

    def batches(self) -> list[Trajectories]:
        """Return all taken batches in the order of the result, once there is enough."""
        return self._result


class AtLeast(StopRule):
    """Takes whole rollouts in order of arrival, until there are enough steps.

    Args:
        steps: the steps wanted, at least 1.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.wanted = 0, steps

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
        self._result.append(taken)
        return taken


class Exactly(StopRule):
    """Takes a number of episodes of each worker, in worker order.

    Args:
        episodes: of each worker, at least 1.
        workers: how many workers there are.
    """

    needs_all = True

    def __init__(self, episodes: int, workers: int) -> None:
        super().__init__()
        self.each, self.episodes, self.wanted = episodes, 0, episodes * workers
        self.have = [0] * workers
        self._turn = 0  # the worker whose batches are next
        self._taken: list[list[Trajectories]] = [[] for _ in range(workers)]

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
        self.episodes += count
        self._taken[worker].append(taken)
        while self._turn < len(self.have):
            self._result += self._taken[self._turn]
            self._taken[self._turn] = []
            if self.have[self._turn] < self.each:
                break
            self._turn += 1
        return taken


class AtLeastByIndex(StopRule):
    """Takes the rollouts of a schedule, in order of index.

    Args:
        schedule: its indices are 0, 1, 2, ...
        workers: how many workers there are.
        base: added to an index to seed its rollout; earlier samplings have used the numbers below.
    """

    ahead = 2

    def __init__(self, schedule: Schedule, workers: int, base: int = 0) -> None:
        super().__init__()
        self.schedule, self.base, self.workers = schedule, base, workers
        self._next = 0  # the index that is next in the result
        self._taken: dict[int, Trajectories] = {}  # index of its first rollout -> batch of consecutive ones

    @property
    def done(self) -> bool:
        return self.schedule.complete

    def take(self, worker: int, batch: Trajectories) -> Trajectories | None:
        indices = [index - self.base for index in batch.indices]
        lengths = batch.steps.tolist()
        new = [self.schedule.finish(index, length) for index, length in zip(indices, lengths, strict=True)]
        if not any(new):
            return None
        if all(new) and indices == list(range(indices[0], indices[0] + len(indices))):
            self._taken[indices[0]] = batch
        else:  # some were made twice, because their worker seemed to be dead
            for i, index in enumerate(indices):
                if new[i]:
                    self._taken[index] = batch.part(i, i + 1)
        while (following := self._taken.pop(self._next, None)) is not None:
            self._result.append(following)
            self._next += len(following.rollouts)
        return batch

    def wants(self, worker: int, mine: int) -> dict[str, Any] | None:
        count, ahead = self.schedule.share(self.workers)
        found: list[int] = []
        while (ahead or not mine) and len(found) < count and (index := self.schedule.take()) is not None:
            found.append(index + self.base)
        return {"indices": tuple(found)} if found else None

    def lose(self, indices: Iterable[int]) -> None:
        for index in indices:
            self.schedule.lose(index - self.base)

    def batches(self) -> list[Trajectories]:
        left, found = self.schedule.end or 0, list[Trajectories]()
        for batch in self._result:
            if left > 0:
                found.append(batch.part(0, min(len(batch.rollouts), left)))
                left -= len(batch.rollouts)
        return found
