"""Batches of a policy in the caller as a model of discrete events: the ideal of `benchmarks.inference`."""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treadle.sample.batching import Choice

EVENTS = 2000  # steps that one simulation plays at most, up to 500 slots
PATIENCES = (0.5, 1.0, 2.0)  # tried besides none and for ever, in times of the policy's call


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
