"""The courier of workers that play by themselves: short orders of indices go out, results come as they are made."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any

from treadle.errors import WorkerError
from treadle.play.recipe import Results, RolloutOrder, RolloutRecipe
from treadle.play.rounds import Globals, RolloutSlot
from treadle.pool.events import Done, Lost
from treadle.pool.pool import Pool
from treadle.sample.fate import ByIndexFate
from treadle.sample.growth import AT_ONCE
from treadle.sample.schedule import ByIndex
from treadle.wire.messages import Op
from treadle.worker.life import RestartPolicy
from treadle.worker.worker import Worker

MOST_ORDERS = 12  # that one worker may have at a time


class Orders:
    """A courier of indices, see `treadle.stream.stream`. A worker has two or more orders, so it never waits.

    Args:
        recipe: how an episode is played.
        pool: the workers.
        source: of the indices.
        fate: gets the results.

    Attributes:
        wants: the number of indices that a worker has room for.
    """

    def __init__(self, recipe: RolloutRecipe, pool: Pool, source: ByIndex, fate: ByIndexFate) -> None:
        self._pool, self._source, self._fate, self._rows = pool, source, fate, recipe.rows
        self.wants, self.patience = self._share, fate.patience
        self._least = AT_ONCE if pool.later else 1  # those that are added are to find something to do
        source.workers = len(pool.workers)
        source.least = source.workers * self._rows
        fate.playing = self._playing

    @staticmethod
    def pool(
        recipe: RolloutRecipe, source: ByIndex, workers: int, most: float, globals: Globals, **options: Any
    ) -> Pool:
        """The workers, to which others may be added (`most` in all)."""
        together = options["backend"] == "process" and recipe.rows == 1
        recipe = replace(recipe, packs=recipe.sink is None and (recipe.packs or together))
        later = max(0, int(most - workers))
        envs = math.ceil(source.bounded(workers * recipe.rows) / workers)  # no more than there are episodes for
        factories = [partial(RolloutSlot, recipe, slot, globals, envs=envs) for slot in range(workers + later)]
        return Pool(factories, workers=workers, rows=False, later=later, **options)

    # -- handing out -------------------------------------------------------------------------------------------------

    def give(self, held: int) -> None:
        """Give orders to workers that have too little to do, first to those that have least."""
        dealt, able, takers = self._source.dealt, self._fate.able(), list[Worker]()
        if self._fate.failure is None:
            most = self._rows + self._source.ahead
            takers = [each for each in able if len(dealt[each.index]) < most]
        while takers:
            worker = min(takers, key=lambda each: len(dealt[each.index]))
            wanted, wear = self.wants(worker), self._pool.calls.wear
            if wanted and wear.able:
                wanted = min(wanted, wear.left(worker, len(dealt[worker.index]), self._rows))
            if indices := self._source.take(worker.index, wanted, held):
                self._send(worker, indices)
            else:
                takers.remove(worker)
        for worker in able:
            if dealt[worker.index] and not worker.owed:  # what it has begun goes on in its next order
                self._send(worker, [])

    def _share(self, worker: Worker) -> int:
        rows, mine, source = self._rows, len(self._source.dealt[worker.index]), self._source
        size, ahead = source.share(max(source.workers, self._least))
        if mine >= rows + ahead or len(worker.owed) >= MOST_ORDERS:
            return 0
        return max(size, min(rows - mine, math.ceil(min(rows, source.unmade / source.workers))))

    def _send(self, worker: Worker, indices: list[int]) -> None:
        source, (batch, seconds) = self._source, self._source.together
        if worker.restarts or self._pool.policy is RestartPolicy.RAISE:
            batch = 1  # what a death loses is made again, but for runs that end with it
        order = RolloutOrder(source.root, tuple(indices), batch, self._fate.skips, source.schedule.goes_on, seconds)
        source.deal(worker.index, indices)
        self._pool.calls.submit(worker, Op.STREAM, dict.fromkeys(worker.slots, order), worker.slots, order)

    # -- taking ------------------------------------------------------------------------------------------------------

    def answered(self, event: Done) -> Results:
        """Return the results of the slots; exceptions go to the fate."""
        extras, worker = event.reply.extras, event.worker
        if extras is None:
            return []
        for slot, raised in extras.raised.items():
            self._fate.raised(self._fate.error(raised, slot, worker), worker)
        return [each for slot, told in extras.infos.items() for each in self._fate.heard(worker, slot, told)]

    def ready(self, worker: Worker) -> None:
        """A worker has begun, and has nothing to do."""
        self._fate.ready(worker)
        self._source.least = self._source.workers * self._rows

    def gone(self, event: Lost) -> None:
        """Nothing: its indices are the fate's."""

    def _playing(self, worker: Worker, error: WorkerError) -> tuple[list[int], bool]:
        mine = list(self._source.dealt[worker.index])
        playing = [index for index in mine if index == error.where.episode]
        if self._rows == 1:  # it may have made some that it has not told of
            return playing, mine[:1] == playing[:1]
        return playing or mine[: self._rows], len(mine) == 1

    # -- workers that are added --------------------------------------------------------------------------------------

    def more(self) -> float:
        """For how many more workers there is something to do."""
        return self._source.unmade / self._rows

    def work(self, worker: Worker) -> tuple[float, int]:
        """See `Growth`. They always have something to do."""
        return time.monotonic(), worker.looks()
