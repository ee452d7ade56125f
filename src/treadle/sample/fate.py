"""What failures mean for episodes by index: made again, left out, or the end of the run.

When an episode fails, those with lower indices that other workers are playing may end first (for `SETTLE` seconds at
most), and the failure of the lowest index is raised: which episode is told of does not depend on who was faster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from treadle.errors import WorkerError
from treadle.play.recipe import SKIPPED, Remark, Results
from treadle.pool.calls import Calls, Lost
from treadle.sample import failed
from treadle.sample.by_index import ByIndex
from treadle.sample.failed import CollectionFailed, Failures
from treadle.sample.skipping import HINT, Skipping, remedy
from treadle.worker.life import RestartPolicy
from treadle.worker.worker import Worker

log = logging.getLogger("treadle")

SETTLE = 10.0  # seconds that episodes before a failing one get to end, so that the first failure is the one told


class ByIndexFate:
    """The fate of a run's episodes, see `treadle.stream.stream`.

    Args:
        calls: of the pool; its question whom to blame is answered here.
        source: of the indices.
        skipping: what becomes of an episode that fails; None: it ends the run, and there is no other way.
        failures: of the run.
        playing: asked of a worker that died: which episodes was it playing, and had it begun nothing else?
        record: keeps what an episode that has failed can be replayed from.

    Attributes:
        out: workers that get no more orders.
        fresh: workers whose process has told of no result yet.
        failure: the lowest index that has failed and why; None: none has.
        remarks: kind -> lowest index, text.
    """

    def __init__(
        self,
        calls: Calls,
        source: ByIndex,
        skipping: Skipping | None,
        failures: Failures,
        playing: Callable[[Worker, WorkerError], tuple[list[int], bool]],
        record: Callable[[CollectionFailed], None],
    ) -> None:
        self._calls, self._source, self._playing, self._record = calls, source, playing, record
        self._skipping, self._hint = skipping or Skipping(False), skipping is not None and not skipping.skip
        self._failures = failures
        calls.blame = self.blame
        self.out: set[int] = set()
        self.fresh = {each.index for each in calls.workers}
        self.failure: tuple[int, CollectionFailed] | None = None
        self.remarks: dict[str, tuple[int, str]] = {}
        self._deadline = 0.0  # when the failure is raised at the latest
        self._deaths: dict[int, list[tuple[bool, object]]] = {}  # episode -> see `Skipping.hopeless`
        self._died_in: dict[int, tuple[list[int], list[int]]] = {}  # worker -> episodes it died in, and of

    def again(self) -> None:
        """Another run begins."""
        self.failure = None
        self.out.clear()
        self._deaths.clear()

    # -- the end -----------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Has an episode failed, and are those before it over, too?"""
        return self.failure is not None and not (self._awaited(self.failure[0]) and time.monotonic() < self._deadline)

    def _awaited(self, first: int) -> bool:
        """Does a worker that has not failed play an episode before this one?"""
        dealt = self._source.dealt.items()
        return any(index < first for worker, mine in dealt if worker not in self.out for index in mine)

    def patience(self) -> float | None:
        """Seconds until the failure is raised at the latest; None: there is none."""
        return None if self.failure is None else max(0.0, self._deadline - time.monotonic())

    def end(self) -> None:
        """Raise the failure of the lowest index, if there is one."""
        if self.failure is not None:
            error = self.failure[1]
            error.finished = len(self._source.schedule.lengths)
            raise error

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
        self._record(error)
        self._failures.leave_out(index, error)
        so_far = schedule.skipped, schedule.episodes, len(schedule.lengths)
        if why := self._skipping.too_many(*so_far):
            raise failed.too_many(error, f"{why}: {self._failures}", remedy(*so_far))

    def remark(self, index: int, remark: Remark) -> None:
        """Something was seen at an episode; the lowest index of each kind is told of."""
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
        """In which episodes was a worker that died, and did it die of one? What a worn one dies of may be its age: an
        episode is guilty when it is the first that a worker plays."""
        playing, alone = self._playing(worker, error)
        first = alone and worker.index in self.fresh and len(playing) == 1
        guilty = playing if first or self._calls.policy is RestartPolicy.DROP else []
        self._died_in[worker.index] = playing, list(guilty)
        return bool(guilty)

    def died(self, event: Lost) -> None:
        """A worker died: what it was to make is made by others, and what it was making by the one in its place."""
        source, worker, verdict = self._source, event.worker, event.verdict
        finished, at = len(source.schedule.lengths), worker.index
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
            self._failures.warn("died", event.error, f"worker {at} is replaced: {failed.happened(event.error)}{told}")
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
        finished = len(self._source.schedule.lengths)
        found = failed.died(error, index, self._source.root, many, finished, fresh=fresh)
        if not self._skipping.skip or failed.in_policy(error):
            raise found if failed.in_policy(error) else self.hinted(found)
        self.skip(index, found)
        return True


@dataclass(frozen=True)
class Failed:
    """What a node's own run has decided about an episode; a result of length 0.

    Attributes:
        error, cause: why.
        skip: is it left out? Else it ends the run.
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
    """The fate of episodes on a node: what is decided of them is told to the caller, as results.

    Attributes:
        address: of the node.
        told: what was decided; whoever tells it takes it out.
    """

    address = ""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.told = Results()

    def raised(self, error: CollectionFailed, worker: Worker | None = None) -> None:
        self.told.append((-1, 0, Failed.of(error, self.address, False)))

    def skip(self, index: int, error: CollectionFailed) -> None:
        self._source.schedule.issued.discard(index)
        self.told.append((index, 0, Failed.of(error, self.address, True)))

    def remark(self, index: int, remark: Remark) -> None:
        self.told.append((index, 0, remark))
