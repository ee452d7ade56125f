"""How far a run is, and what fails in it, told while it goes on: the same for collecting, evaluating and sampling."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from treadle.errors import WorkerError
from treadle.pool.pool import Pool
from treadle.pool.worker import Worker
from treadle.progress import Standing, throttled
from treadle.sample.failed import CollectionFailed, cause_of
from treadle.sample.skipping import Skipped, grouped

log = logging.getLogger("treadle")

PATIENCE = 0.1  # seconds between two looks at workers that say nothing
APART = 1.0  # seconds between two lines about failures of one cause


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

    def __init__(self, now: Standing, tell: Callable[[Standing], None] | None, rows: int = 1) -> None:
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


class Failures:
    """What has failed in a run. Each failure is logged, but of one cause at most one line in `APART` seconds.

    Args:
        left_out: episodes that an earlier part of the run went on without.
        note: called whenever there is one more.

    Attributes:
        left_out: episodes that the run goes on without, by index.
    """

    def __init__(self, left_out: Iterable[Skipped] = (), note: Callable[[Failures], None] | None = None) -> None:
        self.left_out, self._note = {each.index: each for each in left_out}, note or (lambda failures: None)
        self._unsaid = False
        self._due: dict[Any, float] = {}  # kind of line, cause -> when the next may come

    def __str__(self) -> str:
        """The episodes that were left out, by cause."""
        return "; ".join(grouped(self.left_out.values())) or "none"

    def warn(self, what: str, error: WorkerError, text: str) -> None:
        """A failure. `what`: lines of another kind about the same cause are told apart by it."""
        key, now = (what, cause_of(error)), monotonic()
        if now < self._due.get(key, 0.0):
            self._unsaid = True
            return
        self._due[key] = now + APART
        log.warning("%s", text)

    def leave_out(self, index: int, error: CollectionFailed) -> None:
        """An episode is left out. What it can be replayed from is written already, as DIR/failures/NAME."""
        at: Any = error.where
        path = getattr(error.repro, "path", None)
        repro = "/".join(path.parts[-2:]) if path else ""
        self.left_out[index] = Skipped(index, at.seed, error.reason, step=at.step, repro=repro, **vars(error.cause))
        self._note(self)
        self.warn("left out", error, f"{error}; it is left out")

    def close(self, restarts: int) -> None:
        """The run has ended, having replaced so many workers: log what was not."""
        if self._unsaid:
            log.warning("workers replaced in all: %d; episodes left out: %s", restarts, self)
