"""Whole episodes from workers that play by themselves, the same bytes for any number of them.

`Collection` drives a pool of `RolloutSlot`s by a `Schedule`: it hands out short orders of episode indices, takes
results as they come, and stops when the schedule is complete. What a worker's death costs is made again; whether
another worker takes its place is decided in `pool/calls.py`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from treadle.errors import WorkerError
from treadle.play.episode import Episode
from treadle.play.pack import Pack
from treadle.play.recipe import BATCH, BATCH_SECONDS, Remark, Results, RolloutOrder, RolloutRecipe, Shares
from treadle.play.rounds import RolloutSlot
from treadle.play.slot import Globals
from treadle.pool import failure
from treadle.pool.calls import Done, Lost
from treadle.pool.pool import Pool
from treadle.progress import Standing
from treadle.repro import Repro
from treadle.sample import failed
from treadle.sample.by_index import ByIndex
from treadle.sample.failed import CollectionFailed, Failures
from treadle.sample.fate import ByIndexFate
from treadle.sample.growth import AT_ONCE, Growth
from treadle.sample.inference import ENVS_PER_WORKER
from treadle.sample.schedule import AHEAD, Schedule
from treadle.sample.skipping import Skipping
from treadle.stream.stream import Stream, answers
from treadle.stream.watch import Watch
from treadle.wire import bell
from treadle.wire.messages import Op, Raised
from treadle.worker import life
from treadle.worker.life import RestartPolicy
from treadle.worker.options import MOST_WORKERS
from treadle.worker.worker import Worker

log = logging.getLogger("treadle")

MOST_ORDERS = 12  # that one worker may have at a time
CALLER = -1  # in the place of a worker's number, where shares are the caller's
SHARES = "shares"  # the tag of the request for `Shares`


class Collection:
    """One run. Iterate it for (index, length, result) in order of arrival; then `shares()`, and `close()`.

    Args:
        recipe: what a worker plays.
        schedule: which episodes.
        root: the run's seed.
        workers: how many; None: as many as cores, and of processes more where their environments wait; of threads,
            which are for those, `ENVS_PER_WORKER` a core. No more than there are episodes to make.
        backend: "process", "serial" or "thread".
        room: asked before an index is handed out beyond one an environment: may the caller take more results?
        tell: None, or called with the `Standing` while it goes on.
        skipping: what becomes of an episode that fails; None: it ends the run, and there is no other way.
        failures: of the run; None: there were none before, and nobody looks at them.
        keep: called with the repro of each episode that has failed; see `failed.py`.
        pool_options: for the pool, with on_failure "restart" if nothing else is said. A worker is replaced as often as
            that gets the run on; with max_restarts, as often as that in ten minutes. Under "drop" it is not replaced,
            and the others go on.
    """

    _fate: type[ByIndexFate] = ByIndexFate  # what failures mean
    _packs = True  # small episodes, where they are sent to another process
    _reads = True  # such packs; else they are handed on as they are
    _growth: Growth | None = None  # adds workers
    _together = BATCH, BATCH_SECONDS  # results that a worker may tell of at a time, and how long one waits for others

    def __init__(
        self,
        recipe: RolloutRecipe,
        schedule: Schedule,
        *,
        root: int = 0,
        workers: int | None = None,
        backend: str = "process",
        room: Callable[[int], bool] | None = None,
        skipping: Skipping | None = None,
        failures: Failures | None = None,
        keep: Callable[[Repro], Any] | None = None,
        tell: Callable[[Standing], None] | None = None,
        **pool_options: Any,
    ) -> None:
        packs = self._packs and recipe.sink is None and (recipe.packs or (backend == "process" and recipe.rows == 1))
        self._recipe, self._asked_for = replace(recipe, packs=packs), recipe
        self.source, self._skips = ByIndex(schedule, root, room), skipping is not None and skipping.skip
        self.tally, self._keep = self.source.tally, keep or (lambda repro: None)
        self.failures = failures or Failures()
        self._grows = Growth.possible(workers, backend, pool_options.get("start_method"))
        count = workers or bell.cores() * (ENVS_PER_WORKER if backend == "thread" else 1)
        if schedule.end is not None:  # whoever would find nothing to do need not start
            count = max(1, min(count, schedule.end - len(schedule.lengths) - len(schedule.skipped)))
        if backend == "serial":
            count = 1
        globals = {"process": Globals.SEED, "serial": Globals.SWAP, "thread": Globals.LEAVE}.get(backend, Globals.SEED)
        pool_options.setdefault("on_failure", "restart")
        pool_options.setdefault("prints", True)
        pool_options.setdefault("max_restarts", None)
        self.workers = count
        self.source.least = count * recipe.rows
        self._most = recipe.rows + AHEAD  # that a worker has before anybody looks whether it has enough
        self.pool = self._pool(globals, backend=backend, workers=count, **pool_options)
        self.calls = self.pool.calls
        dealt, given = self.source.dealt, self.source.given
        self.calls.wear.played = lambda worker: given[worker.index] - len(dealt[worker.index])
        self.fate = self._fate(self.calls, self.source, skipping, self.failures, self._playing_in, self._record)
        self._growth = Growth(self.pool, self._work) if self.pool.later else None
        watch = Watch(schedule.standing(), tell, recipe.rows)
        self.stream = Stream(self.calls, self.source, self, self.fate, watch)

    @property
    def schedule(self) -> Schedule:
        """Of the present run."""
        return self.source.schedule

    @property
    def spaces(self) -> tuple[Any, Any]:
        """Of the environments: observation space, action space."""
        about = self.pool.descriptions[0]
        return about.observation_space, about.action_space

    def stats(self) -> dict[str, float]:
        """How the policy was asked, where that is in the caller; else {}."""
        return {}

    def _pool(self, globals: Globals, **options: Any) -> Pool:
        """The workers, each of which plays by itself."""
        later = self._later()
        factories = [partial(RolloutSlot, self._recipe, slot, globals) for slot in range(self.workers + later)]
        return Pool(factories, rows=False, later=later, **options)

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        try:
            yield from self._made()
        except CollectionFailed as error:
            self._record(error)
            raise

    def _record(self, error: CollectionFailed) -> None:
        if self.pool.options.recorder:
            failed.record(self._asked_for, self.source.root, error, self.spaces, self._keep)

    def _made(self) -> Iterator[tuple[int, int, Any]]:
        self._run_from, growth = (time.monotonic(), self.tally.episodes), self._growth
        if growth is not None:
            growth.begin()
        self.stream.watch.begin(self.pool)
        for each in self.stream:
            before = time.monotonic()
            yield each
            if growth is not None:
                growth.away += time.monotonic() - before
        self.stream.watch.end()
        self.fate.end()
        self.tally.speculative = len(self.schedule.issued) + len(self.schedule.speculative)

    def ready(self, worker: Worker) -> None:
        """A worker was started in the place of another, or was added."""
        self.fate.fresh.add(worker.index)
        self.source.given[worker.index] = 0
        if self._growth is not None and not worker.restarts and not worker.retired:  # it was added
            self.workers += 1
            self.source.least += self._recipe.rows
            self.tally.added += 1

    def gone(self, event: Lost) -> None:
        """A worker has failed; what it was asked for is the fate's."""
        if event.worker.extra and self._growth is not None:
            self._growth.stop()

    def patience(self) -> float | None:
        """See `Courier`."""
        patience = self.fate.patience()
        return patience if self._growth is None else self._growth.patience(patience)

    # -- workers that come later -------------------------------------------------------------------------------------

    def _later(self, most: int = MOST_WORKERS) -> int:
        """How many workers may be added."""
        return max(0, int(min(MOST_WORKERS, most, self._unmade()) - self.workers)) if self._grows else 0

    def _unmade(self) -> float:
        """Episodes that are to be handed out, as far as is known."""
        return self.schedule.to_hand_out(self.schedule.mean)

    def _left(self) -> float:
        """Seconds that the run goes on with the workers that there are; inf: nobody knows."""
        since, before = self._run_from
        made, left = self.tally.episodes - before, max(0.0, self._unmade()) + len(self.schedule.issued)
        return left * (time.monotonic() - since) / made if made else math.inf

    def _work(self, worker: Worker) -> tuple[float, int]:
        """See `Growth`. They always have something to do."""
        return time.monotonic(), worker.looks()

    # -- handing out -------------------------------------------------------------------------------------------------

    def give(self, held: int = 0) -> None:
        """Give orders to workers that have too little to do. `held`: results that the caller has not had yet."""
        dealt = self.source.dealt
        able = self._able()
        takers = [] if self.fate.failure is not None else [each for each in able if len(dealt[each.index]) < self._most]
        while takers:
            worker = min(takers, key=lambda each: len(dealt[each.index]))
            if indices := self._next(worker, held):
                self._send(worker, indices)
            else:
                takers.remove(worker)
        for worker in able:
            if dealt[worker.index] and not worker.owed:  # what it has begun goes on in its next order
                self._send(worker, [])
        if self._growth is not None and self.fate.failure is None:
            self._growth.turn(self._unmade(), self._left())

    def _able(self) -> list[Worker]:
        """Workers that may get orders: not those that have failed, nor those that are worn out, which are replaced as
        soon as they have nothing more to do."""
        able = [each for each in self.pool.workers if each.state in life.ALIVE and each.index not in self.fate.out]
        for worker in able if self.calls.wear.able and self.fate.failure is None else ():
            idle = worker.state is life.State.IDLE and not self.source.dealt[worker.index]
            if idle and (why := self.calls.wear.worn(worker)):
                self.calls.retire(worker, why)
        return [each for each in able if each.state in life.ALIVE]

    def _next(self, worker: Worker, held: int) -> list[int]:
        """What a worker is to make next. Empty: it has enough, or there is nothing."""
        suspects = self.source.alone.get(worker.index)
        if suspects is not None:
            if self.source.dealt[worker.index]:
                return []
            if suspects:
                return [suspects.pop(0)]
            del self.source.alone[worker.index]
        wanted = self._wants(worker, held)
        if wanted and self.calls.wear.able:
            wanted = min(wanted, self.calls.wear.left(worker, len(self.source.dealt[worker.index]), self._recipe.rows))
        return self.source.take(wanted, held)

    def _wants(self, worker: Worker, held: int) -> int:
        """How many indices a worker has room for."""
        rows, mine = self._recipe.rows, len(self.source.dealt[worker.index])
        size, ahead = self._share()
        if mine >= rows + ahead or len(worker.owed) >= MOST_ORDERS:
            return 0
        return max(size, rows - mine)

    def _share(self) -> tuple[int, int]:
        """See `Schedule.share`; those that are added are to find something to do."""
        return self.schedule.share(self.workers if self._growth is None else max(self.workers, AT_ONCE))

    def _send(self, worker: Worker, indices: list[int]) -> None:
        # what a death loses is made again, but for runs that end with it
        careful = worker.restarts or self.pool.policy is RestartPolicy.RAISE
        batch, seconds = (1 if careful else self._together[0]), self._together[1]
        order = RolloutOrder(self.source.root, tuple(indices), batch, self._skips, self.schedule.goes_on, seconds)
        self.source.deal(worker.index, indices)
        self.calls.submit(worker, Op.STREAM, dict.fromkeys(worker.slots, order), worker.slots, order)

    # -- taking ------------------------------------------------------------------------------------------------------

    def answered(self, event: Done) -> list[tuple[int, int, Any]]:
        extras, worker = event.reply.extras, event.worker
        if extras is None:
            return []
        for slot, raised in extras.raised.items():
            self.fate.raised(self._error(raised, slot, worker), worker)
        return [each for slot, ready in extras.infos.items() for each in self._results(ready, worker, slot)]

    def _results(self, ready: Sequence[tuple[int, int, Any]], worker: Worker, slot: int) -> Results:
        """Note what a slot has made; returns what the run did not have."""
        at, tally, found = worker.index, self.tally, Results()
        heard = self.stream.watch.heard if self.stream.watch.wanted else None
        if ready:
            self.fate.fresh.discard(at)
        steps = tally.steps
        for each in self._opened(ready, worker, slot) if self._reads else ready:
            index, length, result = each
            if type(result) is Pack:
                if sum([self.source.finish(at, *episode) for episode in result.lengths()]):
                    found.append(each)
            elif length:
                if self.source.finish(at, index, length):
                    found.append(each)
                    if heard is not None:
                        heard(worker, 1, length, result.total_reward)
            elif isinstance(result, Remark):
                self.fate.remark(index, result)
            else:
                del self.source.dealt[at][index]
                self.fate.skip(index, self._error(result.raised, slot, worker))
        tally.by_worker[at] = tally.by_worker.get(at, 0) + tally.steps - steps
        return found

    def _opened(self, ready: Sequence[tuple[int, int, Any]], worker: Worker, slot: int) -> Iterator[Any]:
        """Results, with the episodes of packs one by one. One that cannot be read has failed."""
        for each in ready:
            if type(each[2]) is not Pack:
                yield each
                continue
            for index, length, episode in each[2].episodes():
                if isinstance(episode, Episode):
                    yield index, length, episode
                else:
                    self.fate.raised(self._error(Raised.of(episode, "unpickle", episode=index), slot, worker), worker)

    def _error(self, raised: Raised, slot: int, worker: Worker) -> CollectionFailed:
        """What a slot's program raised."""
        return failed.raised(failure.task_error(raised, worker.at(slot)), self.source.root, len(self.schedule.lengths))

    def _playing_in(self, worker: Worker, error: WorkerError) -> tuple[list[int], bool]:
        """Which episodes a worker that died was playing, and had it begun nothing else?"""
        mine = list(self.source.dealt[worker.index])
        if self._recipe.rows > 1:
            playing = mine[: self._recipe.rows]
        else:  # it may have made some that it has not told of
            playing = [index for index in mine if index == error.where.episode]
        return playing, mine[:1] == playing[:1]

    def shares(self) -> dict[int, Shares]:
        """Seconds spent, per worker. Ends the run: workers are asked once their streams are over."""
        self.calls.stop()
        found: dict[int, Shares] = {}
        for worker in self.pool.workers:
            if worker.state in life.ALIVE:
                calls: dict[int, Any] = dict.fromkeys(worker.slots, ("shares", (), {}))
                self.calls.submit(worker, Op.CALL, calls, worker.slots, SHARES)
        for event in answers(self.calls, SHARES, self.pool.options.close_timeout):
            if isinstance(event, Lost):
                log.warning("%s", event.error)
            elif isinstance(event, Done) and event.tag is SHARES and event.reply.extras is not None:
                found[event.worker.index] = Shares.together(event.reply.extras.infos.values())
        return found

    def warn(self) -> None:
        """Log what was not logged at once: remarks, failures; for faces that do not tell of them otherwise."""
        for text in self.notes():
            log.warning("%s", text)
        self.failures.close(self.tally.restarts)

    def notes(self) -> list[str]:
        """The remarks that were not logged at once."""
        return [text for kind, (_, text) in self.fate.remarks.items() if kind != "endless"]

    def close(self) -> None:
        self.pool.close()

    def __enter__(self) -> Collection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
