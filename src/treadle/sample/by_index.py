"""Episodes by index: which of them a run is to make, who was asked for which, and how many there are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from time import monotonic

from treadle.play.recipe import BATCH, BATCH_SECONDS
from treadle.sample.schedule import AHEAD, Schedule
from treadle.stream.watch import Tally


class ByIndex:
    """A source of indices, see `treadle.stream.stream`.

    Args:
        schedule: which episodes.
        root: the run's seed.
        room: asked before an index is handed out beyond `least`: may the caller take more results?

    Attributes:
        schedule, root: of the present run.
        dealt: worker -> indices that it was asked for and has not told of, in the order in which it was asked.
        given: worker -> how many its present process was asked for.
        alone: worker -> what it plays first, each by itself.
        workers: that play, or have; the courier says.
        least: indices that are out however little room there is.
        ahead: indices that a worker has, besides those that it plays, before anybody looks whether it has enough.
        bounds: is there a bound to the results that the caller takes?
        together: results that a worker may tell of at a time, and how long one waits for others.
        tally: what was made.
    """

    ahead: float = AHEAD
    together = BATCH, BATCH_SECONDS

    def __init__(self, schedule: Schedule, root: int, room: Callable[[int], bool] | None = None) -> None:
        self.schedule, self.root = schedule, root
        self.bounds, self._room = room is not None, room or (lambda outstanding: True)
        self.dealt: dict[int, dict[int, None]] = defaultdict(dict)
        self.given: dict[int, int] = defaultdict(int)
        self.alone: dict[int, list[int]] = {}
        self.workers, self.least, self.tally = 1, 0, Tally()
        self._since, self._before, self._last = monotonic(), 0, True

    @property
    def done(self) -> bool:
        """Is all there?"""
        return self.schedule.complete

    def begin(self) -> None:
        """What is made counts from now on."""
        self._since, self._before = monotonic(), self.tally.episodes

    def again(self, schedule: Schedule, root: int) -> None:
        """Another run begins, as others may: nobody was asked for anything."""
        self.schedule, self.root, self._last = schedule, root, False
        for mine in self.dealt.values():
            mine.clear()
        self.alone.clear()

    def bounded(self, count: int) -> int:
        """So many workers, or slots, but no more than there are indices to make: others would find nothing to do."""
        schedule = self.schedule
        if schedule.end is None:
            return count
        return max(1, min(count, schedule.end - len(schedule.lengths) - len(schedule.skipped)))

    @property
    def unmade(self) -> float:
        """Indices that are still to be taken, as far as is known."""
        return self.schedule.to_hand_out(self.schedule.mean)

    def left(self) -> float:
        """Seconds that it goes on with the workers that there are; inf: nobody knows, or there are further runs."""
        made, left = self.tally.episodes - self._before, max(0.0, self.unmade) + len(self.schedule.issued)
        return left * (monotonic() - self._since) / made if made and self._last else math.inf

    def share(self, workers: int) -> tuple[int, int]:
        """See `Schedule.share`."""
        return self.schedule.share(workers)

    def take(self, worker: int, most: int, held: int) -> list[int]:
        """The next indices for a worker, `most` of them and no more than the caller has room for, who holds so many
        results already. Empty: it has enough, or there is nothing."""
        suspects = self.alone.get(worker)
        if suspects is not None:
            if self.dealt[worker]:
                return []
            if suspects:
                return [suspects.pop(0)]
            del self.alone[worker]
        schedule, found = self.schedule, list[int]()
        while len(found) < most:
            out = len(schedule.issued) + held
            if out >= self.least and not self._room(out):
                break
            index = schedule.take()
            if index is None:
                break
            found.append(index)
        return found

    def deal(self, worker: int, indices: list[int]) -> None:
        """A worker is asked for these."""
        self.dealt[worker].update(dict.fromkeys(indices))
        self.given[worker] += len(indices)

    def lose(self, worker: int, index: int) -> None:
        """Take an index back from a worker: another one makes it."""
        del self.dealt[worker][index]
        self.schedule.lose(index)

    def finish(self, worker: int, index: int, length: int, fit: bool = True) -> bool:
        """Note an episode that a worker has made; did the run want it?"""
        del self.dealt[worker][index]
        wanted = self.schedule.finish(index, length, fit)
        if wanted:
            self.tally.steps += length
            self.tally.episodes += 1
        return wanted
