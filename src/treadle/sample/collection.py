"""One run of whole episodes at work: the same bytes for any number of workers.

A run is a stream of indices (`schedule.py`) to workers that play by themselves (`orders.py`), or whose policy is asked
here (`rows.py`). After a worker's death its episodes are made again (`fate.py`); `pool/calls.py` decides whether
another worker takes its place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from treadle.interrupts import Closes
from treadle.play.recipe import RolloutRecipe, Shares
from treadle.play.rounds import Globals
from treadle.pool.events import Done, Lost
from treadle.pool.pool import Pool
from treadle.pool.spent import Spent
from treadle.sample.failed import CollectionFailed
from treadle.sample.fate import ByIndexFate, spaces_played
from treadle.sample.growth import AT_ONCE, Growth
from treadle.sample.inference import ENVS_PER_WORKER
from treadle.sample.orders import Orders
from treadle.sample.rows import Rows
from treadle.sample.schedule import ByIndex, Schedule
from treadle.stream.stream import Courier, Stream, Tell, Watch
from treadle.verdict import verdict
from treadle.wire import bell
from treadle.worker.options import MOST_WORKERS
from treadle.worker.worker import Worker

log = logging.getLogger("treadle")

CALLER = -1  # in the place of a worker's number, where shares are the caller's
SHARES = "shares"  # what slots are asked for, see `Shares`
GLOBALS = {"process": Globals.SEED, "serial": Globals.SWAP, "thread": Globals.LEAVE}
Kind = Callable[[RolloutRecipe, Pool, ByIndex, ByIndexFate], Courier[tuple[int, int, Any]]]
OF_FATE = ("skipping", "failures", "keep")  # options of a run that are its fate's


class Growing:
    """A courier whose workers become more: what another one does, and now and then workers are added."""

    def __init__(self, pool: Pool, source: ByIndex, courier: Orders | Rows, fate: ByIndexFate) -> None:
        self._source, self._courier, self._fate = source, courier, fate
        self.growth, self.answered = Growth(pool, courier.work), courier.answered

    def give(self, held: int) -> None:
        """As the other one, and look whether workers are to be added."""
        self._courier.give(held)
        if self._fate.failure is None:
            self.growth.turn(self._courier.more(), self._source.left())

    def ready(self, worker: Worker) -> None:
        """It may be one that was added."""
        if not worker.restarts and not worker.retired:
            self._source.workers += 1
            self._source.tally.added += 1
        self._courier.ready(worker)

    def gone(self, event: Lost) -> None:
        """Where one that was added cannot be built, the next one cannot either."""
        if event.worker.extra:
            self.growth.stop()
        self._courier.gone(event)

    def patience(self) -> float | None:
        """As the other's, or until the next look."""
        return self.growth.patience(self._courier.patience())


class Collection(Closes):
    """One run. Iterate it for (index, length, result) in order of arrival; then `shares()`, and `close()`.

    Args:
        recipe: how an episode is played.
        pool: the workers, which are closed with it.
        source: the indices of the episodes.
        courier: makes the courier, which asks the workers, from the arguments above and the fate.
        fate: makes the fate, which decides on failures, from the arguments above and the watch.
        tell: None, or called with the `Standing` of the run at work.

    Attributes:
        rows: the courier that asks the policy in the caller; None: workers ask by themselves.
        spent: how its time went by.
    """

    def __init__(
        self, recipe: RolloutRecipe, pool: Pool, source: ByIndex, courier: Kind, fate: Callable[..., Any], tell: Tell
    ) -> None:
        self.pool, self.source, self.tally, self.spent = pool, source, source.tally, Spent(pool)
        self._growth: Growth | None = None
        try:
            watch = Watch(source.schedule.standing(), tell, recipe.rows)
            self.fate: ByIndexFate = fate(recipe, pool, source, watch)
            asks = courier(recipe, pool, source, self.fate)
        except BaseException:
            pool.close()
            raise
        self.rows = asks if isinstance(asks, Rows) else None
        if pool.later and isinstance(asks, Orders | Rows):
            asks = Growing(pool, source, asks, self.fate)
            self._growth = asks.growth
        self.stream = Stream(pool.calls, source, asks, self.fate, watch)

    @property
    def spaces(self) -> tuple[Any, Any]:
        """Of the environments: observation space, action space."""
        return spaces_played(self.pool.descriptions[0])

    def stats(self) -> dict[str, float]:
        """How the policy was asked, where that is in the caller; else {}."""
        return {} if self.rows is None else self.rows.former.stats()

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        growth, stream = self._growth, self.stream
        self.source.begin()
        if growth is not None:
            growth.begin()
        try:
            stream.watch.begin(self.pool)
            self.spent.leave()
            for each in stream:
                self.spent.leave()
                before = time.monotonic()
                yield each
                self.spent.enter()
                if growth is not None:
                    growth.away += time.monotonic() - before
            self.spent.leave()
            stream.watch.end()
            self.fate.end()
        except CollectionFailed as error:
            self.fate.record(error)
            raise
        schedule = self.source.schedule
        self.tally.speculative = len(schedule.issued) + len(schedule.speculative)

    def again(self, schedule: Schedule, root: int, watch: Watch) -> None:
        """Begin another run of slots that the caller steps: iterate once more. Episodes in play are given up."""
        assert self.rows is not None
        self.stream.drain()  # steps of environments: nobody waits for more than what each is at
        self.rows.forget()
        self.source.again(schedule, root)
        self.fate.again(watch)
        self.stream.watch = watch

    def shares(self) -> dict[int, Shares]:
        """Seconds spent, per worker; under `CALLER` a policy's time that is the caller's. Ends the run: workers are
        asked once their streams are over."""
        self.pool.calls.stop()
        self.pool.ask(SHARES)
        found: dict[int, Shares] = {}
        for event in self.pool.answers(SHARES, self.pool.options.close_timeout):
            if isinstance(event, Lost):
                log.warning("%s", event.error)
            elif isinstance(event, Done) and event.tag is SHARES and event.reply.extras is not None:
                found[event.worker.index] = Shares.together(event.reply.extras.infos.values())
        if self.rows is not None:
            found[CALLER] = Shares(policy=self.rows.former.stats()["policy_seconds"])
        return found

    def verdict(self, shares: dict[int, Shares], steps: int) -> str:
        """The verdict on a run of so many steps, of which workers have spent these shares."""
        workers, fixed = [each for at, each in shares.items() if at != CALLER], self._growth is None
        mean = Shares.together(workers).over(len(workers)) if workers else Shares()
        more: dict[str, Any] = {"policy": mean.policy, "encode": mean.encode, "resets": mean.reset, "fixed": fixed}
        if not mean.busy:
            return ""
        if self.rows is not None:
            more["slots"] = self.pool.n - self.pool.later
        elif fixed and self.pool.options.backend == "process":
            more["slots"] = max(len(workers), min(AT_ONCE, self.source.schedule.finished))
        found = self.spent.figures(steps, tuple(each.busy for each in workers), **more)
        if self.rows is not None:
            found = replace(found, away=max(found.away, shares[CALLER].policy), asked=self.rows.former.fitted())
        return str(verdict(found))

    def warn(self) -> None:
        """Log remarks and failures that were not logged at once, for faces that do not show them otherwise."""
        for text in self.notes():
            log.warning("%s", text)
        self.fate.failures.close(self.tally.restarts)

    def notes(self) -> list[str]:
        """The remarks that were not logged at once."""
        return [text for kind, (_, text) in self.fate.remarks.items() if kind != "endless"]

    def close(self) -> None:
        """Close the workers, and let go of the policy."""
        self.pool.close()
        if self.rows is not None:
            self.rows.policy.close()


def run_here(
    recipe: RolloutRecipe,
    source: ByIndex,
    fate: Callable[..., ByIndexFate] = ByIndexFate,
    *,
    workers: int | None = None,
    backend: str = "process",
    tell: Tell = None,
    **options: Any,
) -> Collection:
    """A run with workers of this machine.

    Args:
        recipe: how an episode is played: with the policy in the workers or, with `asking`, in the caller.
        source: the indices of the episodes.
        fate: decides on failures.
        workers: number of workers; None: as many processes as cores, and more where their environments wait. Threads,
            which are for such environments: one an environment, or `ENVS_PER_WORKER` a core. At most one an episode.
        backend: "process", "serial" or "thread".
        tell: None, or called with the `Standing` of the run at work.
        options: of the fate (`OF_FATE`), and for the pool, whose on_failure is "restart" by default. A worker is
            replaced as often as that advances the run; with max_restarts, as often as that in ten minutes. Under
            "drop" it is not replaced, and the others go on.
    """
    kind: type[Orders] | type[Rows] = Orders if recipe.asking is None else Rows
    most = min(MOST_WORKERS, source.unmade) if Growth.possible(workers, backend, options.get("start_method")) else 0
    count, played = workers or bell.cores() * (ENVS_PER_WORKER if backend == "thread" else 1), recipe
    if backend == "thread" and workers is None and recipe.asking is not None:  # one an environment
        count = recipe.asking.num_envs or count
        played = replace(recipe, asking=replace(recipe.asking, num_envs=count))
    count = 1 if backend == "serial" else source.bounded(count)
    fate = partial(fate, **{name: options.pop(name) for name in OF_FATE if name in options})
    options = {"on_failure": "restart", "prints": True, "max_restarts": None, "backend": backend, **options}
    pool = kind.pool(played, source, count, most, GLOBALS.get(backend, Globals.SEED), **options)
    return Collection(recipe, pool, source, kind, fate, tell)
