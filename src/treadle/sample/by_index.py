"""Episodes by index: which of them a run is to make, who was asked for which, and how many there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from treadle.sample.schedule import Schedule
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
        least: indices that are out however little room there is.
        tally: what was made.
    """

    def __init__(self, schedule: Schedule, root: int, room: Callable[[int], bool] | None = None) -> None:
        self.schedule, self.root, self._room = schedule, root, room or (lambda outstanding: True)
        self.dealt: dict[int, dict[int, None]] = defaultdict(dict)
        self.given: dict[int, int] = defaultdict(int)
        self.alone: dict[int, list[int]] = {}
        self.least, self.tally = 0, Tally(by_worker={})

    @property
    def done(self) -> bool:
        """Is all there?"""
        return self.schedule.complete

    def again(self, schedule: Schedule, root: int) -> None:
        """Another run begins: nobody was asked for anything."""
        self.schedule, self.root = schedule, root
        for mine in self.dealt.values():
            mine.clear()
        self.alone.clear()

    def take(self, most: int, held: int) -> list[int]:
        """The next indices, `most` of them and no more than the caller has room for, who holds so many already."""
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

    def finish(self, worker: int, index: int, length: int) -> bool:
        """Note an episode that a worker has made; did the run want it?"""
        del self.dealt[worker][index]
        wanted = self.schedule.finish(index, length)
        if wanted:
            self.tally.steps += length
            self.tally.episodes += 1
        return wanted
