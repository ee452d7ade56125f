"""How a pool spends its time: its caller's, inside and outside of calls, and its workers'."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from treadle.pool.processor import Usage, stalled
from treadle.verdict import Figures, Verdict, verdict
from treadle.wire import bell
from treadle.wire.line import BUSY_NS

log = logging.getLogger("treadle")

LEFT, AWAY = range(2)  # marks: when the latest call ended (ns), and ns outside of calls


class Spent:
    """How one pool spends its time.

    Attributes:
        marks: indexed by LEFT and AWAY, above. Each face writes them.
    """

    def __init__(self, pool: Any) -> None:
        self._pool, self.marks = pool, [0, 0]
        self.restart()
        self._birth = self._usage.before() / max(1, len(self._workers))

    def restart(self) -> None:
        """Count from now on."""
        self._workers = self._pool.group.in_slot_order()
        self._began, self.marks[AWAY] = self.marks[LEFT], 0
        self._usage, self._stalled, self._at_work = Usage(self._pool), stalled(), self._words()

    def tell(self, verdict: Callable[[], Verdict] | None = None) -> None:
        """Log the verdict (INFO) before the end of a pool that has done something. `verdict`: of a face that counts."""
        if self.marks[LEFT] > self._began and not self._pool.closed and log.isEnabledFor(logging.INFO):
            log.info("%s", (verdict or self.verdict)())

    def _words(self) -> list[int]:
        """Return the ns at work of each worker but the caller; 0 for a worker that is not there now."""
        lines = (worker.line for worker in self._workers if not worker.inline)
        return [0 if line is None else int(line.words[BUSY_NS]) for line in lines]

    def enter(self) -> int:
        """Note that a call begins; return the time in ns. The time of a call that fails counts as outside."""
        now = perf_counter_ns()
        if self._began:
            self.marks[AWAY] += now - self.marks[LEFT]
            self.marks[LEFT] = now
        return now

    def leave(self) -> None:
        """Note that a call ends, in whatever way. Time counts from the end of the first one."""
        self.marks[LEFT] = perf_counter_ns()
        if not self._began:
            self._began, self.marks[AWAY] = self.marks[LEFT], 0

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def verdict(self) -> Verdict:
        """Return the verdict on the pool so far."""
        return verdict(self.judged())

    def judged(self, steps: int = 0, fixed: bool = True) -> Figures:
        """Return the figures since the start. `steps`: of all slots together; `fixed`: the user chose the workers."""
        return self.figures(steps, fixed=fixed)

    def figures(self, steps: int = 0, busy: tuple[float, ...] = (), **more: Any) -> Figures:
        """Return the figures since the start. `busy`: each worker's seconds at work, if known; `more`: further ones."""
        words = zip(self._words(), self._at_work, strict=True)
        busy = busy or tuple((now - then if now >= then else now) * 1e-9 for now, then in words)
        used, mean = self._usage.since(), sum(busy) / max(1, len(busy))
        elapsed, away = (self.marks[LEFT] - self._began) * 1e-9, self.marks[AWAY] * 1e-9
        if not more.get("calls") and mean > away:  # workers go on while the caller is elsewhere
            away = min(away, max(0.0, elapsed - mean))
        found = {
            "elapsed": elapsed, "away": away, "slowest": mean, "ran": used.ran, "stood": used.stood,
            "slots": len(busy), "start": self._pool.start_seconds, "birth": self._birth,
            "stalled": stalled() - self._stalled,
        }  # fmt: skip
        rest: dict[str, Any] = {**found, **more}
        return Figures(busy=busy, steps=steps, threads=used.threads, others=used.others, cores=bell.cores(), **rest)
