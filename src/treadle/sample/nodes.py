"""Collecting on many nodes: each has a pool of its own and makes the episodes of an order; here they come together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from treadle.errors import Where, WorkerError
from treadle.nodes import backend as nodes_backend
from treadle.nodes.placing import Placement
from treadle.play.recipe import Results, RolloutRecipe
from treadle.play.slot import Globals
from treadle.pool.pool import Pool
from treadle.sample.failed import CollectionFailed
from treadle.sample.fate import Failed
from treadle.sample.node_rollouts import ROWS, NodeRollouts, made_in
from treadle.sample.orders import Collection
from treadle.sample.schedule import AHEAD, Schedule
from treadle.worker.worker import Worker

TIMES = 8  # how much larger a node's orders are, for each of its environments, than those of a worker at hand
SHARES_LEFT = 2  # that what is left is worth to each of several: its answers take longer to come than a worker's
FIRST = 64  # episodes that are made at a time before anybody knows how large one is
AHEAD_SECONDS = 2.0  # that a node has work for: what it has made is known up to a second later
LEAST_SECONDS = 0.1  # that an order takes, at the end too: the next one comes later than that
LOOK_SECONDS = 1.0  # while a node is awaited
LONGER = 30.0  # seconds that a node has, beyond its workers' time, to start and to end


def wanted(rows: int, mine: int, share: tuple[int, int], soon: float, left: float) -> int:
    """How many indices a node is to get that plays `rows` episodes at once and has `mine`.

    For each of its environments: `share`: see `Schedule.share`; `soon`: episodes that it makes in `AHEAD_SECONDS`;
    `left`: those that are still to be handed out. An order is of no more than half of `AHEAD_SECONDS`, but for what the
    share says; and of `LEAST_SECONDS` as long as there is so much, or a node that is done waits for the next one.
    """
    size, ahead = share
    least = int(min(left, soon * LEAST_SECONDS / AHEAD_SECONDS))
    size, ahead = max(size, int(min(ahead, soon / 2)), least), max(ahead, least)
    return 0 if mine >= rows * (1 + ahead) else max(rows * size, rows - mine)


class NodesCollection(Collection):
    """As `Collection`; its workers are nodes. `workers`: of each node, None: as many as it has CPUs."""

    def __init__(
        self,
        recipe: RolloutRecipe,
        schedule: Schedule,
        *,
        placement: Placement,
        root: int = 0,
        workers: int | None = None,
        backend: str = "process",
        **options: Any,
    ) -> None:
        run = {name: options.pop(name, None) for name in ("room", "failures", "keep", "tell", "skipping")}
        options.setdefault("on_failure", "restart")
        self._mine = {"skipping": run["skipping"], "backend": backend, **options}
        placement = replace(placement, gpu=recipe.asking is not None)
        self._node_workers, self._start = workers, options.get("start_timeout", 120.0)
        self._alone_since: float | None = None
        kept = {name: options[name] for name in ("on_failure", "max_restarts") if name in options}
        more = {"start_timeout": self._start + LONGER, "close_timeout": options.get("close_timeout", 5.0) + 2.0}
        super().__init__(
            replace(recipe, packs=True), schedule, root=root, workers=placement.nodes, backend=nodes_backend(),
            placement=placement, **kept, **more, **run,
        )  # fmt: skip
        self.source.least = 1
        self._bounded = run["room"] is not None
        self._heard_from: dict[int, float] = {}  # when a node's first results came

    def _pool(self, globals: Globals, **options: Any) -> Pool:
        options.pop("prints", None)  # it is their own pools' matter
        program = partial(NodeRollouts, self._recipe, self.source.root, self._node_workers, self._mine)
        return Pool([program] * self.workers, rows=False, **options)

    def _rows(self, worker: Worker) -> int:
        """Episodes that a node plays at once; 0 while it is not there."""
        return worker.about.metadata[ROWS] if worker.placed else 0

    # -- handing out -------------------------------------------------------------------------------------------------

    def give(self, held: int = 0) -> None:
        rows = [self._rows(each) for each in self.pool.workers]
        self._in_all, self._several = max(1, sum(rows)), sum(map(bool, rows)) > 1
        self._first = max(1, FIRST // self._in_all)
        self._most = 1 << 60  # `_wants` says
        ahead = sum(max(TIMES * AHEAD, self._soon(each)) * self._rows(each) for each in self.pool.workers)
        self.schedule.window = max(self.schedule.window, int(4 * ahead))
        super().give(held)

    def _soon(self, worker: Worker) -> float:
        """Episodes that each environment of a node makes in `AHEAD_SECONDS`, as far as is known."""
        at, since = worker.index, self._heard_from.get(worker.index)
        made = self.tally.by_worker.get(at, 0) / self.schedule.mean
        return 0.0 if since is None else made_in(AHEAD_SECONDS, made, since, self._rows(worker))

    def _wants(self, worker: Worker, held: int) -> int:
        schedule, soon = self.schedule, self._soon(worker)
        several = SHARES_LEFT if self._several else 1
        share = schedule.share(self._in_all, TIMES, several, self._first, max(TIMES * AHEAD, soon))
        left = max(0.0, schedule.to_hand_out(schedule.mean)) / self._in_all
        most = wanted(self._rows(worker), len(self.source.dealt[worker.index]), share, soon, left)
        if self._bounded and len(schedule.lengths) <= held:  # the caller has not seen one
            most = min(most, max(0, FIRST - len(schedule.issued)))
        return most

    # -- taking ------------------------------------------------------------------------------------------------------

    def patience(self) -> float | None:
        """While a node is awaited somebody looks for it now and then."""
        patience = super().patience()
        there = [each.placed for each in self.pool.workers]
        if any(there):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = monotonic()
        elif monotonic() - self._alone_since > self._start:
            raise CollectionFailed(
                f"no node has been there for {self._start:g} s (start_timeout)", where=Where(phase="stream"),
                reason="no node is left", finished=len(self.schedule.lengths),
            )  # fmt: skip
        if all(there):
            return patience
        return LOOK_SECONDS if patience is None else min(patience, LOOK_SECONDS)

    def _results(self, ready: Sequence[tuple[int, int, Any]], worker: Worker, slot: int) -> Results:
        plain = Results()
        self._heard_from.setdefault(worker.index, monotonic())
        for index, length, result in ready:
            if not isinstance(result, Failed):
                plain.append((index, length, result))
            elif result.skip:
                del self.source.dealt[worker.index][index]
                self.fate.skip(index, result.rebuilt(len(self.schedule.lengths)))
            else:
                self.fate.raised(result.rebuilt(len(self.schedule.lengths)), worker)
        return super()._results(plain, worker, slot)

    def _playing_in(self, worker: Worker, error: WorkerError) -> tuple[list[int], bool]:
        """What kills a worker kills one of the node's own pool, which judges it; a node's death is nobody's fault."""
        return [], False
