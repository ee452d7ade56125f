"""From a batch of rows to one `RLStepResult` a slot, and what is known of every slot between two steps."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from treadle.lockstep.batch import Batch, News
from treadle.program.base import own_names
from treadle.spaces import Layout
from treadle.tasks.core import CALLBACK_KEY, METRICS_KEY, RLStepResult
from treadle.tasks.orders import NOTE, NOTHING, History, Note, Status
from treadle.tasks.rows import row_mender, row_splitter
from treadle.vector.infos import NEWS
from treadle.verdict import Verdict

log = logging.getLogger("treadle")

RESTARTED, ABORTED, DROPPED = NEWS[News.RESTARTED], NEWS[News.ABORTED], NEWS[News.DROPPED]
# the vector's own names in infos: a task's own value under one of them is kept as "task_" + name
OWN = frozenset({"terminated", "truncated", "final_observation", "held", METRICS_KEY, CALLBACK_KEY, *NEWS.values()})
QUIET = News(0)
FALSE = repeat(False)
_made = partial(tuple.__new__, RLStepResult)  # of four values: a third of what a call of the class takes


@dataclass(frozen=True, repr=False)
class TaskVectorStats:
    """Counts and times of a vector of tasks.

    Attributes:
        steps: int64[n], steps taken in each slot.
        episodes: int64[n], tasks begun in each slot.
        restarts: int64[n], how often each slot's worker was started anew.
        busy: float64[n], the share of time that each slot's task was at work in a step, since its program was built.
            Moving on to the next task is included.
        elapsed: seconds since the vector was made.
        verdict: what binds it, and what to change.
    """

    steps: np.ndarray
    episodes: np.ndarray
    restarts: np.ndarray
    busy: np.ndarray
    elapsed: float
    verdict: Verdict

    def __repr__(self) -> str:
        counts = f"{self.steps.sum():,} steps, {self.episodes.sum():,} tasks, {self.restarts.sum():,} restarts"
        return f"<TaskVectorStats {counts} in {self.elapsed:.1f} s\n  {self.verdict}>"


class Slot(Enum):
    """Why a slot does not run."""

    HELD = "held"  # its task is done and waits for those of the others
    EMPTY = "empty"  # its sampler is exhausted


class Results:
    """Makes results of batches, and keeps the books on the way.

    Args:
        layout: of the observations' rows.
        n: number of slots.
        metrics: where metrics of tasks that are done are put as well.
        remember: keep every slot's last observation, for the end of an episode that a worker's death cuts.

    Attributes:
        special: slots that do not run -> what they are.
        gone: slots that were dropped when their worker died: nothing brings them back.
        lost: slots whose task moved on in a step whose result is lost.
        steps, episodes: int64[n], steps taken and tasks begun, as far as they were handed out.
        histories: one a slot.
        terminal: slot -> last observation of a task that is over and waits.
    """

    def __init__(self, layout: Layout, n: int, metrics: Any, *, remember: bool) -> None:
        self._split, self._mend = row_splitter(layout, n), row_mender(layout)
        self._metrics, self._full = metrics, False
        self._last: dict[int, Any] | None = {} if remember else None
        self.special: dict[int, Slot] = {}
        self.gone: set[int] = set()
        self.lost: set[int] = set()
        self.steps, self.episodes = np.zeros(n, np.int64), np.ones(n, np.int64)
        self.histories = [History() for _ in range(n)]
        self.terminal: dict[int, Any] = {}
        self._restarted: set[int] = set()  # fresh programs whose first observation was in nobody's info

    # -- steps -------------------------------------------------------------------------------------------------------

    def of_step(self, batch: Batch, slots: Iterable[int], lost: Iterable[int] = ()) -> list[RLStepResult | None]:
        """The results of the slots that were stepped, in this order; None for those that are `lost`."""
        rows, rewards = self._split(batch.observations), batch.rewards.tolist()
        infos, finals, news = batch.infos, batch.finals, batch.news
        slots = list(slots)
        if not (infos or finals or lost or news or self._restarted):
            if len(slots) == len(rows):
                self.steps += 1
            else:
                self.steps[slots] += 1
                rows, rewards = [rows[slot] for slot in slots], [rewards[slot] for slot in slots]
            if self._last is not None:
                self._last.update(zip(slots, rows))
            return [*map(_made, zip(rows, rewards, FALSE, [{"terminated": False, "truncated": False} for _ in slots]))]
        lost = set(lost)
        stepped = set(slots)
        for slot in news:
            if slot not in stepped:
                self._aside(slot, news[slot], infos.get(slot))
        terminated, truncated = batch.terminated.tolist(), batch.truncated.tolist()
        return [
            None
            if slot in lost
            else self._result(
                slot,
                rows[slot],
                rewards[slot],
                (terminated[slot], truncated[slot]),
                infos.get(slot),
                finals.get(slot),
                news.get(slot, QUIET),
            )
            for slot in slots
        ]

    def _result(
        self,
        slot: int,
        row: Any,
        reward: Any,
        ends: tuple[bool, bool],
        info: dict[str, Any] | None,
        final: Any,
        news: News,
    ) -> RLStepResult:
        note, info = _parted(info)
        over = ends[0] or ends[1] or note.over
        ends = ends if note.ends is None else note.ends
        observation = row if note.observation is NOTHING else note.observation
        reward = reward if note.reward is NOTHING else note.reward
        info["terminated"], info["truncated"] = ends
        cut = News.ABORTED in news
        if News.DROPPED in news:
            return self._gone(slot, info)
        if slot in self._restarted or News.RESTARTED in news:
            self._restarted.discard(slot)
            info[RESTARTED] = True
        if not cut and not note.held:
            self.steps[slot] += 1
        if note.over:
            self._hold(slot, observation, info, note)
        elif over:
            if cut:
                info["final_observation"], info[ABORTED] = self._seen(slot), True
            else:
                info["final_observation"] = self._mend(final[0]) if note.final is NOTHING else note.final
            self.moved_on(slot, observation, note.handed)
        elif self._last is not None:
            self._last[slot] = observation
        if note.metrics is not NOTHING:
            info[METRICS_KEY] = note.metrics
            self._put(note.metrics)
        if note.callback is not NOTHING:
            info[CALLBACK_KEY] = note.callback
        return RLStepResult(observation, reward, bool(over or note.done), info)

    def _hold(self, slot: int, observation: Any, info: dict[str, Any], note: Note) -> None:
        self.special[slot] = Slot.HELD
        self.terminal[slot] = observation
        if note.held:
            info["held"] = True
        else:
            info["final_observation"] = observation

    def _seen(self, slot: int) -> Any:
        """The last observation that was handed out; None where a task was only asked for it."""
        return None if self._last is None else self._last.get(slot)

    def _gone(self, slot: int, info: dict[str, Any]) -> RLStepResult:
        """A slot that was dropped: no observation will come of it any more."""
        self._drop(slot)
        info.update({ABORTED: True, DROPPED: True, "truncated": True, "final_observation": self._seen(slot)})
        return RLStepResult(None, 0.0, True, info)

    def _aside(self, slot: int, news: News, info: dict[str, Any] | None) -> None:
        """News of a slot that was not stepped: a death can come at any time."""
        if News.DROPPED in news:
            self._drop(slot)
        elif News.RESTARTED in news:
            note, _ = _parted(info)
            self._restarted.add(slot)
            self.moved_on(slot, note.observation, note.handed)

    # -- new tasks ---------------------------------------------------------------------------------------------------

    def of_orders(self, batch: Batch, slots: Iterable[int], lost: Iterable[int] = ()) -> list[Any]:
        """The first observations that orders have led to; None for slots that are `lost`, or gone."""
        rows, lost = self._split(batch.observations), set(lost)
        found: list[Any] = []
        for slot in slots:
            if slot in self.gone or News.DROPPED in batch.news.get(slot, QUIET):
                self._drop(slot)
                found.append(None)
                continue
            note, _ = _parted(batch.infos.get(slot))
            observation = rows[slot] if note.observation is NOTHING else note.observation
            if slot in lost:
                found.append(None)
                continue
            if note.restarted:
                self._restarted.add(slot)
            self.moved_on(slot, observation, note.handed)
            found.append(observation)
        return found

    def of_stay(self, batch: Batch, slots: Iterable[int]) -> None:
        """Slots that had to stay as they are: a fresh program could not."""
        for slot in slots:
            note, _ = _parted(batch.infos.get(slot))
            if note.restarted:
                self._restarted.add(slot)
                self.moved_on(slot, note.observation, note.handed)

    def moved_on(self, slot: int, observation: Any, handed: int | None = None) -> None:
        """A slot's sampler was asked for its next task, which begins with this observation; None: there was none.

        `handed`: see `Note`; None: once.
        """
        self.histories[slot].handed(1 if handed is None else handed - self.histories[slot].tasks)
        self.terminal.pop(slot, None)
        self.lost.discard(slot)
        if self._last is not None:
            self._last[slot] = observation
        if observation is None:
            self.special[slot] = Slot.EMPTY
        else:
            self.special.pop(slot, None)
            self.episodes[slot] += 1

    def _drop(self, slot: int) -> None:
        self.gone.add(slot)
        self.special[slot] = Slot.EMPTY

    def correct(self, slot: int, status: Status) -> None:
        """Take over a slot's own word on its state, after a request whose result is lost."""
        self.special.pop(slot, None)
        if status.over or not status.has_task:
            self.special[slot] = Slot.HELD if status.over else Slot.EMPTY
        self.histories[slot].handed(status.handed - self.histories[slot].tasks)

    def why_empty(self, slot: int) -> str:
        """For errors: what a slot without a task lacks, and what can be done."""
        if slot in self.gone:
            return f"slot {slot} was dropped when its worker died: pause_at it"
        return f"slot {slot}: its sampler is exhausted and has no task: pause_at it, or reset_all"

    # -- metrics -----------------------------------------------------------------------------------------------------

    def _put(self, metrics: Any) -> None:
        try:
            self._metrics.put_nowait(metrics)
        except queue.Full:
            if not self._full:
                log.warning("metrics_out_queue is full: metrics are left out of it (they are in the infos; said once)")
            self._full = True


def _parted(info: dict[Any, Any] | None) -> tuple[Note, dict[str, Any]]:
    """The slot's note, and the task's own info with the vector's names left free."""
    if info is None:
        return Note(), {}
    own = own_names(info, OWN, "task")
    return own.pop(NOTE, None) or Note(), own  # type: ignore[call-overload]  # the one key that is no string
