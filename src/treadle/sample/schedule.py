"""The indices of a run's episodes, and the workers that have them: pure decisions, no processes.

(root seed, i) alone decides episode i. `--episodes N` means 0..N-1. `--steps N` means the shortest prefix 0..k whose
lengths add up to at least N. An episode counts by its index, not by its time of arrival, so short episodes are not
over-represented.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from time import monotonic

from treadle.play.recipe import BATCH, BATCH_SECONDS
from treadle.progress import Standing
from treadle.stream.stream import Tally

WINDOW = 8192  # how far a run may be ahead of its first unfinished episode
STEPS_IN_ORDER, MOST_IN_ORDER = 1600, 64
AHEAD = 32  # episodes that a worker may have besides those that it plays, so that it goes on while the caller is busy
SHARES_LEFT = 4  # that what is left is worth to each worker at any time


class Schedule:
    """Hands out indices, and knows when the run is complete.

    Args:
        episodes: number of episodes; None when `steps` decides, or without end.
        steps: at least so many steps in all.
        have: index -> length of episodes that exist already (a resumed run).
        skipped: episodes that the run goes on without, as if their indices did not exist.
        shard: (i, n): only the indices i, i + n, i + 2n, ... are made here, the others elsewhere.
        first: the first index.
        kept: the run ends with the episode that makes so many fit; None: all fit.
        unfit: those of `have` that do not fit.

    Attributes:
        upcoming: the lowest index that has never been handed out.
        prefix: all indices before it are finished or skipped.
        lengths: of the finished episodes from `prefix` on; the others are counted and forgotten.
        unfit: those of them that do not fit.
        finished, steps: number of finished episodes, and their steps.
    """

    def __init__(
        self,
        episodes: int | None = None,
        steps: int | None = None,
        have: dict[int, int] | None = None,
        skipped: Iterable[int] = (),
        shard: tuple[int, int] = (0, 1),
        first: int = 0,
        kept: int | None = None,
        unfit: Iterable[int] = (),
    ):
        self.episodes, self._steps = episodes, steps
        self.lengths: dict[int, int] = dict(have or {})
        self.skipped = set(skipped) - self.lengths.keys()
        self.unfit, self.kept, self._prefix_kept = set(unfit), kept, 0
        self.finished, self.steps, self._misfits = len(self.lengths), sum(self.lengths.values()), len(self.unfit)
        self._shard, self._of = shard
        self._there = len(self.lengths) + len(self.skipped)  # of those that are still to be handed out
        self.elsewhere = 0 if episodes is None else episodes - len(range(self._shard, episodes, self._of))
        self._there += self.elsewhere
        self.upcoming = first
        self._again: deque[int] = deque()
        self.issued: set[int] = set()  # handed out and not finished
        self.window = WINDOW
        self.prefix = first
        self.prefix_steps = 0
        self.end = None if episodes is None else first + episodes  # the run ends before it, as soon as that is known
        self._advance()

    def take(self) -> int | None:
        """The next index to make; None: nothing more is needed, as far as is known now."""
        if self._again:
            index = self._again.popleft()
        else:
            while self._is_settled(self.upcoming) or self._is_elsewhere(self.upcoming):
                self.upcoming += 1
                self._there -= 1
            if self.end is not None and self.upcoming >= self.end:
                return None
            if self.upcoming - self.prefix >= self.window:
                return None  # until the one that lags is finished
            index = self.upcoming
            self.upcoming += 1
        self.issued.add(index)
        return index

    def _is_settled(self, index: int) -> bool:
        return index < self.prefix or index in self.lengths or index in self.skipped

    def _is_elsewhere(self, index: int) -> bool:
        return index % self._of != self._shard

    @property
    def untaken(self) -> int | None:
        """Number of indices before the end that are still to be taken, perhaps negative; None: the end is not known."""
        return None if self.end is None else self.end - self.upcoming - self._there + len(self._again)

    def to_hand_out(self, mean: float) -> float:
        """About how many indices are still to be taken, if episodes are `mean` steps long; may be negative.

        It decides the sizes of orders, whether a node gets more, and how many workers are added. `take` alone decides
        what is made, so an estimate may be wrong.
        """
        left = self.untaken
        if left is not None:
            if self.kept is None or self.complete:
                return left
            tries = (1 + self.finished) / (1 + self.finished - self._misfits)  # for one that is fit
            return min(left, (self.kept - self._prefix_kept) * tries - (self.upcoming - self.prefix) + len(self._again))
        if self._steps is None:
            return math.inf
        return (self._steps - self.prefix_steps) / mean - (self.upcoming - self.prefix)

    @property
    def mean(self) -> float:
        """Steps of an episode, of those that are finished; 1 before any is."""
        return max(1.0, self.steps / self.finished) if self.finished else 1.0

    @property
    def goes_on(self) -> bool:
        """Return True if indices are left to take, as far as is known."""
        return self.to_hand_out(self.mean) > 0

    def share(
        self, workers: int, times: int = 1, shares: int = SHARES_LEFT, first: int = 1, ahead: float = AHEAD
    ) -> tuple[int, int]:
        """Return the size of a worker's order, and how many indices it may have besides those that it plays.

        Short episodes go in larger orders. Towards the end orders get smaller, and at last only an idle worker gets
        one: another worker could play an index that waits behind a long episode. `times`: factor on the orders of a
        distant worker. `shares`: orders that the rest is divided into for each worker. `first`: both numbers before any
        length is known. `ahead`: the largest second number.
        """
        mean = self.mean
        left = self.to_hand_out(mean) / (workers * shares)
        if not self.finished:
            return (max(1, int(min(first, left))),) * 2
        size = min(MOST_IN_ORDER * times, STEPS_IN_ORDER * times / mean, left)
        return max(1, int(size)), max(0, int(min(ahead, left)))

    def finish(self, index: int, length: int, fit: bool = True) -> bool:
        """Note a finished episode. False: it was settled before (made twice after a death) and is to be ignored."""
        self.issued.discard(index)
        if self._is_settled(index):
            return False
        self.lengths[index] = length
        if not fit:
            self.unfit.add(index)
            self._misfits += 1
        self.finished += 1
        self.steps += length
        self._advance()
        return True

    def skip(self, index: int) -> bool:
        """The run goes on without an episode. False: it was settled before."""
        self.issued.discard(index)
        if self._is_settled(index):
            return False
        self.skipped.add(index)
        self._advance()
        return True

    def lose(self, index: int) -> None:
        """An episode that was handed out will not come: it is made again."""
        if index in self.issued:
            self.issued.discard(index)
            self._again.append(index)

    def standing(self) -> Standing:
        """How far it is."""
        own = None if self.episodes is None else self.episodes - self.elsewhere
        return Standing(own, self._steps, episodes=self.finished, steps=self.steps)

    @property
    def complete(self) -> bool:
        return self.end is not None and self.prefix >= self.end

    @property
    def speculative(self) -> list[int]:
        """Indices that were finished but turned out not to belong to the run."""
        return [] if self.end is None else sorted(i for i in self.lengths if i >= self.end)

    def _advance(self) -> None:
        while self.end is None or self.prefix < self.end:
            if self.prefix not in self.skipped and not self._is_elsewhere(self.prefix):
                if self.prefix not in self.lengths:
                    return
                self.prefix_steps += self.lengths.pop(self.prefix)
                self._prefix_kept += self.prefix not in self.unfit
                self.unfit.discard(self.prefix)
            self.prefix += 1
            enough = self._steps is not None and self.prefix_steps >= self._steps
            if enough or (self.kept is not None and self._prefix_kept >= self.kept):
                self.end = self.prefix


class ByIndex:
    """A source of indices, see `treadle.stream.stream`.

    Args:
        schedule: the indices.
        root: the run's seed.
        room: called before an index beyond `least` is handed out; returns True if the caller may take more results.

    Attributes:
        schedule, root: of the present run.
        dealt: worker -> indices that it has and has sent no result of, in the order in which they were dealt.
        given: worker -> number of indices that its present process got.
        alone: worker -> indices that it plays first, each by itself.
        workers: number of workers that play, or have played; the courier sets it.
        least: indices that are out even without room.
        ahead: indices that a worker has, besides those that it plays, before its orders are counted.
        bounds: True if the results that the caller takes have a bound.
        together: results that a worker may send at a time, and the seconds that one waits for others.
        tally: counts of the episodes that were made.
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
        """Return True if the run is complete."""
        return self.schedule.complete

    def begin(self) -> None:
        """Begin to count episodes."""
        self._since, self._before = monotonic(), self.tally.episodes

    def again(self, schedule: Schedule, root: int) -> None:
        """Begin another run: no index is dealt."""
        self.schedule, self.root, self._last = schedule, root, False
        for mine in self.dealt.values():
            mine.clear()
        self.alone.clear()

    def bounded(self, count: int) -> int:
        """So many workers, or slots, but no more than there are indices to make: others would find nothing to do."""
        untaken = self.schedule.untaken
        return count if untaken is None else max(1, min(count, untaken))

    @property
    def unmade(self) -> float:
        """Indices that are still to be taken, as far as is known."""
        return self.schedule.to_hand_out(self.schedule.mean)

    def left(self) -> float:
        """Return the seconds that the run takes with its workers; inf: unknown, or further runs follow."""
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
        """Note an episode of a worker; return True if the run wanted it."""
        del self.dealt[worker][index]
        wanted = self.schedule.finish(index, length, fit)
        if wanted:
            self.tally.steps += length
            self.tally.episodes += 1
        return wanted
