"""How far a run is, told while it goes on: the same for collecting, evaluating and sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from treadle.pool.pool import Pool
from treadle.progress import Standing, throttled
from treadle.worker.worker import Worker

Tell = Callable[[Standing], None] | None  # called with the standing of a run while it goes on; None: nobody looks

PATIENCE = 0.1  # seconds between two looks at workers that say nothing


@dataclass
class Tally:
    """What a run has done so far."""

    steps: int = 0
    episodes: int = 0
    restarts: int = 0
    added: int = 0  # workers
    speculative: int = 0
    by_worker: dict[int, int] = field(default_factory=dict)  # worker -> steps


class Watch:
    """Keeps a run's standing up to date and tells it, at most ten times a second, also between two episodes.

    Steps under way are counted by the looks of workers (`Line.looks`) since they were last heard of: a worker that
    plays `rows` environments looks once for all of their steps. That is a little less than they have made, and exact
    again with each result.

    Args:
        now: where the run begins.
        tell: called with `now`. None: nobody looks, and nothing is kept.
        rows: environments a worker.

    Attributes:
        wanted: does anybody look?
    """

    def __init__(self, now: Standing, tell: Tell, rows: int = 1) -> None:
        self.now, self._rows = now, rows
        self._at_last = tell
        self._tell = None if tell is None else throttled(tell)
        self.wanted = tell is not None
        self._looks: dict[int, int] = {}  # worker -> its looks when it was last heard of

    def begin(self, pool: Pool) -> None:
        """These workers are about to play."""
        self._workers = pool.workers
        if self._tell is None:
            return
        for worker in self._workers:
            self._looks[worker.index] = worker.looks()
            if worker.inline:  # while it plays nobody else runs
                worker.looked = self.look
        self._tell(self.now)

    def patience(self, seconds: float | None) -> float | None:
        """How long to wait for news: `seconds` (None: for ever), or less where somebody looks."""
        if self._tell is None:
            return seconds
        return PATIENCE if seconds is None else min(seconds, PATIENCE)

    def heard(self, worker: Worker, episodes: int, steps: int, returns: float) -> None:
        """A worker has finished so many episodes, of so many steps and with such returns together."""
        if self._tell is None:
            return
        self._looks[worker.index] = worker.looks()
        now = self.now
        now.episodes += episodes
        now.made += episodes
        now.steps += steps
        now.made_steps += steps
        now.return_sum += returns

    def look(self) -> None:
        """See how far it is, and tell."""
        if self._tell is None:
            return
        looks = 0
        for worker in self._workers:
            count = worker.looks()
            before = self._looks[worker.index] = min(count, self._looks.get(worker.index, 0))  # less: another's
            looks += count - before
        self.now.under_way = looks * self._rows
        self._tell(self.now)

    def end(self) -> None:
        """Nobody plays any more."""
        if self._at_last is not None:
            for worker in self._workers:
                if worker.inline:
                    worker.looked = None
            self.now.under_way = 0
            self._at_last(self.now)
