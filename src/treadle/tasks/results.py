"""Conversion of a batch of rows into one `RLStepResult` a slot, and the state of every slot between two steps."""

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
# the vector's own keys in infos: a task's own value under one of these keys is kept as "task_" + name
OWN = frozenset({"terminated", "truncated", "final_observation", "held", METRICS_KEY, CALLBACK_KEY, *NEWS.values()})
QUIET = News(0)
FALSE = repeat(False)
_made = partial(tuple.__new__, RLStepResult)  # of four values, in a third of the time that a call of the class takes


@dataclass(frozen=True, repr=False)
class TaskVectorStats:
    """Counts and times of a vector of tasks.

    Attributes:
        steps: int64[n], steps taken in each slot.
        episodes: int64[n], tasks begun in each slot.
        restarts: int64[n], restarts of each slot's worker.
        busy: float64[n], the share of time that each slot's task spent in steps, since its program was built. It
            includes moving on to the next task.
        elapsed: seconds since the vector was made.
        verdict: the vector's bottleneck, and what to change.
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
    """The reason why a slot does not run."""

    HELD = "held"  # its task is done, and the slot waits for the others
    EMPTY = "empty"  # its sampler is exhausted


class Results:
    """Makes results of batches, and records the state of every slot.

    Args:
        layout: of the observations' rows.
        n: number of slots.
        metrics: a queue that also gets the metrics of finished tasks.
        remember: keep every slot's last observation, for the end of an episode that a worker's death cuts.

    Attributes:
        special: slots that do not run -> the reason.
        gone: slots that were dropped when their worker died; they never come back.
        lost: slots whose task moved on in a step whose result is lost.
        steps, episodes: int64[n], steps taken and tasks begun, counting only results that the caller got.
        histories: one a slot.
        terminal: slot -> last observation of a task that is over while the slot waits.
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
        self._restarted: set[int] = set()  # slots with a fresh program that no info has reported yet

    # -- steps -------------------------------------------------------------------------------------------------------

    def of_step(self, batch: Batch, slots: Iterable[int], lost: Iterable[int] = ()) -> list[RLStepResult | None]:
        """Return the results of the slots that were stepped, in this order; None for `lost` slots."""
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
        """Return the last observation that the caller got; None if it is not recorded."""
        return None if self._last is None else self._last.get(slot)

    def _gone(self, slot: int, info: dict[str, Any]) -> RLStepResult:
        """Return the last result of a slot that was dropped: it has no observation any more."""
        self._drop(slot)
        info.update({ABORTED: True, DROPPED: True, "truncated": True, "final_observation": self._seen(slot)})
        return RLStepResult(None, 0.0, True, info)

    def _aside(self, slot: int, news: News, info: dict[str, Any] | None) -> None:
        """Record news of a slot that was not stepped: a worker can die at any time."""
        if News.DROPPED in news:
            self._drop(slot)
        elif News.RESTARTED in news:
            note, _ = _parted(info)
            self._restarted.add(slot)
            self.moved_on(slot, note.observation, note.handed)

    # -- new tasks ---------------------------------------------------------------------------------------------------

    def of_orders(self, batch: Batch, slots: Iterable[int], lost: Iterable[int] = ()) -> list[Any]:
        """Return the first observations after orders; None for slots that are `lost` or gone."""
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
        """Record the answers to `Stay`: a fresh program has begun another task."""
        for slot in slots:
            note, _ = _parted(batch.infos.get(slot))
            if note.restarted:
                self._restarted.add(slot)
                self.moved_on(slot, note.observation, note.handed)

    def moved_on(self, slot: int, observation: Any, handed: int | None = None) -> None:
        """Record that a slot's sampler has handed out a task with this first observation; None: it was exhausted.

        `handed`: see `Note`; None: one task.
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
        """Replace the recorded state by the slot's own `Status`, after a request whose result is lost."""
        self.special.pop(slot, None)
        if status.over or not status.has_task:
            self.special[slot] = Slot.HELD if status.over else Slot.EMPTY
        self.histories[slot].handed(status.handed - self.histories[slot].tasks)

    def why_empty(self, slot: int) -> str:
        """Return the text of an error about a slot without a task: the reason, and what to do."""
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
    """Return the slot's note, and the task's own info with the vector's keys renamed."""
    if info is None:
        return Note(), {}
    own = own_names(info, OWN, "task")
    return own.pop(NOTE, None) or Note(), own  # type: ignore[call-overload]  # the only key that is not a string
