"""The loop of every stream: hear what workers have made, ask for more, hand out what was made.

Three parts decide, and the loop alone calls `Calls.poll`:

| part | decides | examples |
|---|---|---|
| source | what is made, and when it is enough | the indices of a schedule; at least so many steps |
| courier | how a worker is asked, and how its answers are read | orders of indices; a row to each slot |
| fate | what a death means | the indices again, elsewhere; the end of the run |

How far a run is, told while it goes on: the same for collecting, evaluating and sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from treadle.errors import WorkerError
from treadle.pool.calls import Calls
from treadle.pool.events import Done, Event, Lost
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


Made = TypeVar("Made")
MadeBy = TypeVar("MadeBy", covariant=True)


class Source(Protocol):
    """What is to be made. The loop asks for this alone; a courier asks more of its own source, as those of `sample` do
    of `ByIndex`."""

    @property
    def done(self) -> bool:
        """Is there enough?"""


class Courier(Protocol[MadeBy]):
    """How workers are asked."""

    def give(self, held: int) -> None:
        """Ask for what is wanted now. held: results that the caller has not had yet."""

    def answered(self, event: Done) -> Iterable[MadeBy]:
        """What an answer brings; what a program raised is the fate's."""

    def ready(self, worker: Worker) -> None:
        """A worker was started in the place of another, or was added."""

    def gone(self, event: Lost) -> None:
        """A worker has failed; what it was asked for is the fate's."""

    def patience(self) -> float | None:
        """Seconds after which `give` may have something to do although nothing has happened; None: never."""


class Fate(Protocol):
    """What failures mean."""

    @property
    def over(self) -> bool:
        """Is a failure due that ends the stream?"""

    def died(self, event: Lost) -> None:
        """A worker has failed. Raises WorkerError where that ends the stream."""


class Stream(Generic[Made]):
    """Iterate it for what is made, until the source is done or the fate says that it is over.

    Everything that was heard is carried out before the first error of it is raised. Results are handed out after the
    next requests have been sent, because the caller may take long over them.
    """

    def __init__(self, calls: Calls, source: Source, courier: Courier[Made], fate: Fate, watch: Watch) -> None:
        self.calls, self.source, self.courier, self.fate, self.watch = calls, source, courier, fate, watch

    def __iter__(self) -> Iterator[Made]:
        self.courier.give(0)
        while not self.source.done and not self.fate.over:
            yield from self.turn()

    def turn(self, seconds: float | None = None) -> list[Made]:
        """One round, in which news are awaited for so many seconds at most (None: until the courier has to act)."""
        made = self.hear(seconds)
        self.watch.look()
        if not self.source.done:
            self.courier.give(len(made))
        return made

    def hear(self, seconds: float | None = None) -> list[Made]:
        """Wait for news as `turn` does, and take them."""
        patience = self.watch.patience(self.courier.patience())
        limits = [each for each in (seconds, patience) if each is not None]
        events: list[Event] = []
        self.calls.poll(min(limits, default=None), events.append)
        return self._carry_out(events)

    def drain(self) -> None:
        """Take all that is still awaited."""
        events: list[Event] = []
        while self.calls and self.calls.poll(None, events.append):
            self._carry_out(events)
            events.clear()

    def _carry_out(self, events: Iterable[Event]) -> list[Made]:
        made: list[Made] = []
        error: WorkerError | None = None
        for event in events:
            try:
                if isinstance(event, Done):
                    made += self.courier.answered(event)
                elif isinstance(event, Lost):
                    self.courier.gone(event)
                    self.fate.died(event)
                else:
                    self.courier.ready(event.worker)
            except WorkerError as another:
                error = error or another
        try:
            if error is not None:
                raise error
            return made
        finally:
            del error  # its traceback knows this frame
