"""One sampling by a sampler's workers.

The courier sends orders and receives trajectory batches until a stop rule has enough. This is the same for every
backend and every rule.
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
from treadle.samplers.fate import SamplerFate, SamplerRequest
from treadle.samplers.sampler_slot import Broadcasts, Mishap, SamplerOrder, SamplerSlot, SlotRecipe, Updates, joined
from treadle.samplers.steps import StepType
from treadle.samplers.stop_rules import AtLeast, AtLeastByIndex, Exactly, StopRule
from treadle.samplers.trajectories import Trajectories, batch_of
from treadle.stream.stream import Stream, Watch
from treadle.wire.broadcast import Broadcast, Payload
from treadle.wire.carried import CannotTravel
from treadle.wire.messages import Op
from treadle.worker.life import ALIVE, RestartPolicy, State
from treadle.worker.worker import Worker

VERSION = "agent_version"  # key of an episode info: the number of the sampling whose agent played the first step
LAST_VERSION = "agent_version_last"  # the same for the last step
MESSAGES = 8  # messages of each worker in a sampling, where rollouts are small


class RolloutCourier:
    """Asks workers for rollouts, see `treadle.stream.stream`.

    Args:
        pool: of the workers, one slot each.
        fate: of the pool's streams.
        growth: adds workers; None: the number of workers is fixed.
        stale: True: late episodes are handed out, with their version. False: they are dropped.

    Attributes:
        version: the number of the present sampling, from 1; it distinguishes late episodes.
        updates: one a worker: all updates since the beginning, for a worker that takes its place.
        due: one a worker: the updates that go with its next order. The latest is apart from those before it: a worker
            that refuses it has applied all others.
        told: workers that have had an order of this sampling.
        stale: as given.
    """

    def __init__(self, pool: Pool, fate: SamplerFate, growth: Growth | None, stale: bool) -> None:
        self._calls, self._workers, self._fate, self._growth = pool.calls, pool.workers, fate, growth
        self.stale, self._shared = stale, pool.options.backend == "serial"
        self.version, self.told = 0, set[int]()
        self.updates = [Updates()] * len(pool.workers)
        self.due: list[tuple[Updates, ...]] = [()] * len(pool.workers)
        # worker -> incarnation that had an order last; any other incarnation needs all updates
        self._heard = dict.fromkeys(range(len(pool.workers)), 0)

    def begin(self, source: StopRule, order: SamplerOrder, watch: Watch) -> None:
        """Begin a sampling. order: the fields that all workers' orders share; watch: called with every batch taken."""
        self._source, self._order, self._watch = source, order, watch
        self._fate.source, self._fate.open, self._fate.refused = source, [], False
        self.version += 1
        self.told = set()

    def patience(self) -> float | None:
        """Return the most seconds to wait for answers: until workers may be added; None: no limit."""
        return None if self._growth is None else self._growth.patience()

    def give(self, held: int = 0) -> None:
        """Add workers if that pays, and send orders. Raises WorkersLost if all workers are gone.

        A worker with too few orders gets one, unless it has yet to end an order that was stopped. A worker that plays
        on between two samplings gets its next order while it ends the one before.
        """
        source, asked = self._source, self._fate.open
        if self._growth is not None and isinstance(source, AtLeastByIndex):  # other rules need no more workers
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
        self.updates += self.updates[:1] * added
        self.due += self.due[:1] * added
        source.workers = len(self.updates)

    def _able(self) -> list[Worker]:
        """Return the workers that take orders."""
        wear, lost = self._calls.wear, self._fate.lost
        known = self._workers[: len(self.updates)]  # an interrupt may have hidden that others were added
        able = [each for each in known if each.state in ALIVE and each.index not in lost]
        for worker in [each for each in able if wear.worn(each)] if wear.able else ():
            able.remove(worker)  # it is replaced once its requests are done
            if worker.state is State.IDLE:
                self._calls.retire(worker, wear.worn(worker))
        return able

    def _send(self, worker: Worker, wanted: dict[str, Any]) -> None:
        """Send a worker an order, with the updates that it has not had."""
        at, again = worker.index, len(worker.restarts) + worker.retired
        updates = self.due[at] if again == self._heard.get(at) else (self.updates[at],)
        self.due[at], self._heard[at] = (), again
        self.told.add(at)
        order = replace(self._order, updates=updates, incarnation=again, **wanted)
        if worker.restarts:  # send every rollout at once: if the worker dies again, no finished rollout is lost
            order = replace(order, steps=1)
        asked = SamplerRequest(at, self.version, order, self.updates[at], again)
        broadcasts = [] if self._shared else [one for each in updates for one in (*each.agent, *each.env)]
        payload = Payload({at: order}, broadcasts) if broadcasts else {at: order}
        self._calls.submit(worker, Op.STREAM, payload, (at,), asked)
        self._fate.open.append(asked)

    def ready(self, worker: Worker) -> None:
        """Do nothing for a worker that was replaced or added: its next order holds all updates."""

    def gone(self, event: Lost) -> None:
        """Do nothing: the fate gives the worker's requests back."""

    def answered(self, event: Done) -> list[Trajectories]:
        """Return the batches whose place in the result has become certain."""
        asked, reply, source, fate = event.call.tag, event.reply, self._source, self._fate
        extras, ours = reply.extras, asked in fate.open
        made: list[Trajectories] = []
        if event.cut and not ours:  # that sampling was interrupted, so its caller has an exception already
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
                    self._heard.pop(asked.worker, None)  # it may lack the updates after the one that raised
                fate.raised(event, error)
        if reply.last and ours:
            fate.open.remove(asked)
        return made

    def _completed(self, asked: SamplerRequest, batch: Trajectories) -> Trajectories:
        """Add the spaces, which travel once a request, and with `stale` the version to a batch, and return it."""
        if batch.env_spec is None:
            batch.env_spec = asked.spec
        asked.spec = batch.env_spec
        if self.stale:
            version = np.full(len(batch.lengths), asked.sampling, np.int64)
            # a worker changes its agent between two rollouts only
            batch.columns["episode_infos"] = with_versions(batch.columns["episode_infos"], version, version)
        return batch


class Gathering:
    """Samplings by workers that ask the agent themselves.

    Args:
        recipes: one a worker, including workers that may be added `later`.
        prepare: called with (update, True for environments); returns each worker's part of the update.
        backend: "process", or "serial": all workers in the caller's own thread.
        by_index: True: episodes count by index. False: in order of arrival.
        stale: see `RolloutCourier`.
        root: the seed that seeds by index are derived from.
        on_failure: "raise", "restart" or "drop" a worker that dies or raises.
        max_restarts: of one worker, in ten minutes (deaths) or without a rollout between them (exceptions).
        pool_options: see `treadle.pool.pool.Pool`.

    Raises:
        StartupFailed: a worker could not be built; all workers are ended.
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
        self._base = 0  # the first index that earlier samplings have not used
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
        # workers are always busy during a sampling
        self._growth = Growth(pool, lambda worker: (monotonic(), worker.looks())) if pool.later else None
        self._fate = fate = SamplerFate(pool, recipes, self._growth)
        self._courier = RolloutCourier(pool, fate, self._growth, stale)
        pool.calls.wear.played = lambda worker: fate.played[worker.index, len(worker.restarts) + worker.retired]

    def update(self, agent_update: Any, env_update: Any, by_index: bool) -> None:
        """Keep updates to send with the workers' next orders.

        Raises UsageError for an update that cannot be sent, and for a list of different updates if the next rollouts
        are `by_index`.
        """
        if by_index:
            check_alike(BY_INDEX, agent_update=agent_update, env_update=env_update)
        courier = self._courier
        self._before = list(courier.updates), list(courier.due)
        if agent_update is None and env_update is None:
            return
        new = list(map(Updates, self._broadcasts(agent_update, False), self._broadcasts(env_update, True)))
        courier.updates = [told.and_then(more) for told, more in zip(courier.updates, new, strict=True)]
        courier.due = [(joined(due), more) for due, more in zip(courier.due, new, strict=True)]

    def _broadcasts(self, update: Any, of_envs: bool) -> list[Broadcasts]:
        """Return one tuple a worker. Workers that get the same object share one broadcast."""
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
        """Return a batch of so many steps or episodes. Raises errors of workers (see `SamplerFate`) and WorkersLost."""
        workers, buffers = len(self._courier.updates), self._buffers
        together = 1 << 40 if steps is None else -(-steps // (MESSAGES * workers))  # steps in a message
        source: StopRule
        if self._by_index:
            source = AtLeastByIndex(Schedule(episodes, steps), workers, self._base)
        else:
            source = Exactly((episodes or 0) // workers, workers) if steps is None else AtLeast(steps)
        buffers.begin()
        settle = partial(Trajectories.settle, lay=buffers.lay)
        self._run(source, SamplerOrder(steps=together, root=self._root), watch, settle)
        if isinstance(source, AtLeastByIndex):
            self._base += source.schedule.end or 0
        return batch_of(source.batches(), buffers.joined)

    def scores(self, episodes: int, seed: int, watch: Watch) -> list[Score]:
        """Return the scores of episodes 0, 1, 2, ... of the root `seed`, in order.

        The workers' own random generators keep their states.
        """
        source = AtLeastByIndex(Schedule(episodes=episodes), len(self._courier.updates))
        self._run(source, SamplerOrder(root=seed, aside=True), watch, Trajectories.strip)
        rollouts = [batch.part(i, i + 1) for batch in source.batches() for i in range(len(batch.rollouts))]
        scores = []
        for index, one in enumerate(rollouts):
            rewards, terminated = one.columns["rewards"], bool(one.codes[-1] == StepType.TERMINAL)
            env_seed, total = seeding.episode_env_seed(seed, index), float(np.sum(rewards))
            scores.append(Score(index, env_seed, total, len(rewards), terminated, not terminated))
        return scores

    def _run(self, source: StopRule, order: SamplerOrder, watch: Watch, settle: Callable[[Trajectories], None]) -> None:
        """Sample until there is enough.

        settle: called with every batch of the result, in the result's order, as soon as the order is known.

        Workers are stopped at the end, and late episodes are dropped, unless `stale` keeps them. A worker's failure in
        an earlier sampling that did not wait for it counts as a failure of this one.
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
            for settled in chain(stream.hear(0.0), stream):  # first the orders that have ended long ago: most have
                settle(settled)
        except WorkerError:
            fate.failed()
            if fate.refused:  # workers that are added later must not get the update that raised, either
                courier.updates, due = self._before
                courier.due = [() if at in courier.told else each for at, each in enumerate(due)]
            raise
        finally:
            watch.end()
            if not courier.stale and not self.pool.group.closed:
                calls.stop()

    def close(self) -> None:
        """End the workers, who close their environments."""
        self.pool.close()
        self.pool.calls.clear()  # and with it the orders' files of broadcasts
        self._before = [Updates()] * len(self._courier.updates), [()] * len(self._courier.updates)
        (self._courier.updates, self._courier.due), self._fate.open = self._before, []
        self._buffers.clear()


def with_versions(infos: Mapping[str, Any], first: Any, last: Any) -> dict[str, Any]:
    """Return an episode's infos, or columns of infos, with the versions of the first and the last step's agents."""
    own = {VERSION: first, LAST_VERSION: last}
    return {**own_names(infos, frozenset(own), "env"), **own}


BY_INDEX = "episodes by index (ordered=True, evaluate) must not depend on who plays them: give one for all"


def check_alike(why: str, **given: Any) -> None:
    """Raise UsageError for a list of different things, one a worker. why: the reason, for the message."""
    for what, each in given.items():
        if isinstance(each, list) and any(one is not each[0] for one in each):
            raise UsageError(f"{what} is a list of different things, one a worker; {why}")
