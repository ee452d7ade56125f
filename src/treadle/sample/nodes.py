"""Collecting on many nodes. Each has a pool of its own and makes the episodes of its orders; the caller joins them.

To the caller a node is a worker that plays as many episodes at once as its pool has environments. An order ends once
all of its indices are with workers; episodes in play go on in the next order. The node's pool decides about deaths and
deadlines as any pool does. Its decisions about episodes (left out, the end of the run) are sent with the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, cast

from treadle.errors import Where
from treadle.nodes import backend as nodes_backend
from treadle.nodes.host import Site, worth_sending
from treadle.nodes.placing import Placement
from treadle.play.recipe import BATCH, BATCH_SECONDS, Results, RolloutOrder, RolloutRecipe, Shares
from treadle.pool.events import Done
from treadle.pool.pool import Pool
from treadle.program.base import Description, Program, StreamControl
from treadle.program.gym_env import of_coroutines
from treadle.sample.collection import OF_FATE, Collection, run_here
from treadle.sample.failed import CollectionFailed
from treadle.sample.fate import ByIndexFate, ToldFate
from treadle.sample.orders import Orders
from treadle.sample.schedule import AHEAD, SHARES_LEFT, ByIndex, Schedule
from treadle.stream.stream import Tell
from treadle.worker.backends import default_backend
from treadle.worker.worker import Worker

ROWS = "rows"  # the key in a description's metadata: episodes that are played at once

# of orders to nodes
TIMES = 8  # how much larger they are, for each of a node's environments, than those of a worker at hand
LEFT = 2  # shares that what is left is worth to each of several: its answers take longer to come than a worker's
FIRST = 64  # episodes that are made at a time before anybody knows how large one is
AHEAD_SECONDS = 2.0  # that a node has work for: what it has made is known up to a second later
LEAST_SECONDS = 0.1  # that an order takes, at the end too: the next one comes later than that
LOOK_SECONDS = 1.0  # while a node is awaited
LONGER = 30.0  # seconds that a node has, beyond its workers' time, to start and to end
CLOSING = 7.0  # seconds for a node's pool to close, which takes up to 6

# on a node
TURN_SECONDS = 0.25  # after which somebody looks whether to stop, and an order of nothing new is over
GATHER_SECONDS = 0.005  # that what was made waits for more: what goes together takes a fraction of the time
MORE = 8  # times as many episodes that a worker tells of together, once a run lasts
WORKER_SECONDS = 1.0  # that a worker then has work for: what it has made is known a quarter of a second later


def made_in(seconds: float, made: float, since: float, rows: int) -> float:
    """Episodes that one of so many environments makes in so many seconds, if all have `made` so many since then."""
    return seconds * made / max(1, rows) / max(1.0, monotonic() - since)


def wanted(rows: int, mine: int, share: tuple[int, int], soon: float, left: float) -> int:
    """Return how many indices a node gets that plays `rows` episodes at once and has `mine`.

    For each of its environments, `share` is that of `Schedule.share`, and `soon` the episodes that it makes in
    `AHEAD_SECONDS`. `left` is the number of episodes that are not handed out. An order is at most half of
    `AHEAD_SECONDS`, unless the share is larger. It is at least `LEAST_SECONDS` while the run has so much, so that no
    node waits for its next.
    """
    size, ahead = share
    least = int(min(left, soon * LEAST_SECONDS / AHEAD_SECONDS))
    size, ahead = max(size, int(min(ahead, soon / 2)), least), max(ahead, least)
    return 0 if mine >= rows * (1 + ahead) else max(rows * size, rows - mine)


class Nodes:
    """A courier of orders to nodes, see `treadle.stream.stream`.

    Args:
        recipe: how an episode is played.
        pool: of nodes.
        source: of the indices.
        fate: gets the results. An episode that kills a worker kills one of a node's own pool, which judges it; no
            episode is blamed for a node's death.
        seconds: how long the run goes on without a node.
    """

    def __init__(self, recipe: RolloutRecipe, pool: Pool, source: ByIndex, fate: ByIndexFate, seconds: float) -> None:
        self._workers, self._source, self._fate, self._seconds = pool.workers, source, fate, seconds
        self._orders = Orders(recipe, pool, source, fate)
        self._orders.wants, self.ready, self.gone = self._wants, fate.ready, self._orders.gone
        fate.playing = lambda worker, error: ([], False)
        source.ahead, source.least = math.inf, 1  # `_wants` says
        self._alone_since: float | None = None
        self._heard_from: dict[int, float] = {}  # when a node's first results came

    def _rows(self, worker: Worker) -> int:
        """Episodes that a node plays at once; 0 while it is not there."""
        return worker.about.metadata[ROWS] if worker.placed else 0

    def give(self, held: int) -> None:
        """Give orders, of sizes by what each node makes."""
        rows = [self._rows(each) for each in self._workers]
        self._held, self._in_all, self._several = held, max(1, sum(rows)), sum(map(bool, rows)) > 1
        ahead = sum(max(TIMES * AHEAD, self._soon(each)) * self._rows(each) for each in self._workers)
        schedule = self._source.schedule
        schedule.window = max(schedule.window, int(4 * ahead))
        self._orders.give(held)

    def _soon(self, worker: Worker) -> float:
        """Episodes that each environment of a node makes in `AHEAD_SECONDS`, as far as is known."""
        at, since = worker.index, self._heard_from.get(worker.index)
        made = self._source.tally.by_worker.get(at, 0) / self._source.schedule.mean
        return 0.0 if since is None else made_in(AHEAD_SECONDS, made, since, self._rows(worker))

    def _wants(self, worker: Worker) -> int:
        source, schedule, soon = self._source, self._source.schedule, self._soon(worker)
        first = max(1, FIRST // self._in_all)
        share = schedule.share(self._in_all, TIMES, LEFT if self._several else 1, first, max(TIMES * AHEAD, soon))
        left = max(0.0, source.unmade) / self._in_all
        most = wanted(self._rows(worker), len(source.dealt[worker.index]), share, soon, left)
        if source.bounds and schedule.finished <= self._held:  # the caller has not seen one
            most = min(most, max(0, FIRST - len(schedule.issued)))
        return most

    def answered(self, event: Done) -> Results:
        """Return the results of a node, in a worker's form, with its decisions."""
        extras = event.reply.extras
        if extras is not None and extras.infos:
            self._heard_from.setdefault(event.worker.index, monotonic())
        return self._orders.answered(event)

    def patience(self) -> float | None:
        """Return the seconds until the next look for a missing node; None without one."""
        patience = self._fate.patience()
        there = [each.placed for each in self._workers]
        if any(there):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = monotonic()
        elif monotonic() - self._alone_since > self._seconds:
            raise CollectionFailed(
                f"no node has been there for {self._seconds:g} s (start_timeout)", where=Where(phase="stream"),
                reason="no node is left", finished=self._source.schedule.finished,
            )  # fmt: skip
        if all(there):
            return patience
        return LOOK_SECONDS if patience is None else min(patience, LOOK_SECONDS)


def run_on_nodes(
    recipe: RolloutRecipe,
    source: ByIndex,
    placement: Placement,
    *,
    workers: int | None = None,
    backend: str = "process",
    tell: Tell = None,
    **options: Any,
) -> Collection:
    """A run whose workers are nodes. `workers`: of each node, None: as many as it has CPUs; all else as of `run_here`,
    most of it for the nodes' own pools."""
    of_fate = {name: options.pop(name) for name in OF_FATE if name in options}
    mine = {"skipping": of_fate.get("skipping"), "backend": backend, **options}
    start = options.get("start_timeout", 120.0)
    recipe = replace(recipe, packs=recipe.sink is None)
    program, count = partial(NodeRollouts, recipe, source.root, workers, mine), source.bounded(placement.nodes)
    pool = Pool(
        [program] * count, workers=count, rows=False, backend=nodes_backend(),
        placement=replace(placement, gpu=recipe.asking is not None), start_timeout=start + LONGER,
        close_timeout=CLOSING, max_restarts=options.get("max_restarts"),
        on_failure=options.get("on_failure", "restart"),
    )  # fmt: skip
    return Collection(recipe, pool, source, partial(Nodes, seconds=start), partial(ByIndexFate, **of_fate), tell)


class FedSchedule(Schedule):
    """Indices that orders add. `more`: True if others will follow."""

    more = False

    def feed(self, indices: Iterable[int], more: bool) -> None:
        self.more = more
        for index in indices:
            self.lengths.pop(index, None)  # it was made before, and got lost on its way
            self._again.append(index)

    def _advance(self) -> None:
        """The caller decides which indices are settled."""

    @property
    def fed(self) -> bool:
        """Return True if no index is left to take."""
        return not self._again

    def take(self) -> int | None:
        return super().take() if self._again else None

    def to_hand_out(self, mean: float) -> float:
        return len(self._again)

    def share(
        self, workers: int, times: int = 1, shares: int = SHARES_LEFT, first: int = 1, ahead: float = AHEAD
    ) -> tuple[int, int]:
        """As of `Schedule`, but while others follow no index is kept back for a worker that ends early."""
        if not self.more:
            return super().share(workers, times, shares, first, ahead)
        size, _ = super().share(workers, times, 1, first)
        return size, int(ahead)


class Fed(ByIndex):
    """The source of a node's own run: indices as orders bring them.

    Attributes:
        fed: what is to be made.
        since: when it was first fed.
        exact: is it to be known soon what was made? Which of several episodes a worker was playing, say, or how much
            memory each takes.
    """

    ahead = math.inf
    exact = False

    def __init__(self, root: int) -> None:
        self.fed, self.since = FedSchedule(), math.inf
        super().__init__(self.fed, root)

    def share(self, workers: int) -> tuple[int, int]:
        """Few and large messages, once it lasts, as those from here to the caller: each wakes this process."""
        _, seconds = worth_sending(monotonic() - self.since, True)
        if seconds <= 2 * BATCH_SECONDS or self.exact:
            return self.fed.share(workers)
        self.together = MORE * BATCH, seconds / 2
        soon = made_in(WORKER_SECONDS, self.tally.episodes, self.since, workers)
        size, ahead = self.fed.share(workers, ahead=max(AHEAD, soon))
        evenly = math.ceil(self.fed.to_hand_out(1.0) / workers)
        return max(size, min(int(min(ahead, soon / 2)), evenly)), ahead


class NodeRollouts(Program):
    """Makes whole episodes on a node: a run of its own that goes on from order to order.

    It sends its decisions about episodes and does not act on them. A policy on the node is asked once for all of its
    environments.

    Args:
        recipe: how an episode is played.
        root: the run's seed.
        workers: of its pool; None: one for each of its CPUs.
        options: see `run_here`.
    """

    def __init__(self, recipe: RolloutRecipe, root: int, workers: int | None, options: dict[str, Any]) -> None:
        self._recipe, self._root, self._workers, self._options = recipe, root, workers, options

    def arrive(self, site: Site) -> None:
        """Start the pool."""
        self._source, workers = Fed(self._root), self._workers or site.cpus
        told = partial(ToldFate, site.address)
        self._run = run = run_here(self._recipe, self._source, told, workers=workers, **self._options)
        self._fate = cast(ToldFate, run.fate)
        self._source.exact = self._recipe.rows > 1 or run.pool.calls.wear.able

    def describe(self) -> Description:
        pool = self._run.pool
        about = pool.descriptions[0]
        metadata = {**about.metadata, ROWS: pool.n * self._recipe.rows}
        return Description(about.observation_space, about.action_space, metadata=metadata)

    def stream(self, order: RolloutOrder, control: StreamControl) -> Generator[Results, None, Results | None]:
        source, since, until = self._source, 0.0, monotonic() + TURN_SECONDS
        source.since = min(source.since, monotonic())
        source.fed.feed(order.indices, order.more)
        ready, told = self._turn(None), 0.0
        while not control.stopped():
            since = since if ready else monotonic()
            ready += self._turn(max(0.0, since + GATHER_SECONDS - monotonic()) if ready else TURN_SECONDS)
            playing = any(source.dealt.values())
            if source.fed.fed and (order.indices or not playing or monotonic() > until):
                return ready or None
            if ready and monotonic() - since >= GATHER_SECONDS:
                yield ready
                ready, told = Results(), monotonic()
            elif told and monotonic() - told >= TURN_SECONDS:
                yield Results()  # nothing comes after it so soon: whoever gathers what is worth a message looks again
                told = 0.0
        return None

    def _turn(self, seconds: float | None) -> Results:
        """Wait for results (None: do not wait), hand out indices, and return the results and decisions."""
        stream, results = self._run.stream, Results()
        try:
            if seconds is None:
                stream.courier.give(0)
            else:
                results = stream.turn(seconds)
        except CollectionFailed as error:
            self._fate.raised(error)
        told, self._fate.told = self._fate.told, Results()
        return results + told

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Only "shares": see `Collection.shares`."""
        assert name == "shares"
        return Shares.together(self._run.shares().values())

    def close(self) -> None:
        self._run.close()


def collection(
    recipe: RolloutRecipe,
    schedule: Schedule,
    *,
    root: int = 0,
    room: Callable[[int], bool] | None = None,
    placement: Any = None,
    **options: Any,
) -> Collection:
    """A run, which is iterated.

    Args:
        recipe: what is played.
        schedule: which episodes.
        root: the run's seed.
        room: asked before an index is handed out beyond one an environment: may the caller take more results?
        placement: on which nodes of a cluster; None: on this machine.
        options: see `run_here`.
    """
    source = ByIndex(schedule, root, room)
    if options.get("backend") is None:
        coroutines = of_coroutines(recipe.env.env)
        options["backend"] = "process" if placement else default_backend(options, coroutines=coroutines)
    return run_on_nodes(recipe, source, placement, **options) if placement else run_here(recipe, source, **options)
