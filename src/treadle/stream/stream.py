"""The loop of every stream: take what workers have made, ask for more, hand out results.

Three parts decide, and the loop alone calls `Calls.poll`:

| part | decides | examples |
|---|---|---|
| source | what is made, and when it is enough | the indices of a schedule; at least so many steps |
| courier | how a worker is asked, and how its answers are read | orders of indices; a row to each slot |
| fate | what a death means | the indices again, elsewhere; the end of the run |

A `Watch` passes on the standing of a run while it goes on: the same for collecting, evaluating and sampling.
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

Tell = Callable[[Standing], None] | None  # called with the standing of a run while it goes on; None: not called

PATIENCE = 0.1  # seconds between two looks at workers that send nothing


@dataclass
class Tally:
    """The counts of a run so far."""

    steps: int = 0
    episodes: int = 0
    restarts: int = 0
    added: int = 0  # workers
    speculative: int = 0
    by_worker: dict[int, int] = field(default_factory=dict)  # worker -> steps


class Watch:
    """Keeps a run's standing up to date and passes it on, at most ten times a second, also between two episodes.

    Steps under way are counted by the looks of workers (`Line.looks`) since their latest result. A worker that plays
    `rows` environments looks once for all of their steps. That is a little less than they have made, and exact again
    with each result.

    Args:
        now: where the run begins.
        tell: called with `now`. None: it is not called, and nothing is kept.
        rows: environments a worker.

    Attributes:
        wanted: True if there is a `tell`.
    """

    def __init__(self, now: Standing, tell: Tell, rows: int = 1) -> None:
        self.now, self._rows = now, rows
        self._at_last = tell
        self._tell = None if tell is None else throttled(tell)
        self.wanted = tell is not None
        self._looks: dict[int, int] = {}  # worker -> its looks at its latest result

    def begin(self, pool: Pool) -> None:
        """Begin to watch these workers, which are about to play."""
        self._workers = pool.workers
        if self._tell is None:
            return
        for worker in self._workers:
            self._looks[worker.index] = worker.looks()
            if worker.inline:  # while it plays, the caller's thread does nothing else
                worker.looked = self.look
        self._tell(self.now)

    def patience(self, seconds: float | None) -> float | None:
        """Return how long to wait for news: `seconds` (None: for ever), or less where there is a `tell`."""
        if self._tell is None:
            return seconds
        return PATIENCE if seconds is None else min(seconds, PATIENCE)

    def heard(self, worker: Worker, episodes: int, steps: int, returns: float) -> None:
        """Count the episodes that a worker has finished, with their steps and the sum of their returns."""
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
        """Count the steps under way, and call `tell`."""
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
        """Stop watching, as the workers have stopped playing, and call `tell` for the last time."""
        if self._at_last is not None:
            for worker in self._workers:
                if worker.inline:
                    worker.looked = None
            self.now.under_way = 0
            self._at_last(self.now)


Made = TypeVar("Made")
MadeBy = TypeVar("MadeBy", covariant=True)


class Source(Protocol):
    """The items to be made.

    The loop needs only this; a courier may need more of its own source, as those of `sample` need `ByIndex`.
    """

    @property
    def done(self) -> bool:
        """True once there is enough."""


class Courier(Protocol[MadeBy]):
    """Asks workers, and reads their answers."""

    def give(self, held: int) -> None:
        """Ask for what is wanted now. held: results that the caller has not had yet."""

    def answered(self, event: Done) -> Iterable[MadeBy]:
        """Return the results in an answer; the fate gets what a program raised."""

    def ready(self, worker: Worker) -> None:
        """Note that a worker was started in the place of another, or was added."""

    def gone(self, event: Lost) -> None:
        """Note that a worker has failed; the fate gets the items that it was asked for."""

    def patience(self) -> float | None:
        """Return the seconds after which `give` may have something to do without any event; None: never."""


class Fate(Protocol):
    """Decides what failures mean."""

    @property
    def over(self) -> bool:
        """True if a failure is due that ends the stream."""

    def died(self, event: Lost) -> None:
        """Note that a worker has failed. Raises WorkerError where that ends the stream."""


class Stream(Generic[Made]):
    """Yields results until the source is done or the fate is over.

    All events that were taken are carried out before the first error among them is raised. Results are handed out after
    the next requests have been sent, because the caller may take long over them.
    """

    def __init__(self, calls: Calls, source: Source, courier: Courier[Made], fate: Fate, watch: Watch) -> None:
        self.calls, self.source, self.courier, self.fate, self.watch = calls, source, courier, fate, watch

    def __iter__(self) -> Iterator[Made]:
        self.courier.give(0)
        while not self.source.done and not self.fate.over:
            yield from self.turn()

    def turn(self, seconds: float | None = None) -> list[Made]:
        """Run one round and return its results. Waits at most `seconds` for events (None: until the courier acts)."""
        made = self.hear(seconds)
        self.watch.look()
        if not self.source.done:
            self.courier.give(len(made))
        return made

    def hear(self, seconds: float | None = None) -> list[Made]:
        """Wait for events as `turn` does, and return their results."""
        patience = self.watch.patience(self.courier.patience())
        limits = [each for each in (seconds, patience) if each is not None]
        events: list[Event] = []
        self.calls.poll(min(limits, default=None), events.append)
        return self._carry_out(events)

    def drain(self) -> None:
        """Take all answers that are still awaited."""
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
            del error  # its traceback refers to this frame
