"""One sampling: orders go out, hauls come in, until a stop rule has enough. The same for every backend and rule."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from treadle.errors import WorkerError
from treadle.pool.calls import Done, Event, Lost
from treadle.program.own_names import own_names
from treadle.sample import workers_lost
from treadle.sample.crew import Asked, Crew
from treadle.sample.haul import Haul
from treadle.sample.sampler_slot import Mishap, Order
from treadle.sample.stop_rules import AtLeast, ByIndex, Exactly, StopRule
from treadle.sample.watch import Watch
from treadle.sample.workers_lost import why

log = logging.getLogger("treadle")

AHEAD = 2  # orders by index that a worker has at a time
VERSION = "agent_version"  # the key of the episode info that says which sampling's agent played


class Versions:
    """Attributes:
    now: the number of the present sampling, from 1: what comes late is told apart by it.
    keep: are late episodes handed out, with their version, instead of being dropped?
    """

    def __init__(self, keep: bool) -> None:
        self.now, self.keep = 0, keep

    def begin(self) -> None:
        self.now += 1

    def completed(self, asked: Asked, haul: Haul) -> Haul:
        """The haul with its spaces, which travel once a request, and with its version if that is wanted."""
        if haul.env_spec is None:
            haul.env_spec = asked.spec
        asked.spec = haul.env_spec
        if self.keep:
            infos = haul.columns["episode_infos"]
            version = np.full(len(haul.lengths), asked.sampling, np.int64)
            haul.columns["episode_infos"] = {**own_names(infos, frozenset({VERSION}), "env"), VERSION: version}
        return haul


class Gathering:
    """Args:
    crew: the workers.
    versions: of this and earlier samplings.
    rule: when it is enough.
    first: worker -> its next order: with the updates that it has not been told yet.
    watch: told of every haul that is taken.
    settle: called with every haul of the result, in the result's order, as soon as that is known.

    Attributes:
        refused: did a worker raise in an update of this sampling?
    """

    def __init__(
        self,
        crew: Crew,
        versions: Versions,
        rule: StopRule,
        first: Callable[[int], Order],
        watch: Watch,
        settle: Callable[[Haul], None],
    ) -> None:
        self._crew, self._versions, self._rule = crew, versions, rule
        self._watch, self._settle = watch, settle
        self._first = first
        self.refused = False
        self._open: list[Asked] = []  # requests of this sampling that are not over
        self._fresh: set[int] = set()  # workers that have no order of this sampling yet
        self._owing: set[int] = set()  # those that get none yet: they have not ended what they were stopped in

    def run(self) -> None:
        """Until there is enough. Raises what workers raise (see `Crew`), and WorkersLost.

        Late episodes are left behind: workers are stopped, unless they are kept. What a worker failed of in an earlier
        sampling that could not wait for it counts as if it were of this one.
        """
        crew, rule = self._crew, self._rule
        crew.pool.check()
        crew.calls.stop()
        if crew.lost and (rule.needs_all or len(crew.lost) == crew.count):
            raise self._cannot()
        self._owing.update(crew.ready())
        watch = self._watch
        try:
            watch.begin(crew.pool)
            self._hear(crew.poll(0.0))  # most have ended long ago
            self._free()
            self._send()
            while not rule.done:
                events = crew.poll(watch.patience(None))
                watch.look()
                self._hear(events)
                self._free()
                if not events and not self._open and not self._fresh and not crew.pool.expects:
                    raise self._cannot()
                if not rule.done:
                    self._send()
        except WorkerError:
            for asked in self._open:
                asked.told = True
            raise
        finally:
            watch.end()
            if not self._versions.keep and not crew.pool.closed:
                crew.calls.stop()

    def _hear(self, events: Iterable[Event]) -> None:
        """All of them, also those behind one that raises: they do not come again."""
        error: WorkerError | None = None
        for event in events:
            try:
                if isinstance(event, Done):
                    self._answered(event)
                elif isinstance(event, Lost):
                    self._died(event)
                else:
                    self._fresh.update(event.member.slots)
            except WorkerError as another:
                error = another if error is None else error
        if error is not None:
            raise error

    def _free(self) -> None:
        """Workers that have ended what they were stopped in may get orders.

        One that plays on between two samplings is told its next order while it ends the one before.
        """
        for worker in list(self._owing):
            if self._crew.owes(worker) <= self._versions.keep:
                self._owing.discard(worker)
                self._fresh.add(worker)

    def _cannot(self) -> WorkerError:
        lost, count = self._crew.lost, self._crew.count
        return workers_lost.nobody_left(lost) if len(lost) == count else workers_lost.too_few_left(lost)

    def _send(self) -> None:
        """Give orders to those who have none (or, by index, too few)."""
        rule = self._rule
        if not isinstance(rule, ByIndex):
            if self._fresh:
                self._note({worker: self._ordered(worker, rule) for worker in self._fresh})
            return
        for ahead in range(AHEAD):
            for worker in self._crew.ready():
                if worker not in self._owing and self._had(worker) <= ahead and (chunk := rule.chunk()):
                    self._note({worker: replace(self._first(worker), indices=chunk)})

    def _ordered(self, worker: int, rule: AtLeast | Exactly) -> Order:
        order = self._first(worker)
        return replace(order, most=rule.each - rule.have[worker]) if isinstance(rule, Exactly) else order

    def _had(self, worker: int) -> int:
        return sum(worker in asked.orders for asked in self._open)

    def _note(self, orders: dict[int, Order]) -> None:
        self._open += self._crew.send(orders, self._versions.now)
        self._fresh -= orders.keys()

    def _answered(self, event: Done) -> None:
        asked, reply = event.tag, event.reply
        extras, ours = reply.extras, asked in self._open
        if extras is not None:
            for worker, result in extras.infos.items():
                if isinstance(result, Mishap):
                    log.warning("worker %d raised and is replaced: %s", worker, result.text)
                    continue
                haul = self._versions.completed(asked, result)
                if not ours and not (self._versions.keep and isinstance(self._rule, AtLeast)):
                    continue
                taken = self._rule.take(worker, haul)
                if taken is not None and self._watch.wanted:
                    self._watch.heard(
                        event.member, len(taken.lengths), len(taken.codes), float(taken.columns["rewards"].sum())
                    )
                for settled in self._rule.settled():
                    self._settle(settled)
            for worker, raised in sorted(extras.raised.items()):
                error = self._crew.raised(worker, raised, reply.id)
                if ours:
                    if worker in asked.orders:
                        self._raised(worker, error, asked.orders.pop(worker))
                elif not asked.told:
                    self._raised(worker, error)
                elif error.where.phase != "update":  # an update is the same for all
                    log.warning("worker %d has failed, too, in a sampling that failed: %s", worker, why(error))
        if reply.last and ours:
            self._open.remove(asked)

    def _raised(self, worker: int, error: WorkerError, order: Order | None = None) -> None:
        """What a worker raised in an order of this sampling; without one, in an earlier one that did not wait."""
        if error.where.phase == "update":  # the caller's own mistake, not the worker's
            self.refused = order is not None
            if self._crew.incarnation(worker):
                self._crew.strangers.add(worker)  # it may not have heard the rest
            raise error
        if order is not None:
            self._give_back(order)
        self._fresh.discard(worker)
        self._owing.discard(worker)
        self._crew.lose(worker, error)
        self._missed()

    def _died(self, event: Lost) -> None:
        for asked in event.tags:
            if asked in self._open:
                self._open.remove(asked)
                for order in asked.orders.values():
                    self._give_back(order)
        self._fresh -= set(event.member.slots)
        self._owing -= set(event.member.slots)
        if event.verdict is not None and not self._crew.died(event):
            self._missed()

    def _give_back(self, order: Order) -> None:
        """What a failed worker was to make by index is for others now; so is what it would have made after that."""
        rule = self._rule
        if isinstance(rule, ByIndex):
            rule.lose(order.indices or ())

    def _missed(self) -> None:
        """A worker is gone for good: can this still be done?"""
        if self._rule.needs_all or len(self._crew.lost) == self._crew.count:
            raise self._cannot()
