"""What makes whole episodes on a node: a collection of its own, with its own pool, fed by orders.

To whoever asks it is a worker that plays as many episodes at once as its pool has environments: an order ends as soon
as all of its indices are with somebody, and what is being played goes on in the next one. Its pool decides about deaths
and deadlines as everywhere; what it decides about an episode (it is left out, it ends the run) is told with the
results.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from time import monotonic
from typing import Any

from treadle.nodes.host import Site, worth_sending
from treadle.play.recipe import BATCH, BATCH_SECONDS, Results, RolloutOrder, RolloutRecipe, Shares
from treadle.program.base import Description, Program, StreamControl
from treadle.sample.caller import CallerCollection
from treadle.sample.failed import CollectionFailed
from treadle.sample.fate import ToldFate
from treadle.sample.orders import Collection
from treadle.sample.schedule import AHEAD, SHARES_LEFT, Schedule

TURN_SECONDS = 0.25  # after which somebody looks whether to stop, and an order of nothing new is over
GATHER_SECONDS = 0.005  # that what was made waits for more: what goes together takes a fraction of the time
MORE = 8  # times as many episodes that a worker tells of together, once a run lasts
WORKER_SECONDS = 1.0  # that a worker then has work for: what it has made is known a quarter of a second later
ROWS = "rows"  # the key in a description's metadata: episodes that are played at once


class FedSchedule(Schedule):
    """Indices as they come. `more`: will there be others?"""

    more = False

    def feed(self, indices: Iterable[int], more: bool) -> None:
        self.more = more
        for index in indices:
            self.lengths.pop(index, None)  # it was made before, and got lost on its way
            self._again.append(index)

    @property
    def fed(self) -> bool:
        """Is there none to be taken?"""
        return not self._again

    def take(self) -> int | None:
        return super().take() if self._again else None

    def to_hand_out(self, mean: float) -> float:
        return len(self._again)

    def share(
        self, workers: int, times: int = 1, shares: int = SHARES_LEFT, first: int = 1, ahead: float = AHEAD
    ) -> tuple[int, int]:
        """As long as others follow, nothing is kept back for whoever is done early."""
        if not self.more:
            return super().share(workers, times, shares, first, ahead)
        size, _ = super().share(workers, times, 1, first)
        return size, int(ahead)


def made_in(seconds: float, made: float, since: float, rows: int) -> float:
    """Episodes that one of so many environments makes in so many seconds, if all have `made` so many since then."""
    return seconds * made / max(1, rows) / max(1.0, monotonic() - since)


class OnNode(Collection):
    """A run that goes on from order to order, and tells what it has decided instead of acting on it. The policy is in
    the workers."""

    fate: ToldFate
    _fate = ToldFate
    _reads = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._fed_from = float("inf")  # since when
        self._most = 1 << 60  # `_wants` says

    @property
    def playing(self) -> bool:
        """Is anything with a worker?"""
        return any(self.source.dealt.values())

    def feed(self, order: RolloutOrder) -> Results:
        """Give out what is to be made; returns what was decided meanwhile."""
        assert isinstance(self.schedule, FedSchedule)
        self._fed_from = min(self._fed_from, monotonic())
        self.schedule.feed(order.indices, order.more)
        return self.turn(None)

    def turn(self, seconds: float | None) -> Results:
        """Wait for what comes (None: do not), give out what there is, and tell of it."""
        results = Results()
        try:
            if seconds is None:
                self.give()
            else:
                results = self.stream.turn(seconds)
        except CollectionFailed as error:
            self.fate.raised(error)
        told, self.fate.told = self.fate.told, Results()
        return results + told

    def _share(self) -> tuple[int, int]:
        # few and large messages, as those from here to the caller: each wakes this process. Not where it is to be known
        # soon what was made: which of several episodes a worker was playing, or how much memory each takes
        _, seconds = worth_sending(monotonic() - self._fed_from, True)
        if seconds <= 2 * BATCH_SECONDS or self._recipe.rows > 1 or self.calls.wear.able:
            return super()._share()
        self._together = MORE * BATCH, seconds / 2
        soon = made_in(WORKER_SECONDS, self.tally.episodes, self._fed_from, self.workers)
        size, ahead = self.schedule.share(self.workers, ahead=max(AHEAD, soon))
        evenly = math.ceil(self.schedule.to_hand_out(1.0) / self.workers)
        return max(size, min(int(min(ahead, soon / 2)), evenly)), ahead


class NodeCallerCollection(OnNode, CallerCollection):
    """With the policy in the node's own process, once for all its environments."""


class NodeRollouts(Program):
    """Args:
    recipe: what is played.
    root: the run's seed.
    workers: of its pool; None: as many as it has CPUs there.
    options: see `Collection`.
    """

    def __init__(self, recipe: RolloutRecipe, root: int, workers: int | None, options: dict[str, Any]) -> None:
        self._recipe, self._root, self._workers, self._options = recipe, root, workers, options
        self._run: OnNode | None = None

    def arrive(self, site: Site) -> None:
        """Start the pool."""
        kind = OnNode if self._recipe.asking is None else NodeCallerCollection
        count = self._workers or site.cpus
        self._run = kind(self._recipe, FedSchedule(), root=self._root, workers=count, **self._options)
        self._run.fate.address = site.address

    def _running(self) -> OnNode:
        assert self._run is not None
        return self._run

    def describe(self) -> Description:
        run = self._running()
        about = run.pool.descriptions[0]
        metadata = {**about.metadata, ROWS: run.pool.n * self._recipe.rows}
        return Description(about.observation_space, about.action_space, metadata=metadata)

    def stream(self, order: RolloutOrder, control: StreamControl) -> Generator[Results, None, Results | None]:
        run, since, until = self._running(), 0.0, monotonic() + TURN_SECONDS
        schedule: Any = run.schedule
        ready, told = run.feed(order), 0.0
        while not control.stopped():
            since = since if ready else monotonic()
            ready += run.turn(max(0.0, since + GATHER_SECONDS - monotonic()) if ready else TURN_SECONDS)
            if schedule.fed and (order.indices or not run.playing or monotonic() > until):
                return ready or None
            if ready and monotonic() - since >= GATHER_SECONDS:
                yield ready
                ready, told = Results(), monotonic()
            elif told and monotonic() - told >= TURN_SECONDS:
                yield Results()  # nothing comes after it so soon: whoever gathers what is worth a message looks again
                told = 0.0
        return None

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Only "shares": see `Collection.shares`."""
        assert name == "shares"
        return Shares.together(self._running().shares().values())

    def close(self) -> None:
        if self._run is not None:
            self._run.close()
