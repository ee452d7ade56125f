"""When to ask a policy that is asked in the caller, and with whom: the batch former.

Slots step in workers; whoever is ready waits for the policy. Asking for few at a time wastes what a call costs by
itself; waiting for many wastes the slots that wait. `BatchFormer` decides by a size and a patience, which the user
gives or which are chosen by playing the next steps through in `simulated`, a model of discrete events, with the
policy's time and the environments' pace as they were measured.

Pure: nothing here waits, sends or looks at a clock; moments are given, in seconds on any clock that does not go back.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from treadle.pool.options import check_seconds, check_whole

AGAIN = (8, 32, 128, 1024)  # batches after which is chosen, as what was measured grows
CHANGED = 1.2  # times: what has changed by less is not chosen for again
KEPT = 512  # step times and batches that are remembered
EVENTS = 2000  # steps that one simulation plays at most, up to 500 slots
# what promises so much of the most is as good: the model does not know what a batch costs besides the policy
LEVEL = 0.98
PATIENCES = (0.5, 1.0, 2.0)  # tried besides none and for ever, in times of the policy's call
FASTER = 1.2  # times: what promises less is not worth a word


@dataclass(frozen=True)
class Choice:
    """A batch is asked when it has `size` rows, when nobody else can come, or `patience` seconds (inf: however long)
    after its first row arrived."""

    size: int
    patience: float


@dataclass(frozen=True)
class Pace:
    """What was measured.

    Attributes:
        call: seconds that the policy takes however few rows it is asked for.
        row: seconds that each row adds.
        steps: a sample of seconds that a worker takes for one step.
        workers: how many work at the same time; slot i is the (i mod workers)-th one's.
    """

    call: float
    row: float
    steps: tuple[float, ...]
    workers: int

    def policy(self, rows: int) -> float:
        """Seconds for a batch."""
        return self.call + self.row * rows

    @property
    def step(self) -> float:
        """Mean seconds of a step."""
        return sum(self.steps) / len(self.steps)

    def like(self, other: Pace | None) -> bool:
        """Is it about the same?"""
        if other is None or self.workers != other.workers:
            return False
        pairs = ((self.step, other.step), (self.policy(1), other.policy(1)), (self.policy(16), other.policy(16)))
        return all(max(one, two) <= CHANGED * min(one, two) for one, two in pairs)


@dataclass
class Counts:
    """What `BatchFormer.stats` tells of.

    Attributes:
        batches: asked.
        rows: in them.
        policy: seconds that the policy was at work.
        idle: seconds that it was not, between its first batch and its latest.
        waited: seconds that ready slots waited until their batch was begun, summed over them.
        full, patient, last: batches that were begun because they were full, because patience was over, and because
            nobody else could come.
    """

    batches: int = 0
    rows: int = 0
    policy: float = 0.0
    idle: float = 0.0
    waited: float = 0.0
    full: int = 0
    patient: int = 0
    last: int = 0


@dataclass
class BatchFormer:
    """Args:
    slots: how many there are.
    workers: that step them.
    size: rows to wait for; None: chosen.
    patience: seconds that a ready slot is kept waiting for others; None: chosen.
    most: rows that the policy takes at a time; None: as many as there are.
    cores: that policies in the workers would compute on; None: one for each.
    """

    slots: int
    workers: int
    size: int | None = None
    patience: float | None = None
    most: int | None = None
    cores: int | None = None
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        check_whole(size=self.size, most=self.most)
        check_seconds("patience", self.patience, none=True, zero=True)
        self._most = min(self.most or self.slots, self.slots)
        first = self.size or max(1, self.slots // 2)
        self.choice = Choice(min(first, self._most), math.inf if self.patience is None else self.patience)
        self._ready: deque[tuple[int, float]] = deque()
        self._asked: deque[tuple[int, float]] = deque(maxlen=KEPT)  # rows, seconds
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._ended: float | None = None  # when the latest batch was answered
        self._chosen_for: Pace | None = None

    # -- what happens ------------------------------------------------------------------------------------------------

    def ready(self, slot: int, now: float) -> None:
        """A slot waits for an action."""
        self._ready.append((slot, now))

    def gone(self, slots: Iterable[int]) -> None:
        """These wait no more: their worker has died."""
        left = set(slots)
        self._ready = deque(each for each in self._ready if each[0] not in left)

    def clear(self) -> None:
        """Nobody waits any more."""
        self._ready.clear()
        self._ended = None

    def stepped(self, seconds: float) -> None:
        """A worker took so long for a step."""
        self._steps.append(seconds)

    def answered(self, rows: int, began: float, now: float) -> None:
        """The policy has answered for so many rows that it was asked for at `began`."""
        counts = self.counts
        counts.batches += 1
        counts.rows += rows
        counts.policy += now - began
        if self._ended is not None:
            counts.idle += began - self._ended
        self._ended = now
        self._asked.append((rows, now - began))
        if (self.size is None or self.patience is None) and (
            counts.batches in AGAIN or counts.batches % AGAIN[-1] == 0
        ):
            self.choose()

    # -- what follows ------------------------------------------------------------------------------------------------

    def take(self, now: float, coming: int) -> list[int]:
        """The slots to ask the policy for now, those that have waited longest first; []: not yet.

        coming: how many slots are being stepped or reset, and will be ready without anybody's doing.
        """
        ready, choice = self._ready, self.choice
        if not ready:
            return []
        if len(ready) >= choice.size:
            self.counts.full += 1
        elif coming <= 0:
            self.counts.last += 1
        elif now - ready[0][1] >= choice.patience:
            self.counts.patient += 1
        else:
            return []
        taken = [ready.popleft() for _ in range(min(len(ready), self._most))]
        self.counts.waited += sum(now - since for _, since in taken)
        return [slot for slot, _ in taken]

    def wait(self, now: float) -> float | None:
        """Seconds after which `take` may say something else although nothing has happened; None: never."""
        if not self._ready or math.isinf(self.choice.patience):
            return None
        return max(0.0, self._ready[0][1] + self.choice.patience - now)

    def pace(self) -> Pace | None:
        """What was measured so far; None: too little."""
        if not self._asked or not self._steps:
            return None
        call, row = fitted(self._asked)
        return Pace(call, row, tuple(self._steps), self.workers)

    def choose(self) -> None:
        """Choose what the user has not given, by what was measured."""
        pace = self.pace()
        if pace is not None and not pace.like(self._chosen_for):
            self._chosen_for = pace
            self.choice = best(pace, self.slots, self._most, self.size, self.patience)

    def outlook(self) -> dict[str, float]:
        """Steps a second in the model, by what was measured: as it is asked now ("now"), with the best choice ("best",
        of "best_size" and "best_patience"), and if each worker asked by itself about one row at a time ("worker").
        {}: too little was measured."""
        pace = self.pace()
        if pace is None:
            return {}
        choice = best(pace, self.slots, self._most)
        now, then = (simulated(pace, self.slots, each, self._most) for each in (self.choice, choice))
        alone = pace.workers / (pace.step + pace.policy(1))
        if self.cores is not None and pace.policy(1):
            alone = min(alone, self.cores / pace.policy(1))
        return {"now": now, "best": then, "best_size": choice.size, "best_patience": choice.patience, "worker": alone}

    def advice(self) -> list[str]:
        """What would be faster by what was measured, a sentence each."""
        look = self.outlook()
        found: list[str] = []
        if not look:
            return found
        if look["best"] > FASTER * look["now"]:
            better = f"batch_size={look['best_size']:.0f}, patience={look['best_patience']:.2g}"
            found.append(f"with {better} it would make about {look['best'] / look['now']:.1f} times as many steps")
        most = max(look["best"], look["now"])
        if look["worker"] > FASTER * most:
            found.append(
                f"asked in the workers (inference='worker', workers={self.workers}) it would make about "
                f"{look['worker'] / most:.1f} times as many steps, if a row takes as long there as was measured here"
            )
        return found

    def stats(self) -> dict[str, float]:
        """What came of it: batches, mean rows of one, share of the time that the policy was at work, mean seconds that
        a slot waited, and the size and patience in force (seconds; inf: no end)."""
        counts = self.counts
        total = counts.policy + counts.idle
        return {
            "batches": counts.batches,
            "rows_per_batch": counts.rows / counts.batches if counts.batches else 0.0,
            "policy_busy": counts.policy / total if total else 0.0,
            "policy_seconds": counts.policy,
            "policy_waited": counts.idle,
            "slot_waited": counts.waited / counts.rows if counts.rows else 0.0,
            "size": self.choice.size,
            "patience": self.choice.patience,
        }


def fitted(asked: Sequence[tuple[int, float]] | deque[tuple[int, float]]) -> tuple[float, float]:
    """Seconds a call and seconds a row (neither below 0) of batches (rows, seconds), by least squares over the median
    of each size: a batch that something else delayed says nothing of the policy."""
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


def best(
    pace: Pace, slots: int, most: int | None = None, size: int | None = None, patience: float | None = None
) -> Choice:
    """The size and patience with which most steps are made, of those given or of a few.

    Of those that do as well (`LEVEL`) the one that asks least often, as each batch costs more than the model knows (who
    waits is woken, and takes a core from the workers). Steps come later than it knows, too: where sizes do as well even
    if they are waited for however long, it is the one in the middle of them (half of the largest). One that waits for
    the slowest of the slots, or for ever, only where no other does as well. A policy that takes next to no time is
    asked at once, without trying.
    """
    most = slots if most is None else min(most, slots)
    at_once, rates = Choice(1, 0.0), dict[Choice, float]()

    def play(choice: Choice) -> None:
        if choice not in rates:
            rates[choice] = simulated(pace, slots, choice, most)

    sizes = [min(size, most)] if size is not None else candidates(most)
    if size is None and patience is None:
        cycle = pace.step * slots / pace.workers
        alone = queued(pace.policy(1), cycle / slots) if 2 * pace.policy(1) <= cycle / slots else math.inf
        if min(pace.policy(most), alone) <= (1 - LEVEL) * cycle:
            # whatever it is asked for takes hardly any time, or whoever is asked for alone hardly waits, and half of a
            # core is left
            return at_once
        play(at_once)
        for rows in sizes[1:]:
            play(Choice(rows, math.inf))
        fastest = sorted(rates, key=lambda each: rates[each])[-3:]
        sizes = sorted({3 * most // 4, *(choice.size for choice in fastest), *_sure(rates, most)})
    for rows in sizes:
        if patience is not None:
            play(Choice(rows, patience))
        elif rows > 1:
            for choice in (*(Choice(rows, times * pace.policy(rows)) for times in PATIENCES), Choice(rows, math.inf)):
                play(choice)
    if not rates:
        return at_once
    level = LEVEL * max(rates.values())
    sure = _sure(rates, most) if patience is None else []
    good = [choice for choice, rate in rates.items() if rate >= level]
    good = [choice for choice in good if not math.isinf(choice.patience)] or good
    good = [choice for choice in good if choice.size <= 3 * most // 4] or good
    good = [choice for choice in good if choice.size in sure] or good
    return max(good, key=lambda choice: (choice.size if choice.patience else 1, choice.patience))


def queued(seconds: float, between: float) -> float:
    """Mean seconds from a row's arrival to its answer when rows arrive at random, so many seconds from one to the next,
    and each takes so long by itself (inf: they come faster than that). Pollaczek and Khinchine's formula for times that
    are all alike, https://en.wikipedia.org/wiki/Pollaczek-Khinchine_formula"""
    load = seconds / between if between else math.inf
    return seconds * (1 + load / (2 * (1 - load))) if load < 1 else math.inf


def _sure(rates: dict[Choice, float], most: int) -> list[int]:
    """Of the sizes that do as well however long they are waited for the one in the middle, if none of them has to wait
    for the slowest of the slots."""
    level = LEVEL * max(rates.values())
    patient = {each.size: rate for each, rate in rates.items() if each.size == 1 or math.isinf(each.patience)}
    good = [size for size, rate in patient.items() if rate >= level]
    largest = max(good, default=most)
    return [min(size for size in good if 2 * size >= largest)] if largest <= 3 * most // 4 else []


def candidates(most: int) -> list[int]:
    """Sizes to try: halves and thirds of all, and powers of two."""
    found = {most, *(max(1, most * part // 12) for part in (9, 8, 6, 4, 3))}
    found.update(2**k for k in range(most.bit_length()) if 2**k <= most)
    return sorted(found)


def simulated(pace: Pace, slots: int, choice: Choice, most: int | None = None, steps: int = 0) -> float:
    """Steps a second in a model with free transport: workers that step their slots one after another, and one policy.

    The model's steps take the times of the sample, in an order that is the same for every choice; it begins with all
    slots ready, and its first quarter is not counted.

    Args:
        steps: to be made; 0: 20 a slot, at most `EVENTS`, and at least 4 a slot.
    """
    most = slots if most is None else most
    total = steps or max(4 * slots, min(EVENTS, 20 * slots))
    durations = _durations(pace.steps, total + slots)
    free = [0.0] * pace.workers  # when each worker has finished what it was given
    out: list[tuple[float, int]] = []  # (when it is ready, slot)
    ready: deque[tuple[int, float]] = deque((slot, 0.0) for slot in range(slots))
    now = began = 0.0
    made = counted = 0
    while made < total:
        while out and out[0][0] <= now:
            at, slot = heapq.heappop(out)
            ready.append((slot, at))
        if len(ready) < choice.size and out and (not ready or now < ready[0][1] + choice.patience):
            until = out[0][0]
            now = until if not ready else min(until, ready[0][1] + choice.patience)
            continue
        batch = [ready.popleft()[0] for _ in range(min(len(ready), most))]
        now += pace.policy(len(batch))
        for slot in batch:
            worker = slot % pace.workers
            free[worker] = max(free[worker], now) + durations[made]
            heapq.heappush(out, (free[worker], slot))
            made += 1
        if not counted and made >= total // 4:
            began, counted = now, made
    return (made - counted) / (now - began) if now > began else math.inf


def _durations(sample: Sequence[float], count: int) -> list[float]:
    """So many of them, drawn with a fixed seed: choices are compared on the same times."""
    return np.random.Generator(np.random.PCG64(0)).choice(np.asarray(sample, np.float64), count).tolist()  # type: ignore[no-any-return]
