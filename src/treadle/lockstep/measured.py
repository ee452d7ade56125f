"""How the time of a vector goes by: what its verdict is made of.

Two looks at a clock a call tell the caller's own time. How long each worker takes is looked at now and then: at every
call where calls are long, else at one of many. Looking costs half a per cent at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic, perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np

from treadle.lockstep.lockstep import Lockstep
from treadle.pool.processor import Usage, stalled
from treadle.verdict import Figures
from treadle.wire import bell
from treadle.wire.line import BUSY_NS

# marks: when the latest call ended (ns), ns outside of calls, calls, and before which of them not to look at one
LEFT, AWAY, CALLS, DUE = range(4)
EVERY, COSTS = 61, 2_000_000  # one of so many calls is looked at; more, where they take so many ns, or part of them
KEPT = 256  # batches
STEPPED, TIMED, RESETTING, MOVED = range(4)  # rows of `memory.ring.TIMES`


class Measured:
    """Of one vector. Its first call does not count: then modules are imported and memory is allocated.

    Attributes:
        marks: see above; whoever steps writes them.
    """

    def __init__(self, lockstep: Lockstep, began: float) -> None:
        """`began`: when its workers began to start (monotonic)."""
        self._pool, memory = lockstep.pool, lockstep.memory
        self._start, self.marks = monotonic() - began, [0, 0, 0, 0]
        self._times = memory.array(memory.fields.times)
        self._workers = self._pool.group.in_slot_order()
        self._own = next((each for each in self._workers if each.inline), None)
        self._batches: deque[tuple[float, ...]] = deque(maxlen=KEPT)
        self._before: Any = None
        self._restart()

    def _restart(self) -> None:
        """Count from now on."""
        self._began, self._calls, self.marks[AWAY] = self.marks[LEFT], self.marks[CALLS], 0
        self._usage, self._stalled = Usage(self._pool), stalled()
        self._at_work, self._spent = self._words(), self._times.copy()
        self._looks = self._slowest = self._resets = self._outright = self._own_ran = self._own_took = 0
        self._batches.clear()

    def _words(self) -> list[int]:
        """ns at work of each worker but the caller; 0 of one that is not there now."""
        lines = (worker.line for worker in self._workers if not worker.inline)
        return [0 if line is None else int(line.words[BUSY_NS]) for line in lines]

    # -- calls ---------------------------------------------------------------------------------------------------------

    def enter(self) -> int:
        """A call begins: when, in ns."""
        now = perf_counter_ns()
        if self.marks[LEFT]:
            self.marks[AWAY] += now - self.marks[LEFT]
        return now

    def leave(self, reset: int = 0) -> None:
        """A call ends; `reset`: it was one of slots, and began then."""
        now = perf_counter_ns()
        if not self.marks[LEFT]:
            self._began = now
        elif reset:
            self._outright += now - reset
        self.marks[LEFT] = now

    def look(self, advance: Callable[[Any], Any], actions: Any) -> Any:
        """Call `advance`, and look at it."""
        self.before()
        batch = advance(actions)
        self.after()
        return batch

    def before(self) -> None:
        """A step of all slots is about to be asked for."""
        if self._own is not None:
            self._own.server.due, self._own.server.took = 0, 0
        self._before = self._words(), self._times[RESETTING].copy(), thread_time_ns()

    def after(self) -> None:
        """It is done."""
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
        if not marks[CALLS]:
            marks[LEFT] = now
            self._restart()
            self._calls = 1
            return
        inside, calls = now - self._began - marks[AWAY], marks[CALLS] + 1 - self._calls
        marks[DUE] = marks[CALLS] + max(1, min(EVERY, COSTS * calls // max(1, inside)))

    # -- what came of them ---------------------------------------------------------------------------------------------

    def figures(self, steps: int, fixed: bool) -> Figures:
        """Of all calls but the first. `steps`: of all slots together; `fixed`: the user has chosen how many workers."""
        marks, calls = self.marks, max(0, self.marks[CALLS] - self._calls)
        spent = np.maximum(0, self._times - self._spent)
        each = np.where(spent[TIMED] > 0, spent[STEPPED] / np.maximum(1, spent[TIMED]), 0.0) * 1e-9
        of_cores = self._usage.since()
        ran, stood = of_cores.ran, of_cores.stood
        words = zip(self._words(), self._at_work, strict=True)
        busy = [(now - then if now >= then else now) * 1e-9 for now, then in words]
        if self._own is not None:
            mine = slice(0, len(self._own.slots))
            busy.insert(0, float(each[mine].sum()) * calls + float(spent[RESETTING, mine].sum()) * 1e-9)
            mine_ran = busy[0] * self._own_ran / max(1, self._own_took)
            ran, stood = ran + mine_ran, stood + mine_ran * of_cores.line / max(1 - of_cores.line, 1e-9)
        elapsed, away = (marks[LEFT] - self._began) * 1e-9, marks[AWAY] * 1e-9
        outright = self._outright * 1e-9
        if self._looks and calls:
            slowest, resets = (total / self._looks * calls * 1e-9 for total in (self._slowest, self._resets))
            slowest, resets = slowest + outright, resets + outright
        else:
            calls, slowest = 0, sum(busy) / len(busy)
            resets = float(spent[RESETTING].sum()) * 1e-9 / len(busy)
        moved = float(spent[MOVED].sum() / max(1, spent[STEPPED].sum()))
        resetting = float(spent[RESETTING].sum()) * 1e-9
        return Figures(
            elapsed=elapsed, away=away, calls=calls, steps=steps, start=self._start, stalled=stalled() - self._stalled,
            busy=tuple(busy), slowest=slowest, resets=resets, resetting=resetting,
            moving=moved * max(0.0, slowest - resets), ran=ran, stood=stood, threads=of_cores.threads,
            others=of_cores.others, cores=bell.cores(), slots=self._pool.n, fixed=fixed,
            own=0 if self._own is None else len(self._own.slots), each=tuple(each.tolist()),
            batches=tuple(self._batches),
        )  # fmt: skip
