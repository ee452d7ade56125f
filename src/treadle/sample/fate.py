"""The fate of episodes by index: results are noted; a failing episode is made again, left out, or ends the run.

When an episode fails, episodes of lower indices that other workers are playing may end first (within `SETTLE` seconds).
Then the failure of the lowest index is raised: the reported episode does not depend on the speed of workers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from treadle.errors import WorkerError
from treadle.play.episode import Episode
from treadle.play.pack import Pack
from treadle.play.recipe import SKIPPED, FailedEpisode, Remark, Results, RolloutRecipe
from treadle.pool import events, failure
from treadle.pool.pool import Pool
from treadle.program.base import Description
from treadle.repro import Repro, note, spaces_of
from treadle.sample import failed
from treadle.sample.failed import CollectionFailed, Failures
from treadle.sample.schedule import ByIndex
from treadle.sample.skipping import HINT, Skipping, remedy
from treadle.stream.stream import Watch
from treadle.wire.messages import Raised
from treadle.worker import life
from treadle.worker.life import RestartPolicy
from treadle.worker.worker import Worker

log = logging.getLogger("treadle")

SETTLE = 10.0  # seconds that episodes before a failing one get to end, so that the first failure is the one told


def spaces_played(about: Description) -> tuple[Any, Any]:
    """Of a slot's environment: observation space, action space."""
    return about.observation_space, about.metadata.get("action_space", about.action_space)


class ByIndexFate:
    """The fate of a run's episodes, see `treadle.stream.stream`.

    Args:
        recipe: how an episode is played.
        pool: the workers; this object answers the questions of its calls.
        source: of the indices.
        watch: notified of each episode that is made.
        skipping: how an episode that fails is treated; None: it ends the run.
        failures: of the run; None: there were none before, and they are not read.
        keep: called with the repro of each episode that has failed; see `failed.py`.

    Attributes:
        playing: given a worker that died, returns the episodes that it was playing, and True if it had begun nothing
            else. The courier sets it.
        skips: True if an episode that fails is left out.
        out: workers that get no more orders.
        fresh: workers whose process has sent no result yet.
        failure: the lowest index that has failed and why; None without a failure.
        remarks: kind -> lowest index, text.
    """

    opens = True  # packs of episodes, which are otherwise handed on as they are

    def __init__(
        self,
        recipe: RolloutRecipe,
        pool: Pool,
        source: ByIndex,
        watch: Watch,
        skipping: Skipping | None = None,
        failures: Failures | None = None,
        keep: Callable[[Repro], Any] | None = None,
    ) -> None:
        self._recipe, self._pool, self._source, self.watch = recipe, pool, source, watch
        self._skipping, self._hint = skipping or Skipping(False), skipping is not None and not skipping.skip
        self.skips = self._skipping.skip
        self.failures, self._keep = failures or Failures(), keep or (lambda repro: None)
        self._calls = book = pool.calls
        given, dealt = source.given, source.dealt
        book.blame, book.wear.played = self.blame, lambda worker: given[worker.index] - len(dealt[worker.index])
        self.playing: Callable[[Worker, WorkerError], tuple[list[int], bool]] = lambda worker, error: ([], False)
        self.out: set[int] = set()
        self.fresh = {each.index for each in pool.workers}
        self.failure: tuple[int, CollectionFailed] | None = None
        self.remarks: dict[str, tuple[int, str]] = {}
        self._deadline = 0.0  # when the failure is raised at the latest
        self._deaths: dict[int, list[tuple[bool, object]]] = {}  # episode -> see `Skipping.hopeless`
        self._died_in: dict[int, tuple[list[int], list[int]]] = {}  # worker -> episodes it died in, and of

    def again(self, watch: Watch) -> None:
        """Another run begins."""
        self.failure, self.watch = None, watch
        self.out.clear()
        self._deaths.clear()

    # -- workers -----------------------------------------------------------------------------------------------------

    def able(self) -> list[Worker]:
        """Return the workers that may get orders: those that have not failed and are not worn out. A worn worker is
        replaced once it has no orders."""
        able = [each for each in self._calls.workers if each.state in life.ALIVE and each.index not in self.out]
        for worker in able if self._calls.wear.able and self.failure is None else ():
            idle = worker.state is life.State.IDLE and not self._source.dealt[worker.index]
            if idle and (why := self._calls.wear.worn(worker)):
                self._calls.retire(worker, why)
        return [each for each in able if each.state in life.ALIVE]

    def ready(self, worker: Worker) -> None:
        """A worker was started in the place of another, or was added."""
        self.fresh.add(worker.index)
        self._source.given[worker.index] = 0

    # -- what was made -----------------------------------------------------------------------------------------------

    def heard(self, worker: Worker, slot: int, told: Results) -> Results:
        """Note the results of a slot, and return those that the run did not have."""
        at, source, found = worker.index, self._source, Results()
        tally = source.tally
        if told:
            self.fresh.discard(at)
        steps = tally.steps
        for each in self._opened(told, worker, slot) if self.opens else told:
            index, length, result = each
            if type(result) is Pack:
                if sum([source.finish(at, *episode) for episode in result.lengths()]):
                    found.append(each)
            elif length:
                if source.finish(at, index, length, not getattr(result, "unfit", "")):
                    found.append(each)
                    if self.watch.wanted:
                        self.watch.heard(worker, 1, length, result.total_reward)
            elif isinstance(result, Remark):
                self.remark(index, result)
            else:
                lost, finished = isinstance(result, FailedEpisode), source.schedule.finished
                error = self.error(result.raised, slot, worker) if lost else result.rebuilt(finished)
                if lost or result.skip:
                    del source.dealt[at][index]
                    self.skip(index, error)
                else:
                    self.raised(error, worker)
        tally.by_worker[at] = tally.by_worker.get(at, 0) + tally.steps - steps
        return found

    def _opened(self, told: Results, worker: Worker, slot: int) -> Iterator[Any]:
        """Results, with the episodes of packs one by one. One that cannot be read has failed."""
        for each in told:
            if type(each[2]) is not Pack:
                yield each
                continue
            for index, length, episode in each[2].episodes():
                if isinstance(episode, Episode):
                    yield index, length, episode
                else:
                    self.raised(self.error(Raised.of(episode, "unpickle", episode=index), slot, worker), worker)

    def error(self, raised: Raised, slot: int, worker: Worker) -> CollectionFailed:
        """Return the error of a slot's program."""
        source = self._source
        return failed.raised(failure.task_error(raised, worker.at(slot)), source.root, source.schedule.finished)

    # -- the end -----------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Return True if an episode has failed and all before it are over."""
        return self.failure is not None and not (self._awaited(self.failure[0]) and time.monotonic() < self._deadline)

    def _awaited(self, first: int) -> bool:
        """Return True if a worker that has not failed plays an episode before this one."""
        dealt = self._source.dealt.items()
        return any(index < first for worker, mine in dealt if worker not in self.out for index in mine)

    def patience(self) -> float | None:
        """Seconds until the failure is raised at the latest; None: there is none."""
        return None if self.failure is None else max(0.0, self._deadline - time.monotonic())

    def end(self) -> None:
        """Raise the failure of the lowest index, if there is one."""
        if self.failure is not None:
            error = self.failure[1]
            error.finished = self._source.schedule.finished
            raise error

    def record(self, error: CollectionFailed) -> None:
        """Keep what ended the run, or what it skipped, can be replayed from; nothing where no single episode failed."""
        index = error.where.episode
        if not self._pool.options.recorder or index is None or error.where.phase in ("init", "write"):
            return
        repro = failed.repro_of(self._recipe, self._source.root, index, error)
        repro.about["spaces"] = spaces_of(spaces_played(self._pool.descriptions[0]))
        try:
            self._keep(repro)
        except OSError as problem:  # a full disk is no reason to hide what has failed
            log.warning("what episode %d can be replayed from was not written: %s", index, problem)
        note(error, repro)

    # -- what raised -------------------------------------------------------------------------------------------------

    def raised(self, error: CollectionFailed, worker: Worker | None) -> None:
        """An environment, a policy or the disk raised, or an episode cannot be read. Raises it, or notes it while
        episodes before it are played.

        worker: it ends with this; None: it goes on with what else it was asked for.
        """
        index = error.where.episode
        if error.where.phase in SKIPPED:
            error = self.hinted(error)
        if index is None or error.where.phase not in ("init", "policy", "unpickle", *SKIPPED):
            raise error
        if worker is not None:
            self.out.add(worker.index)
            worker.stop(self._calls.last_id)  # what it was to make after that nobody needs
        if self.failure is None:
            self._deadline = time.monotonic() + SETTLE
        if self.failure is None or index < self.failure[0]:
            self.failure = index, error

    def skip(self, index: int, error: CollectionFailed) -> None:
        """An episode has failed and is left out. Raises when that makes too many."""
        schedule = self._source.schedule
        if not schedule.skip(index):
            return
        self.record(error)
        self.failures.leave_out(index, error)
        so_far = schedule.skipped, schedule.episodes, schedule.finished
        if why := self._skipping.too_many(*so_far):
            raise failed.too_many(error, f"{why}: {self.failures}", remedy(*so_far))

    def remark(self, index: int, remark: Remark) -> None:
        """Note a remark on an episode; of each kind the one of the lowest index is reported."""
        known = self.remarks.get(remark.kind)
        if known is None or index < known[0]:
            self.remarks[remark.kind] = index, remark.text
        if known is None and remark.kind == "endless":  # said at once: the run might never end
            log.warning("%s", remark.text)

    def hinted(self, error: CollectionFailed) -> CollectionFailed:
        """The same failure, with the option that leaves such an episode out, where there is one."""
        if self._hint:
            error.args = (f"{error}; {HINT}",)
        return error

    # -- deaths ------------------------------------------------------------------------------------------------------

    def blame(self, worker: Worker, error: WorkerError) -> bool:
        """Note the episodes of a worker that died, and return True if one of them was the cause. An episode is guilty
        when it is the first that a worker plays: a worn worker may die of its age."""
        playing, alone = self.playing(worker, error)
        first = alone and worker.index in self.fresh and len(playing) == 1
        guilty = playing if first or self._calls.policy is RestartPolicy.DROP else []
        self._died_in[worker.index] = playing, list(guilty)
        return bool(guilty)

    def died(self, event: events.Lost) -> None:
        """A worker died: what it was to make is made by others, and what it was making by the one in its place."""
        source, worker, verdict = self._source, event.worker, event.verdict
        finished, at = source.schedule.finished, worker.index
        if verdict is None:  # it lives, and was late
            verdict = RestartPolicy.RAISE
        (playing, guilty), mine = self._died_in.pop(at), list(source.dealt[at])
        source.dealt[at].clear()
        if self.failure is not None:  # the run is over: nothing is made again
            self.out.add(at)
            return
        for index in list(playing):
            if self._hopeless(index, index in guilty, event.error):
                playing, mine = ([i for i in some if i != index] for some in (playing, mine))
        if verdict is RestartPolicy.RAISE:
            raise failed.died(event.error, None, source.root, worker.barren, finished)
        told = f"; made again: episode {', '.join(map(str, playing))}" if playing else ""
        suspects = source.alone.pop(at, [])
        if verdict is RestartPolicy.DROP:
            log.warning("worker %d is dropped: %s%s", at, failed.reason_of(event.error), told)
            mine += suspects
        else:
            source.tally.restarts += 1
            self.failures.warn("died", event.error, f"worker {at} is replaced: {failed.happened(event.error)}{told}")
            # what was begun last was at work, most likely: it is the first to be tried
            source.alone[at] = [*reversed(playing), *suspects]
            mine = [index for index in mine if index not in playing]
        for index in mine:
            source.schedule.lose(index)

    def _hopeless(self, index: int, guilty: bool, error: WorkerError) -> bool:
        """Note a death in an episode. True: it has cost enough lives and is left out. Raises where it ends the run."""
        deaths = self._deaths.setdefault(index, [])
        deaths.append((guilty, failed.crash_of(error, index)))
        many = self._skipping.hopeless(deaths) if guilty else 0
        if not many:
            return False
        fresh = self._calls.policy is not RestartPolicy.DROP and all(first for first, _ in deaths[-many:])
        finished = self._source.schedule.finished
        found = failed.died(error, index, self._source.root, many, finished, fresh=fresh)
        if not self._skipping.skip or failed.in_policy(error):
            raise found if failed.in_policy(error) else self.hinted(found)
        self.skip(index, found)
        return True


@dataclass(frozen=True)
class Failed:
    """The decision of a node's own run about a failed episode; a result of length 0.

    Attributes:
        error, cause: why.
        skip: True if it is left out; False if it ends the run.
    """

    error: CollectionFailed
    cause: BaseException | None
    skip: bool

    @classmethod
    def of(cls, error: CollectionFailed, address: str, skip: bool) -> Failed:
        error.args = (f"{error} (on node {address})",)
        error.where = replace(error.where, node=address)
        return cls(error, error.__cause__, skip)

    def rebuilt(self, finished: int) -> CollectionFailed:
        """The error, in the caller."""
        self.error.finished, self.error.__cause__ = finished, self.cause
        return self.error


class ToldFate(ByIndexFate):
    """The fate of episodes on a node, whose decisions go to the caller as results.

    Args:
        address: of the node.
        parts: of the fate.

    Attributes:
        told: decisions that are not sent yet; the sender takes them out.
    """

    opens = False

    def __init__(self, address: str, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._address, self.told = address, Results()

    def raised(self, error: CollectionFailed, worker: Worker | None = None) -> None:
        self.told.append((-1, 0, Failed.of(error, self._address, False)))

    def skip(self, index: int, error: CollectionFailed) -> None:
        self._source.schedule.issued.discard(index)
        self.told.append((index, 0, Failed.of(error, self._address, True)))

    def remark(self, index: int, remark: Remark) -> None:
        self.told.append((index, 0, remark))
