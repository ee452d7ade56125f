"""Gathering: how the workers of a sampler are asked, and one sampling by them.

Orders go out, trajectory batches come in, until a stop rule has enough; the same for every backend and every rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from time import monotonic
from typing import Any

import numpy as np

from treadle import seeding
from treadle.errors import UsageError, WorkerError
from treadle.memory.reserved import ResultBuffers
from treadle.pool import failure
from treadle.pool.events import Done, Lost
from treadle.pool.pool import Pool
from treadle.program.base import own_names
from treadle.sample.growth import Growth
from treadle.sample.schedule import Schedule
from treadle.sample.scores import Score
from treadle.samplers.agents import is_parameters
from treadle.samplers.fate import Asked, SamplerFate
from treadle.samplers.sampler_slot import Broadcasts, Mishap, Order, SamplerSlot, SlotRecipe, Updates
from treadle.samplers.steps import StepType
from treadle.samplers.stop_rules import AtLeast, AtLeastByIndex, Exactly, StopRule
from treadle.samplers.trajectories import Trajectories, batch_of
from treadle.stream.stream import Stream
from treadle.stream.watch import Watch
from treadle.wire.broadcast import Broadcast, Payload
from treadle.wire.carried import CannotTravel
from treadle.wire.messages import Op
from treadle.worker.life import ALIVE, RestartPolicy, State
from treadle.worker.worker import Worker

VERSION = "agent_version"  # the key of the episode info that says which sampling's agent played its first step
LAST_VERSION = "agent_version_last"  # and its last
MESSAGES = 8  # what is wanted comes in so many messages of each worker, where rollouts are small


class RolloutCourier:
    """How workers are asked for rollouts, see `treadle.stream.stream`.

    Args:
        pool: of the workers, one slot each.
        fate: of its streams.
        growth: what adds workers; None: nothing does.
        stale: are late episodes handed out, with their version, instead of being dropped?

    Attributes:
        version: the number of the present sampling, from 1: what comes late is told apart by it.
        updates: one a worker: what it was sent since the beginning, for one that takes its place.
        due: one a worker: the updates that go with its next order.
        told: workers that have had an order of this sampling.
        stale: as given.
    """

    def __init__(self, pool: Pool, fate: SamplerFate, growth: Growth | None, stale: bool) -> None:
        self._calls, self._workers, self._fate, self._growth = pool.calls, pool.workers, fate, growth
        self.stale, self._shared = stale, pool.options.backend == "serial"
        self.version, self.told = 0, set[int]()
        self.updates = [Updates()] * len(pool.workers)
        self.due = list(self.updates)
        # which of each worker's processes has had an order last; any other one must be told everything
        self._heard = dict.fromkeys(range(len(pool.workers)), 0)

    def begin(self, source: StopRule, order: Order, watch: Watch) -> None:
        """Begin a sampling. order: what is asked of all workers alike; watch: called with every batch taken."""
        self._source, self._order, self._watch = source, order, watch
        self._fate.source, self._fate.open, self._fate.refused = source, [], False
        self.version += 1
        self.told = set()

    def patience(self) -> float | None:
        """As long as it takes until workers may be added."""
        return None if self._growth is None else self._growth.patience()

    def give(self, held: int = 0) -> None:
        """Orders for workers, of which there may be more now. Raises WorkersLost when there are none.

        Those who have too few get one, unless they have not ended what they were stopped in yet. One that plays on
        between two samplings gets its next order while it ends the one before.
        """
        source, asked = self._source, self._fate.open
        if self._growth is not None and isinstance(source, AtLeastByIndex):  # where they are of use
            self._grow(self._growth, source)
        for mine in range(source.ahead):
            busy = list(map(attrgetter("worker"), asked))
            for worker in self._able():
                if busy.count(worker.index) == mine and len(worker.owed) - mine <= self.stale:
                    wanted = source.wants(worker.index, mine)
                    if wanted is not None:
                        self._send(worker, wanted)
        if not asked and not source.done and not self._calls.expects:
            raise self._fate.cannot()

    def _grow(self, growth: Growth, source: AtLeastByIndex) -> None:
        growth.turn(source.schedule.to_hand_out(source.schedule.mean), math.inf)
        added = len(self._workers) - len(self.updates)
        for known in (self.updates, self.due):
            known += known[:1] * added
        source.workers = len(self.updates)

    def _able(self) -> list[Worker]:
        """Workers that take orders."""
        wear, lost = self._calls.wear, self._fate.lost
        known = self._workers[: len(self.updates)]  # of others an interrupt has lost the word
        able = [each for each in known if each.state in ALIVE and each.index not in lost]
        for worker in [each for each in able if wear.worn(each)] if wear.able else ():
            able.remove(worker)  # and replaced once it has done what it was asked
            if worker.state is State.IDLE:
                self._calls.retire(worker, wear.worn(worker))
        return able

    def _send(self, worker: Worker, wanted: dict[str, Any]) -> None:
        """Give a worker an order, and with it the updates that it has not heard of."""
        at, again = worker.index, len(worker.restarts) + worker.retired
        updates = self.due[at] if again == self._heard.get(at) else self.updates[at]
        self.due[at], self._heard[at] = Updates(), again
        self.told.add(at)
        order = replace(self._order, updates=updates, incarnation=again, **wanted)
        if worker.restarts:  # one that dies again takes nothing finished with it
            order = replace(order, steps=1)
        asked = Asked(at, self.version, order, self.updates[at], again)
        broadcasts = [] if self._shared else [*updates.agent, *updates.env]
        payload = Payload({at: order}, broadcasts) if broadcasts else {at: order}
        self._calls.submit(worker, Op.STREAM, payload, (at,), asked)
        self._fate.open.append(asked)

    def ready(self, worker: Worker) -> None:
        """It was replaced, or added: its next order says all."""

    def gone(self, event: Lost) -> None:
        """Its requests are given back by the fate."""

    def answered(self, event: Done) -> list[Trajectories]:
        """Batches of the result whose place in it is certain now."""
        asked, reply, source, fate = event.call.tag, event.reply, self._source, self._fate
        extras, ours = reply.extras, asked in fate.open
        made: list[Trajectories] = []
        if event.cut and not ours:  # whoever interrupted that sampling knows
            return made
        if extras is not None:
            for result in extras.infos.values():
                if isinstance(result, Mishap):
                    error = failure.task_error(result.raised, event.worker.at(asked.worker))
                    fate.mishap(asked, error, result.text)
                elif ours or (self.stale and isinstance(source, AtLeast)):
                    fate.played[asked.worker, asked.incarnation] += len(result.lengths)
                    asked.made += len(result.rollouts)
                    taken = source.take(asked.worker, self._completed(asked, result))
                    if taken is not None and self._watch.wanted:
                        returns = float(taken.columns["rewards"].sum())
                        self._watch.heard(event.worker, len(taken.lengths), len(taken.codes), returns)
                    made += source.settled()
            for raised in extras.raised.values():
                error = failure.task_error(raised, event.worker.at(asked.worker))
                if error.where.phase == "update" and asked.incarnation:
                    self._heard.pop(asked.worker, None)  # it may not have heard the rest
                fate.raised(event, error)
        if reply.last and ours:
            fate.open.remove(asked)
        return made

    def _completed(self, asked: Asked, batch: Trajectories) -> Trajectories:
        """The batch with its spaces, which travel once a request, and with its version if that is wanted."""
        if batch.env_spec is None:
            batch.env_spec = asked.spec
        asked.spec = batch.env_spec
        if self.stale:
            version = np.full(len(batch.lengths), asked.sampling, np.int64)
            # a worker hears of another agent between two rollouts
            batch.columns["episode_infos"] = with_versions(batch.columns["episode_infos"], version, version)
        return batch


class Gathering:
    """Samplings by workers that ask the agent themselves.

    Args:
        recipes: one a worker, those that may come `later` included.
        prepare: called with an update, and whether it is one of environments; returns what each worker is to get of it.
        backend: "process", or "serial": all workers in the caller's own thread.
        by_index: do episodes count by index? Else in order of arrival.
        stale: see `RolloutCourier`.
        root: what seeds by index are derived from.
        on_failure: "raise", "restart" or "drop": what becomes of a worker that dies or raises.
        max_restarts: of one worker, in ten minutes (deaths) or without a rollout between them (exceptions).
        pool_options: see `treadle.pool.pool.Pool`.

    Raises:
        StartupFailed: a worker could not be built; nothing is left running.
        UsageError: an agent or environment cannot be pickled, or the options make no sense.
    """

    def __init__(
        self,
        recipes: Sequence[SlotRecipe],
        prepare: Callable[[Any, bool], list[Any]],
        *,
        by_index: bool,
        stale: bool,
        root: int,
        **pool_options: Any,
    ) -> None:
        self._prepare, self._by_index, self._root = prepare, by_index, root
        self._base = 0  # rollouts that earlier samplings have used, by index
        self._buffers = ResultBuffers()
        self._shared = pool_options["backend"] == "serial"
        factories = [partial(SamplerSlot, recipe, number, self._shared) for number, recipe in enumerate(recipes)]
        workers = len(recipes) - pool_options.get("later", 0)
        try:
            pool = self.pool = Pool(factories, workers=workers, rows=False, **pool_options)
        except CannotTravel as error:
            raise UsageError(
                f"worker {error.slot}: its factory, agent or environment cannot be sent to it: {error.reason}"
            ) from error
        self._rebuilds = pool_options["max_restarts"] if pool.policy is RestartPolicy.RESTART else 0
        # in a sampling they always have something to do
        self._growth = Growth(pool, lambda worker: (monotonic(), worker.looks())) if pool.later else None
        self._fate = fate = SamplerFate(pool, recipes, self._growth)
        self._courier = RolloutCourier(pool, fate, self._growth, stale)
        pool.calls.wear.played = lambda worker: fate.played[worker.index, len(worker.restarts) + worker.retired]

    def update(self, agent_update: Any, env_update: Any, by_index: bool) -> None:
        """Keep updates for workers, to go with their next orders. Raises UsageError for what cannot be sent, and for a
        list of different things where the next rollouts are `by_index`."""
        if by_index:
            check_alike(BY_INDEX, agent_update=agent_update, env_update=env_update)
        courier = self._courier
        self._before = list(courier.updates), list(courier.due)
        if agent_update is None and env_update is None:
            return
        agents, envs = self._broadcasts(agent_update, False), self._broadcasts(env_update, True)
        new = list(map(Updates, agents, envs))
        courier.updates = [told.and_then(more) for told, more in zip(courier.updates, new, strict=True)]
        courier.due = [due.besides(more) for due, more in zip(courier.due, new, strict=True)]

    def _broadcasts(self, update: Any, of_envs: bool) -> list[Broadcasts]:
        """One tuple a worker. Those that get the same thing share one broadcast."""
        if update is None:
            return [()] * len(self._courier.updates)
        values = self._prepare(update, of_envs)
        made = {id(value): (Broadcast(value, is_parameters(value)),) for value in values if value is not None}
        for (broadcast,) in () if self._shared else made.values():
            try:
                broadcast.pack()
            except Exception as error:  # pickling runs foreign code
                raise UsageError(f"an update cannot be sent: {type(error).__name__}: {error}") from error
        found: list[Broadcasts] = [made.get(id(value), ()) for value in values]
        return found + found[:1] * (len(self._courier.updates) - len(found))  # workers that were added are alike

    def sample(self, steps: int | None, episodes: int | None, watch: Watch) -> Any:
        """A batch of so many steps or episodes. Raises what workers raise (see `SamplerFate`), and WorkersLost."""
        workers, buffers = len(self._courier.updates), self._buffers
        together = 1 << 40 if steps is None else -(-steps // (MESSAGES * workers))  # steps that are worth a message
        source: StopRule
        if self._by_index:
            source = AtLeastByIndex(Schedule(episodes, steps), workers, self._base)
        else:
            source = Exactly((episodes or 0) // workers, workers) if steps is None else AtLeast(steps)
        buffers.begin()
        settle = partial(Trajectories.settle, lay=buffers.lay)
        self._run(source, Order(steps=together, root=self._root), watch, settle)
        if isinstance(source, AtLeastByIndex):
            self._base += source.schedule.end or 0
        return batch_of(source.batches(), buffers.joined)

    def scores(self, episodes: int, seed: int, watch: Watch) -> list[Score]:
        """Of the episodes 0, 1, 2, ... of the root `seed`, in order; workers' own randomness stays as it is."""
        source = AtLeastByIndex(Schedule(episodes=episodes), len(self._courier.updates))
        self._run(source, Order(root=seed, aside=True), watch, Trajectories.strip)
        rollouts = [batch.part(i, i + 1) for batch in source.batches() for i in range(len(batch.rollouts))]
        scores = []
        for index, one in enumerate(rollouts):
            rewards, terminated = one.columns["rewards"], bool(one.codes[-1] == StepType.TERMINAL)
            env_seed, total = seeding.episode_env_seed(seed, index), float(np.sum(rewards))
            scores.append(Score(index, env_seed, total, len(rewards), terminated, not terminated))
        return scores

    def _run(self, source: StopRule, order: Order, watch: Watch, settle: Callable[[Trajectories], None]) -> None:
        """Until there is enough. settle: called with every batch of the result, in the result's order, as soon as that
        is known.

        Late episodes are left behind: workers are stopped, unless they are kept. What a worker failed of in an earlier
        sampling that could not wait for it counts as if it were of this one.
        """
        courier, fate, calls = self._courier, self._fate, self.pool.calls
        calls.check()
        courier.begin(source, replace(order, rebuilds=self._rebuilds), watch)
        calls.stop()
        if fate.lost:
            fate.go_on()
        try:
            watch.begin(self.pool)
            if self._growth is not None:
                self._growth.begin()
            stream = Stream(calls, source, courier, fate, watch)
            for settled in chain(stream.hear(0.0), stream):  # at first: most have ended long ago
                settle(settled)
        except WorkerError:
            fate.failed()
            if fate.refused:  # what cannot be applied is not told to workers that come later, either
                courier.updates, due = self._before
                courier.due = [Updates() if at in courier.told else each for at, each in enumerate(due)]
            raise
        finally:
            watch.end()
            if not courier.stale and not self.pool.group.closed:
                calls.stop()

    def close(self) -> None:
        """End the workers, who close their environments."""
        self.pool.close()
        self.pool.calls.clear()  # and with it what orders took along: the files of broadcasts
        self._courier.updates = self._courier.due = [Updates()] * len(self._courier.updates)
        self._before, self._fate.open = (self._courier.due, self._courier.due), []
        self._buffers.clear()


def with_versions(infos: Mapping[str, Any], first: Any, last: Any) -> dict[str, Any]:
    """Infos of an episode (or columns of such), and which sampling's agent played its first step and its last."""
    own = {VERSION: first, LAST_VERSION: last}
    return {**own_names(infos, frozenset(own), "env"), **own}


BY_INDEX = "episodes by index (schedule='deterministic', evaluate) must not depend on who plays them: give one for all"


def check_alike(why: str, **given: Any) -> None:
    """Raises UsageError for lists of different things, one a worker; it says why workers must be alike."""
    for what, each in given.items():
        if isinstance(each, list) and any(one is not each[0] for one in each):
            raise UsageError(f"{what} is a list of different things, one a worker; {why}")
