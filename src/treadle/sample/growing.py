"""A collection that adds workers while it goes on, where environments wait and nobody said how many there are to be.

Which episode is made where does not matter, so whoever comes later just takes orders, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from time import monotonic
from typing import Any

from treadle.play.rounds import RolloutSlot
from treadle.play.slot import Globals
from treadle.pool.calls import Lost
from treadle.pool.pool import Pool
from treadle.sample.growth import AT_ONCE, Growth
from treadle.sample.inference import ENVS_PER_WORKER
from treadle.sample.orders import Collection
from treadle.wire import bell
from treadle.worker.options import MOST_WORKERS
from treadle.worker.worker import Worker


class Growing(Collection):
    """As `Collection`, but for `workers`: None: as many as cores, and of processes more where their environments wait;
    of threads, which are for those, `ENVS_PER_WORKER` a core."""

    def __init__(self, *args: Any, workers: int | None = None, backend: str = "process", **options: Any) -> None:
        self._grows = Growth.possible(workers, backend, options.get("start_method"))
        self._growth: Growth | None = None
        if workers is None and backend == "thread":
            workers = ENVS_PER_WORKER * bell.cores()
        super().__init__(*args, workers=workers, backend=backend, **options)
        self._growth = Growth(self.pool, self._work) if self.pool.later else None

    def _later(self, most: int = MOST_WORKERS) -> int:
        """How many workers may be added."""
        return max(0, int(min(MOST_WORKERS, most, self._unmade()) - self.workers)) if self._grows else 0

    def _unmade(self) -> float:
        """Episodes that are to be handed out, as far as is known."""
        return self.schedule.to_hand_out(self.schedule.mean)

    def _pool(self, globals: Globals, **options: Any) -> Pool:
        later = self._later()
        factories = [partial(RolloutSlot, self._recipe, slot, globals) for slot in range(self.workers + later)]
        return Pool(factories, rows=False, later=later, **options)

    def _made(self) -> Iterator[tuple[int, int, Any]]:
        self._run_from = monotonic(), self.tally.episodes
        if (growth := self._growth) is None:
            yield from super()._made()
            return
        growth.begin()
        for each in super()._made():
            before = monotonic()
            yield each
            growth.away += monotonic() - before

    def patience(self) -> float | None:
        patience = super().patience()
        return patience if self._growth is None else self._growth.patience(patience)

    def give(self, held: int = 0) -> None:
        super().give(held)
        if self._growth is not None and self._failure is None:
            self._growth.turn(self._unmade(), self._left())

    def _left(self) -> float:
        """Seconds that the run goes on with the workers that there are; inf: nobody knows."""
        since, before = self._run_from
        made, left = self.tally.episodes - before, max(0.0, self._unmade()) + len(self.schedule.issued)
        return left * (monotonic() - since) / made if made else math.inf

    def _work(self, worker: Worker) -> tuple[float, int]:
        """See `Growth`. They always have something to do."""
        return monotonic(), worker.looks()

    def _share(self) -> tuple[int, int]:
        # those that are added are to find something to do
        return self.schedule.share(self.workers if self._growth is None else max(self.workers, AT_ONCE))

    def ready(self, worker: Worker) -> None:
        super().ready(worker)
        if not worker.restarts and not worker.retired:  # it was added
            self.workers += 1
            self._least += self._recipe.rows
            self.tally.added += 1

    def died(self, event: Lost) -> None:
        if event.worker.extra and self._growth is not None:
            self._growth.stop()
        super().died(event)
