"""The batch former: when a policy in the caller is asked, and for which slots.

Slots step in workers; a ready slot waits for the policy. Small batches waste the fixed time of a call; large batches
waste the time of the slots that wait. `BatchFormer` decides by a size and a patience. The user gives them, or they
follow from measurements: a call's fixed time, and the gap between two arrivals of ready slots.

The rule: one more row saves a call, and k rows that wait for it lose k gaps. So a batch waits for as many rows as
arrive in a call's fixed time. With more slots than workers can step, the slots that no worker would step lose nothing.
A batch waits for at most half of the slots: these step while the policy acts for the others. All slots share one call
only where all step in less than a call's fixed time. One call for all is then shorter than two for half of them.

Pure: nothing here waits, sends or looks at a clock; moments are given, in seconds on any clock that does not go back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

AGAIN = (8, 32, 128, 512)  # batches after which is chosen, as what was measured grows
KEPT = 512  # step times and batches that are remembered
PATIENCE = 2.0  # times of a call: one that a row has missed, and as long again


@dataclass(frozen=True)
class Choice:
    """The rule in force: when a batch is asked.

    It is asked when it has `size` rows, when no other row can come, or `patience` seconds (inf: no limit) after its
    first row arrived.
    """

    size: int
    patience: float


@dataclass
class BatchFormer:
    """Decides when the policy is asked, and for which slots.

    Args:
        slots: number of slots.
        workers: number of workers that step them.
        size: rows to wait for; None: chosen.
        patience: seconds that a ready slot waits for others; None: chosen.
        most: rows that the policy takes at a time; None: no limit.

    Attributes:
        batches: asked.
        rows: in them.
        policy: seconds that the policy was at work.
        idle: seconds that it was not, between its first batch and its latest.
        waited: seconds that ready slots waited until their batch was begun, summed over them.
    """

    slots: int
    workers: int
    size: int | None = None
    patience: float | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        self.batches = self.rows = 0
        self.policy = self.idle = self.waited = 0.0
        self._most = min(self.most or self.slots, self.slots)
        first = self.size or max(1, self.slots // 2)
        self.choice = Choice(min(first, self._most), math.inf if self.patience is None else self.patience)
        self._ready: deque[tuple[int, float]] = deque()
        self._asked: deque[tuple[int, float]] = deque(maxlen=KEPT)  # rows, seconds
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._ended: float | None = None  # when the latest batch was answered

    # -- what happens ------------------------------------------------------------------------------------------------

    def ready(self, slot: int, now: float) -> None:
        """A slot waits for an action."""
        self._ready.append((slot, now))

    def gone(self, slots: Iterable[int]) -> None:
        """These wait no more: their worker has died."""
        left = set(slots)
        self._ready = deque(each for each in self._ready if each[0] not in left)

    def clear(self) -> None:
        """Forget the slots that wait."""
        self._ready.clear()
        self._ended = None

    def stepped(self, seconds: float) -> None:
        """A worker took so long for a step."""
        self._steps.append(seconds)

    def answered(self, rows: int, began: float, now: float) -> None:
        """The policy has answered for so many rows that it was asked for at `began`."""
        self.batches += 1
        self.rows += rows
        self.policy += now - began
        if self._ended is not None:
            self.idle += began - self._ended
        self._ended = now
        self._asked.append((rows, now - began))
        again = self.batches in AGAIN or self.batches % AGAIN[-1] == 0
        if again and (self.size is None or self.patience is None):
            self.choose()

    @property
    def first(self) -> float | None:
        """Return the moment from which the first ready slot has waited; None without one."""
        return self._ready[0][1] if self._ready else None

    # -- what follows ------------------------------------------------------------------------------------------------

    def take(self, now: float, coming: int) -> list[int]:
        """Return the slots to ask the policy for now, those that have waited longest first; []: not yet.

        coming: number of slots that are being stepped or reset, and get ready by themselves.
        """
        ready, choice = self._ready, self.choice
        if not ready or (len(ready) < choice.size and coming > 0 and now - ready[0][1] < choice.patience):
            return []
        taken = [ready.popleft() for _ in range(min(len(ready), self._most))]
        self.waited += sum(now - since for _, since in taken)
        return [slot for slot, _ in taken]

    def wait(self, now: float) -> float | None:
        """Seconds after which `take` may say something else although nothing has happened; None: never."""
        if not self._ready or math.isinf(self.choice.patience):
            return None
        return max(0.0, self._ready[0][1] + self.choice.patience - now)

    def choose(self) -> None:
        """Choose what the user has not given, by what was measured."""
        # the later half: at first workers and policy are still waking up
        asked, steps = list(self._asked)[len(self._asked) // 2 :], list(self._steps)[len(self._steps) // 2 :]
        if asked and steps:
            call, row = fitted(asked)
            size = min(self.size or fitting(call, row, steps, self.slots, self.workers), self._most)
            self.choice = Choice(size, PATIENCE * (call + row * size) if self.patience is None else self.patience)

    def fitted(self) -> tuple[float, float, int] | None:
        """Seconds of a call, seconds of a row, and all rows; None: all calls had the same number of rows."""
        if len({rows for rows, _ in self._asked}) < 2:
            return None
        return *fitted(self._asked), self.rows

    def stats(self) -> dict[str, float]:
        """Return the statistics by name.

        They are batches, mean rows of a batch, and the share of the time that the policy was at work. Also the mean
        seconds that a slot waited, and the size and patience in force (seconds; inf: no limit).
        """
        total = self.policy + self.idle
        return {
            "batches": self.batches,
            "rows_per_batch": self.rows / self.batches if self.batches else 0.0,
            "policy_busy": self.policy / total if total else 0.0,
            "policy_seconds": self.policy,
            "policy_waited": self.idle,
            "slot_waited": self.waited / self.rows if self.rows else 0.0,
            "size": self.choice.size,
            "patience": self.choice.patience,
        }


def fitted(asked: Collection[tuple[int, float]]) -> tuple[float, float]:
    """Return seconds a call and seconds a row (neither below 0) of batches (rows, seconds).

    They are least squares over the median of each size: a batch that another cause delayed does not count."""
    by_rows: dict[int, list[float]] = {}
    for rows, seconds in asked:
        by_rows.setdefault(rows, []).append(seconds)
    sizes = np.array(list(by_rows), np.float64)
    times = np.array([np.median(each) for each in by_rows.values()])
    weights = np.array([len(each) for each in by_rows.values()], np.float64)
    mean_size, mean_time = np.average(sizes, weights=weights), np.average(times, weights=weights)
    spread = float(np.sum(weights * (sizes - mean_size) ** 2))
    slope = float(np.sum(weights * (sizes - mean_size) * (times - mean_time)) / spread) if spread else 0.0
    row = min(max(slope, 0.0), float(mean_time / mean_size))
    return float(mean_time - row * mean_size), row


def fitting(call: float, row: float, steps: Sequence[float], slots: int, workers: int) -> int:
    """How many rows to wait for.

    Args:
        call: seconds that the policy takes however few rows it is asked for.
        row: seconds that each row adds.
        steps: a sample of seconds that a worker takes for one step.
        slots: how many there are.
        workers: how many work at the same time.
    """
    gap = sum(steps) / len(steps) / workers
    longest = float(np.quantile(steps, 1 - 0.5 / slots))  # of so many steps, about
    if max(longest, gap * slots) <= call:
        return slots
    # rows that lose nothing by waiting, as what the workers have besides lasts them for two calls
    spare = (slots - workers - 2 * call / gap) / (1 + 2 * row / gap)
    return max(1, min(slots // 2, math.ceil(max(call / gap, spare))))
