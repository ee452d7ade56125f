"""The time of a vector, as figures for its verdict.

Two readings of a clock a call give the caller's own time. The time of each worker is read now and then: at every call
where calls are long, else at one of many. Reading costs half a per cent at most.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np

from treadle.lockstep.lockstep import Lockstep
from treadle.pool.processor import Usage
from treadle.pool.spent import AWAY, LEFT, Spent
from treadle.verdict import CROWD, Figures

CALLS, DUE = 2, 3  # further marks: calls so far, and the call before which none is measured
# one of so many calls is measured; more, where they take so many ns, or part of them (measuring takes 50 us), and of
# few
EVERY, COSTS = 509, 10_000_000
COSTS_OF_SLOT = 1_500_000  # as above, for each slot of the caller's
KEPT = 256  # batches
RECENT = 500_000_000  # ns in which other programs' use of the cores is looked at; what lasted four times as long is old
STEPPED, TIMED, RESETTING, MOVED = range(4)  # rows of `memory.ring.TIMES`


class Measured(Spent):
    """The time of one vector. Its first call does not count: then modules are imported and memory is allocated."""

    def __init__(self, lockstep: Lockstep) -> None:
        memory = lockstep.memory
        self._times = memory.array(memory.fields.times)
        self._own = next((each for each in lockstep.pool.workers if each.inline), None)
        self._batches: deque[tuple[float, ...]] = deque(maxlen=KEPT)
        self._before: Any = None
        super().__init__(lockstep.pool)
        self.marks += [0, 0]
        self._calls, self._crowded = 0, False

    def restart(self) -> None:
        super().restart()
        self._spent, self._recent = self._times.copy(), (self._began, self._usage)
        self._looks = self._slowest = self._resets = self._outright = self._own_ran = self._own_took = 0
        self._batches.clear()

    @contextmanager
    def reset(self) -> Iterator[None]:
        """Count the time of a call that resets slots."""
        first, began = not self._began, self.enter()
        try:
            yield
        finally:
            self.leave()
            if not first:
                self._outright += self.marks[LEFT] - began

    def go_on_alone(self) -> None:
        """Stop measuring batches of all slots: from now on slots go on by themselves."""
        self.marks[DUE], self._looks = sys.maxsize, 0

    def leave(self) -> None:
        """Note that a call ends; of slots that go on by themselves, look at other programs' use of the cores."""
        super().leave()
        if self.marks[DUE] == sys.maxsize and self._crowd_changed(self.marks[LEFT]):
            self.restart()

    def look(self, advance: Callable[[Any], Any], actions: Any) -> Any:
        """Call `advance`, and measure the call."""
        self.before()
        batch = advance(actions)
        self.after()
        return batch

    def before(self) -> None:
        """Note that a step of all slots is about to be requested."""
        if self._own is not None:
            self._own.server.due, self._own.server.took = 0, 0
        self._before = self._words(), self._times[RESETTING].copy(), thread_time_ns()

    def after(self) -> None:
        """Measure the step that has ended, if it was noted before."""
        if self._before is None:
            return
        (words, resets, ran), self._before = self._before, None
        took = [now - then for now, then in zip(self._words(), words, strict=True)]
        if self._own is not None:
            took.insert(0, self._own.server.took)
            self._own_took += took[0]
            self._own_ran += min(took[0], thread_time_ns() - ran)
        if min(took, default=0) > 0:  # none was replaced
            slowest = max(range(len(took)), key=took.__getitem__)
            slots = self._workers[slowest].slots
            self._looks += 1
            self._slowest += took[slowest]
            self._resets += int((self._times[RESETTING] - resets)[slots[0] : slots[-1] + 1].sum())
            self._batches.append(tuple(each * 1e-9 for each in took))
        marks, now = self.marks, perf_counter_ns()
        if not marks[CALLS] or self._crowd_changed(now):
            marks[LEFT], self._calls = now, marks[CALLS] + 1
            self.restart()
            return
        inside, calls = now - self._began - marks[AWAY], marks[CALLS] + 1 - self._calls
        costs = COSTS + (0 if self._own is None else COSTS_OF_SLOT * len(self._own.slots))  # which are timed, too
        marks[DUE] = marks[CALLS] + max(1, min(EVERY, 1 + calls // 8, costs * calls // max(1, inside)))

    def _crowd_changed(self, now: int) -> bool:
        """Return True when other programs have come or gone: what was seen long before says nothing of now."""
        before = self._crowded
        if now - self._recent[0] >= RECENT and now - self._began >= 4 * RECENT:
            self._crowded, self._recent = self._recent[1].since().others > CROWD, (now, Usage(self._pool))
        return self._crowded is not before

    def judged(self, steps: int = 0, fixed: bool = True) -> Figures:
        """Return the figures of all calls but the first, since other programs have last come or gone. `steps`: of all
        slots; `fixed`: the user chose the workers."""
        calls = max(0, self.marks[CALLS] - self._calls) if self._looks else 0
        spent = np.maximum(0, self._times - self._spent)
        each = np.where(spent[TIMED] > 0, spent[STEPPED] / np.maximum(1, spent[TIMED]), 0.0) * 1e-9
        words = zip(self._words(), self._at_work, strict=True)
        busy = [(now - then if now >= then else now) * 1e-9 for now, then in words]
        used, own = self._usage.since(), 0 if self._own is None else len(self._own.slots)
        ran, stood = used.ran, used.stood
        if own:
            own_steps = calls or steps / self._pool.n
            busy.insert(0, float(each[:own].sum()) * own_steps + float(spent[RESETTING, :own].sum()) * 1e-9)
            mine = busy[0] * self._own_ran / self._own_took if calls and self._own_took else min(busy[0], used.own)
            ran, stood = ran + mine, stood + mine * used.line / max(1 - used.line, 1e-9)
        if calls:
            total = [(each / self._looks * calls + self._outright) * 1e-9 for each in (self._slowest, self._resets)]
        else:
            total = [sum(busy) / len(busy), float(spent[RESETTING].sum()) * 1e-9 / len(busy)]
        slowest, resets = total
        moved = float(spent[MOVED].sum() / max(1, spent[STEPPED].sum()))
        return self.figures(
            steps, tuple(busy), calls=calls, slowest=slowest, resets=resets, moving=moved * max(0.0, slowest - resets),
            resetting=float(spent[RESETTING].sum()) * 1e-9, ran=ran, stood=stood, slots=self._pool.n, own=own,
            each=tuple(each.tolist()), batches=tuple(self._batches), fixed=fixed,
        )  # fmt: skip
