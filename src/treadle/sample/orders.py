"""Whole episodes from workers that play by themselves, the same bytes for any number of them.

`Collection` drives a pool of `RolloutSlot`s by a `Schedule`: it hands out short orders of episode indices, takes
results as they come, and stops when the schedule is complete. What a worker's death costs is made again; whether
another worker takes its place is decided in `pool/calls.py`.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from treadle.errors import WorkerError
from treadle.play.episode import Episode
from treadle.play.pack import Pack
from treadle.play.recipe import BATCH, BATCH_SECONDS, SKIPPED, Remark, Results, RolloutOrder, RolloutRecipe, Shares
from treadle.play.rounds import RolloutSlot
from treadle.play.slot import Globals
from treadle.pool import failure
from treadle.pool.calls import Done, Lost
from treadle.pool.pool import Pool
from treadle.progress import Standing
from treadle.repro import Repro
from treadle.sample import failed
from treadle.sample.failed import CollectionFailed, Failures
from treadle.sample.schedule import AHEAD, Schedule
from treadle.sample.skipping import HINT, Skipping, remedy
from treadle.stream.stream import Stream, answers
from treadle.stream.watch import Tally, Watch
from treadle.wire import bell
from treadle.wire.messages import Op, Raised
from treadle.worker import life
from treadle.worker.life import RestartPolicy
from treadle.worker.worker import Worker

log = logging.getLogger("treadle")

MOST_ORDERS = 12  # that one worker may have at a time
CALLER = -1  # in the place of a worker's number, where shares are the caller's
SHARES = "shares"  # the tag of the request for `Shares`
SETTLE = 10.0  # seconds that episodes before a failing one get to end, so that the first failure is the one told


class Collection:
    """One run. Iterate it for (index, length, result) in order of arrival; then `shares()`, and `close()`.

    When an episode fails, those with lower indices that other workers are playing may end first (for `SETTLE` seconds
    at most), and the failure of the lowest index is raised: which episode is told of does not depend on who was faster.

    Args:
        recipe: what a worker plays.
        schedule: which episodes.
        root: the run's seed.
        workers: how many; None: as many as cores. No more than there are episodes to make.
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

    _packs = True  # small episodes, where they are sent to another process
    _reads = True  # such packs; else they are handed on as they are
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
        self._recipe, self.schedule, self._root = replace(recipe, packs=packs), schedule, root
        self._skipping, self._hint = skipping or Skipping(False), skipping is not None and not skipping.skip
        self._failures = failures or Failures()
        self._keep, self._asked_for = keep or (lambda repro: None), recipe
        self._room = room or (lambda outstanding: True)
        self.tally = Tally(by_worker={})
        count = workers or bell.cores()
        if schedule.end is not None:  # whoever would find nothing to do need not start
            count = max(1, min(count, schedule.end - len(schedule.lengths) - len(schedule.skipped)))
        if backend == "serial":
            count = 1
        globals = {"process": Globals.SEED, "serial": Globals.SWAP, "thread": Globals.LEAVE}.get(backend, Globals.SEED)
        pool_options.setdefault("on_failure", "restart")
        pool_options.setdefault("prints", True)
        pool_options.setdefault("max_restarts", None)
        self.workers = count
        self._least = count * recipe.rows  # indices that are out however little room there is
        self._most = recipe.rows + AHEAD  # that a worker has before anybody looks whether it has enough
        self.pool = self._pool(globals, backend=backend, workers=count, **pool_options)
        self.calls = self.pool.calls
        self.calls.blame = self._blame
        self._dealt: dict[int, dict[int, None]] = defaultdict(dict)  # and not told of, yet
        self._given: dict[int, int] = defaultdict(int)  # episodes that a worker's process was to make
        self.calls.wear.played = lambda worker: self._given[worker.index] - len(self._dealt[worker.index])
        self._fresh = {each.index for each in self.pool.workers}  # workers whose process has told of no result yet
        self._suspects: dict[int, list[int]] = {}  # worker -> what it plays first, each by itself
        self._deaths: dict[int, list[tuple[bool, Any]]] = {}  # episode -> see `Skipping.hopeless`
        self._died_in: dict[int, tuple[list[int], list[int]]] = {}  # worker -> episodes it died in, and of
        self._failure: tuple[int, CollectionFailed] | None = None  # the lowest index that has failed
        self._deadline = 0.0  # when the failure is raised at the latest
        self._out: set[int] = set()  # workers that get no more orders
        self.remarks: dict[str, tuple[int, str]] = {}  # kind -> lowest index, text
        self.stream = Stream(self.calls, self, self, self, Watch(schedule.standing(), tell, recipe.rows))

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
        factories = [partial(RolloutSlot, self._recipe, slot, globals) for slot in range(self.workers)]
        return Pool(factories, rows=False, **options)

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        try:
            yield from self._made()
        except CollectionFailed as error:
            self._record(error)
            raise

    def _record(self, error: CollectionFailed) -> None:
        if self.pool.options.recorder:
            failed.record(self._asked_for, self._root, error, self.spaces, self._keep)

    def _made(self) -> Iterator[tuple[int, int, Any]]:
        self.stream.watch.begin(self.pool)
        yield from self.stream
        self.stream.watch.end()
        if self._failure is not None:
            error = self._failure[1]
            error.finished = len(self.schedule.lengths)
            raise error
        self.tally.speculative = len(self.schedule.issued) + len(self.schedule.speculative)

    @property
    def done(self) -> bool:
        """Is all there?"""
        return self.schedule.complete

    @property
    def over(self) -> bool:
        """Has an episode failed, and are those before it over, too?"""
        return self._failure is not None and not (self._awaited() and time.monotonic() < self._deadline)

    def ready(self, worker: Worker) -> None:
        """A worker was started in the place of another."""
        self._fresh.add(worker.index)
        self._given[worker.index] = 0

    def patience(self) -> float | None:
        """Seconds to wait for the next event at most; None: for ever."""
        return None if self._failure is None else max(0.0, self._deadline - time.monotonic())

    def _awaited(self) -> bool:
        """Does a worker that has not failed play an episode before the one that has?"""
        assert self._failure is not None
        first = self._failure[0]
        return any(index < first for worker, mine in self._dealt.items() if worker not in self._out for index in mine)

    # -- handing out -------------------------------------------------------------------------------------------------

    def give(self, held: int = 0) -> None:
        """Give orders to workers that have too little to do. `held`: results that the caller has not had yet."""
        dealt = self._dealt
        able = self._able()
        takers = [] if self._failure is not None else [each for each in able if len(dealt[each.index]) < self._most]
        while takers:
            worker = min(takers, key=lambda each: len(dealt[each.index]))
            if indices := self._next(worker, held):
                self._send(worker, indices)
            else:
                takers.remove(worker)
        for worker in able:
            if dealt[worker.index] and not worker.owed:  # what it has begun goes on in its next order
                self._send(worker, [])

    def _able(self) -> list[Worker]:
        """Workers that may get orders: not those that have failed, nor those that are worn out, which are replaced as
        soon as they have nothing more to do."""
        able = [each for each in self.pool.workers if each.state in life.ALIVE and each.index not in self._out]
        for worker in able if self.calls.wear.able and self._failure is None else ():
            idle = worker.state is life.State.IDLE and not self._dealt[worker.index]
            if idle and (why := self.calls.wear.worn(worker)):
                self.calls.retire(worker, why)
        return [each for each in able if each.state in life.ALIVE]

    def _next(self, worker: Worker, held: int) -> list[int]:
        """What a worker is to make next. Empty: it has enough, or there is nothing."""
        suspects = self._suspects.get(worker.index)
        if suspects is not None:
            if self._dealt[worker.index]:
                return []
            if suspects:
                return [suspects.pop(0)]
            del self._suspects[worker.index]
        wanted = self._wants(worker)
        if wanted and self.calls.wear.able:
            wanted = min(wanted, self.calls.wear.left(worker, len(self._dealt[worker.index]), self._recipe.rows))
        return self._taken(wanted, held)

    def _wants(self, worker: Worker) -> int:
        """How many indices a worker has room for."""
        rows, mine = self._recipe.rows, len(self._dealt[worker.index])
        size, ahead = self._share()
        if mine >= rows + ahead or len(worker.owed) >= MOST_ORDERS:
            return 0
        return max(size, rows - mine)

    def _share(self) -> tuple[int, int]:
        """See `Schedule.share`."""
        return self.schedule.share(self.workers)

    def _taken(self, most: int, held: int) -> list[int]:
        """The next indices of the schedule, as far as the caller has room for what comes of them."""
        schedule, found = self.schedule, list[int]()
        while len(found) < most:
            out = len(schedule.issued) + held
            if out >= self._least and not self._room(out):
                break
            index = schedule.take()
            if index is None:
                break
            found.append(index)
        return found

    def _send(self, worker: Worker, indices: list[int]) -> None:
        # what a death loses is made again, but for runs that end with it
        careful = worker.restarts or self.pool.policy is RestartPolicy.RAISE
        batch, seconds = (1 if careful else self._together[0]), self._together[1]
        order = RolloutOrder(self._root, tuple(indices), batch, self._skipping.skip, self.schedule.goes_on, seconds)
        self._dealt[worker.index].update(dict.fromkeys(indices))
        self._given[worker.index] += len(indices)
        self.calls.submit(worker, Op.STREAM, dict.fromkeys(worker.slots, order), worker.slots, order)

    # -- taking ------------------------------------------------------------------------------------------------------

    def answered(self, event: Done) -> list[tuple[int, int, Any]]:
        extras, worker = event.reply.extras, event.worker
        if extras is None:
            return []
        for slot, raised in extras.raised.items():
            self._raised(self._error(raised, slot, worker), worker)
        return [each for slot, ready in extras.infos.items() for each in self._results(ready, worker, slot)]

    def _results(self, ready: Sequence[tuple[int, int, Any]], worker: Worker, slot: int) -> Results:
        """Note what a slot has made; returns what the run did not have."""
        at, tally, found = worker.index, self.tally, Results()
        heard = self.stream.watch.heard if self.stream.watch.wanted else None
        if ready:
            self._fresh.discard(at)
        steps = tally.steps
        for each in self._opened(ready, worker, slot) if self._reads else ready:
            index, length, result = each
            if type(result) is Pack:
                if sum([self._finished(at, *episode) for episode in result.lengths()]):
                    found.append(each)
            elif length:
                if self._finished(at, index, length):
                    found.append(each)
                    if heard is not None:
                        heard(worker, 1, length, result.total_reward)
            elif isinstance(result, Remark):
                self._remark(index, result)
            else:
                del self._dealt[at][index]
                self._skip(index, self._error(result.raised, slot, worker))
        tally.by_worker[at] = tally.by_worker.get(at, 0) + tally.steps - steps
        return found

    def _finished(self, at: int, index: int, length: int) -> bool:
        """Note an episode that a worker has made; did the run want it?"""
        del self._dealt[at][index]
        wanted = self.schedule.finish(index, length)
        if wanted:
            self.tally.steps += length
            self.tally.episodes += 1
        return wanted

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
                    self._raised(self._error(Raised.of(episode, "unpickle", episode=index), slot, worker), worker)

    def _error(self, raised: Raised, slot: int, worker: Worker) -> CollectionFailed:
        """What a slot's program raised."""
        return failed.raised(failure.task_error(raised, worker.at(slot)), self._root, len(self.schedule.lengths))

    def _raised(self, error: CollectionFailed, worker: Worker) -> None:
        """An environment, a policy or the disk raised, or an episode cannot be read. Raises it, or notes it while
        episodes before it are played."""
        index = error.where.episode
        if error.where.phase in SKIPPED:
            error = self._hinted(error)
        if index is None or error.where.phase not in ("init", "policy", "unpickle", *SKIPPED):
            raise error
        self._out.add(worker.index)
        worker.stop(self.calls.last_id)  # what it was to make after that nobody needs
        if self._failure is None:
            self._deadline = time.monotonic() + SETTLE
        if self._failure is None or index < self._failure[0]:
            self._failure = index, error

    def _remark(self, index: int, remark: Remark) -> None:
        known = self.remarks.get(remark.kind)
        if known is None or index < known[0]:
            self.remarks[remark.kind] = index, remark.text
        if known is None and remark.kind == "endless":  # said at once: the run might never end
            log.warning("%s", remark.text)

    # -- deaths ------------------------------------------------------------------------------------------------------

    def _blame(self, worker: Worker, error: WorkerError) -> bool:
        """In which episodes was a worker that died, and did it die of one? What a worn one dies of may be its age: an
        episode is guilty when it is the first that a worker plays."""
        at, mine = worker.index, list(self._dealt[worker.index])
        if self._recipe.rows > 1:
            playing = mine[: self._recipe.rows]
        else:  # it may have made some that it has not told of
            playing = [index for index in mine if index == error.where.episode]
        first = at in self._fresh and len(playing) == 1 and mine[0] == playing[0]
        guilty = playing if first or self.pool.policy is RestartPolicy.DROP else []
        self._died_in[at] = playing, list(guilty)
        return bool(guilty)

    def died(self, event: Lost) -> None:
        """A worker died: what it was to make is made by others, and what it was making by the one in its place."""
        worker, finished = event.worker, len(self.schedule.lengths)
        at = worker.index
        (playing, guilty), mine = self._died_in.pop(at), list(self._dealt[at])
        self._dealt[at].clear()
        if self._failure is not None:  # the run is over: nothing is made again
            self._out.add(at)
            return
        drop = self.pool.policy is RestartPolicy.DROP
        for index in playing:
            deaths = self._deaths.setdefault(index, [])
            deaths.append((index in guilty, failed.crash_of(event.error, index)))
            if index in guilty and (many := self._skipping.hopeless(deaths)):
                fresh = not drop and all(first for first, _ in deaths[-many:])
                error = failed.died(event.error, index, self._root, many, finished, fresh=fresh)
                if not self._skipping.skip or failed.in_policy(event.error):
                    raise error if failed.in_policy(event.error) else self._hinted(error)
                playing, mine = ([i for i in some if i != index] for some in (playing, mine))
                self._skip(index, error)
        if event.verdict is RestartPolicy.RAISE:
            raise failed.died(event.error, None, self._root, worker.barren, finished)
        told = f"; made again: episode {', '.join(map(str, playing))}" if playing else ""
        suspects = self._suspects.pop(at, [])
        if event.verdict is RestartPolicy.DROP:
            log.warning("worker %d is dropped: %s%s", at, failed.reason_of(event.error), told)
            mine += suspects
        else:
            self.tally.restarts += 1
            self._failures.warn("died", event.error, f"worker {at} is replaced: {failed.happened(event.error)}{told}")
            # what was begun last was at work, most likely: it is the first to be tried
            self._suspects[at] = [*reversed(playing), *suspects]
            mine = [index for index in mine if index not in playing]
        for index in mine:
            self.schedule.lose(index)

    def _skip(self, index: int, error: CollectionFailed) -> None:
        """An episode has failed and is left out. Raises when that makes too many."""
        schedule = self.schedule
        if not schedule.skip(index):
            return
        self._record(error)
        self._failures.leave_out(index, error)
        so_far = schedule.skipped, schedule.episodes, len(schedule.lengths)
        if why := self._skipping.too_many(*so_far):
            raise failed.too_many(error, f"{why}: {self._failures}", remedy(*so_far))

    def _hinted(self, error: CollectionFailed) -> CollectionFailed:
        """The same failure, with the option that leaves such an episode out, where there is one."""
        if self._hint:
            error.args = (f"{error}; {HINT}",)
        return error

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
        self._failures.close(self.tally.restarts)

    def notes(self) -> list[str]:
        """The remarks that were not logged at once."""
        return [text for kind, (_, text) in self.remarks.items() if kind != "endless"]

    def close(self) -> None:
        self.pool.close()

    def __enter__(self) -> Collection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
