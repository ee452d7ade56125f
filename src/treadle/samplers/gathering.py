"""Gathering: the workers of a sampler, and one sampling by them.

Orders go out, trajectory batches come in, until a stop rule has enough; the same for every backend and every rule.
"""

from __future__ import annotations

import copy
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from time import monotonic
from typing import Any

import numpy as np

from treadle import seeding
from treadle.errors import UsageError, WorkerError
from treadle.pool import failure
from treadle.pool.events import Done, Lost
from treadle.pool.pool import Pool
from treadle.program.gym_env import EnvRecipe
from treadle.program.own_names import own_names
from treadle.repro import Repro, failure_of, note, note_unkept, recipe_of
from treadle.sample.failed import reason_of
from treadle.sample.growth import Growth
from treadle.sample.named import env_name
from treadle.samplers.agents import action_of, reset_agent
from treadle.samplers.default_worker import DefaultWorker
from treadle.samplers.sampler_slot import Mishap, Order, SamplerSlot, SlotRecipe, latest
from treadle.samplers.stop_rules import AtLeast, ByIndex, StopRule
from treadle.samplers.trajectories import Trajectories
from treadle.samplers.updates import environment, is_environment, of_gymnasium
from treadle.samplers.worker import ENVIRONMENTS, GLOBALS
from treadle.samplers.workers_lost import lost_of, why
from treadle.stream.stream import Stream
from treadle.stream.watch import Watch
from treadle.wire.broadcast import Broadcast, Payload
from treadle.wire.carried import CannotTravel
from treadle.wire.messages import Op
from treadle.worker import life
from treadle.worker.life import RestartPolicy
from treadle.worker.worker import Worker

log = logging.getLogger("treadle")

VERSION = "agent_version"  # the key of the episode info that says which sampling's agent played its first step
LAST_VERSION = "agent_version_last"  # and its last

MORE = 1000  # episodes that are played, by arrival, after those that a worker had told of before it died

Broadcasts = tuple[Broadcast, ...]


@dataclass(frozen=True)
class Updates:
    """Attributes:
    agent, env: what a worker was told since the beginning, for one that takes its place.
    due_agent, due_env: what it is to be told with its next order.
    """

    agent: Broadcasts = ()
    env: Broadcasts = ()
    due_agent: Broadcasts = ()
    due_env: Broadcasts = ()

    def and_then(self, agent: Broadcasts, env: Broadcasts) -> Updates:
        return Updates(latest(self.agent, agent), env or self.env, latest(self.due_agent, agent), self.due_env + env)


@dataclass(eq=False)
class Asked:
    """One request to a worker, from being sent until its stream is over.

    Attributes:
        sampling: the number of the sampling that it belongs to.
        order: None once it is known that it will not be made.
        told: has the caller been told that its sampling failed?
        spec: of its environment: travels with its first batch.
        made: rollouts of it that have come.
    """

    worker: int
    sampling: int
    order: Order | None
    told: bool = False
    spec: Any = None
    made: int = 0


class SamplerPool:
    """A pool with one slot a worker.

    Args:
        recipes: one a worker, those that may come `later` included.
        backend: "process", or "serial": all workers in the caller's own thread.
        on_failure: "raise", "restart" or "drop": what becomes of a worker that dies or raises.
        max_restarts: of one worker, in ten minutes (deaths) or without a rollout between them (exceptions).
        pool_options: see `treadle.pool.pool.Pool`.

    Attributes:
        lost: workers that will not come back -> what they failed of.
        strangers: workers whose next order must say all that the sampler was ever told: they took the place of others.
        updates: one a worker.

    Raises:
        StartupFailed: a worker could not be built; nothing is left running.
        UsageError: an agent or environment cannot be pickled, or the options make no sense.
    """

    def __init__(
        self, recipes: Sequence[SlotRecipe], *, backend: str, on_failure: str, max_restarts: int, **pool_options: Any
    ) -> None:
        self.shared, self.count = backend == "serial", len(recipes) - pool_options.get("later", 0)
        factories = [partial(SamplerSlot, recipe, number, self.shared) for number, recipe in enumerate(recipes)]
        try:
            self.pool = Pool(
                factories,
                backend=backend,
                workers=self.count,
                rows=False,
                on_failure=on_failure,
                max_restarts=max_restarts,
                **pool_options,
            )
        except CannotTravel as error:
            raise UsageError(
                f"worker {error.slot}: its factory, agent or environment cannot be sent to it: {error.reason}"
            ) from error
        self.calls, self.workers = self.pool.calls, self.pool.workers
        self.rebuilds = max_restarts if self.pool.policy is RestartPolicy.RESTART else 0
        self.lost: dict[int, WorkerError] = {}
        self.strangers: set[int] = set()
        self.updates = [Updates()] * self.count
        self.played: dict[int, int] = defaultdict(int)  # episodes of each worker's process, as far as it has told
        self._recipes = recipes
        self._told: dict[int, int] = defaultdict(int)  # which of each worker's processes has had an order last
        self.calls.wear.played = lambda worker: self.played[worker.index]
        self.growth = Growth(self.pool, self._work) if self.pool.later else None

    def _work(self, worker: Worker) -> tuple[float, int]:
        return monotonic(), worker.looks()  # in a sampling they always have something to do

    def look_for_more(self, rule: StopRule) -> None:
        """Add workers, where they are of use to a rule by index."""
        if self.growth is not None and isinstance(rule, ByIndex):
            self.growth.turn(rule.schedule.to_hand_out(rule.schedule.mean), math.inf)
            new = range(self.count, len(self.workers))
            self.strangers.update(new)  # they hear all that was ever told
            self.updates += [self.updates[0]] * len(new)
            self.count = rule.workers = len(self.workers)

    @property
    def closed(self) -> bool:
        return self.pool.group.closed

    def ready(self) -> list[int]:
        """Workers that take orders."""
        known = self.workers[: self.count]  # of others an interrupt has lost the word
        able = [each for each in known if each.state in life.ALIVE and each.index not in self.lost]
        for worker in [each for each in able if self.calls.wear.worn(each)] if self.calls.wear.able else ():
            able.remove(worker)  # and replaced once it has done what it was asked
            if worker.state is life.State.IDLE:
                self.calls.retire(worker, self.calls.wear.worn(worker))
                self.strangers.add(worker.index)
                self.played[worker.index] = 0
        return [each.index for each in able]

    def send(self, at: int, order: Order, sampling: int) -> Asked:
        """Give a worker an order, and with it the updates that it has not heard of."""
        worker, updates = self.workers[at], self.updates[at]
        agent, env = updates.due_agent, updates.due_env
        again = len(worker.restarts) + worker.retired
        # an interrupt may have lost the word of its death
        if at in self.strangers or again != self._told[at]:
            self.strangers.discard(at)
            agent, env = updates.agent, updates.env
        self.updates[at] = Updates(updates.agent, updates.env)
        self._told[at] = again
        # one that dies again takes nothing finished with it
        order = replace(
            order,
            agent=agent,
            env=env,
            incarnation=again,
            rebuilds=self.rebuilds,
            steps=1 if worker.restarts else order.steps,
        )
        asked = Asked(at, sampling, order)
        broadcasts = [] if self.shared else [*agent, *env]
        payload = Payload({at: order}, broadcasts) if broadcasts else {at: order}
        self.calls.submit(worker, Op.STREAM, payload, (at,), asked)
        return asked

    def keep(self, asked: Asked, error: WorkerError) -> None:
        """Keep what a worker failed of while it did what it was asked, so that it can be replayed."""
        at = asked.worker
        if self.pool.options.recorder:
            try:
                keep(self._recipes[at], self.updates[at], asked, self.played[at], error)
            except Exception as problem:  # noqa: BLE001 - opening updates runs foreign code; the failure is still told
                log.warning("what worker %d can be replayed from was not kept: %r", at, problem)

    def died(self, event: Lost) -> bool:
        """A worker's process is gone. True: it is replaced, and tells when it is ready.

        Raises its error where that is what is wanted, or where it died too often.
        """
        worker = event.worker.index
        if event.verdict is RestartPolicy.RESTART:
            log.warning("worker %d is replaced: %s", worker, reason_of(event.error))
            self.strangers.add(worker)
            self.played[worker] = 0
            return True
        if event.verdict is RestartPolicy.RAISE and self.pool.policy is not RestartPolicy.RAISE:
            self.calls.drop(event.worker)  # the others may go on in the next sampling
        self.lose(worker, event.error)
        return False

    def lose(self, worker: int, error: WorkerError) -> None:
        """A worker is given up. Raises its error unless workers may be dropped."""
        drop = self.pool.policy is RestartPolicy.DROP
        if drop or self.workers[worker].state is life.State.GONE:
            self.lost[worker] = error
        if not drop:
            raise error
        left = self.count - len(self.lost)
        log.warning("worker %d is dropped, %d of %d are left: %s", worker, left, self.count, why(error))

    def close(self) -> None:
        self.pool.close()
        self.calls.clear()  # and with it what orders took along: the files of broadcasts
        self.updates = [Updates()] * self.count


class Versions:
    """Attributes:
    now: the number of the present sampling, from 1: what comes late is told apart by it.
    keep: are late episodes handed out, with their version, instead of being dropped?
    """

    def __init__(self, keep: bool) -> None:
        self.now, self.keep = 0, keep

    def completed(self, asked: Asked, batch: Trajectories) -> Trajectories:
        """The batch with its spaces, which travel once a request, and with its version if that is wanted."""
        if batch.env_spec is None:
            batch.env_spec = asked.spec
        asked.spec = batch.env_spec
        if self.keep:
            infos = batch.columns["episode_infos"]
            version = np.full(len(batch.lengths), asked.sampling, np.int64)
            own = {VERSION: version, LAST_VERSION: version}  # a worker hears of another agent between two rollouts
            batch.columns["episode_infos"] = {**own_names(infos, frozenset(own), "env"), **own}
        return batch


class Gathering:
    """Args:
    group: the workers.
    versions: of this and earlier samplings.
    rule: when it is enough.
    order: what is asked of all workers alike.
    watch: told of every batch that is taken.
    settle: called with every batch of the result, in the result's order, as soon as that is known.

    Attributes:
        refused: did a worker raise in an update of this sampling?
        told: workers that have had an order of it.
    """

    over = False  # a failure that ends a sampling is raised at once

    def __init__(
        self,
        group: SamplerPool,
        versions: Versions,
        rule: StopRule,
        order: Order,
        watch: Watch,
        settle: Callable[[Trajectories], None],
    ) -> None:
        self._group, self._versions, self._rule = group, versions, rule
        self._order, self._watch, self._settle = order, watch, settle
        self.refused = False
        self.told: set[int] = set()
        self._open: list[Asked] = []  # requests of this sampling that are not over

    def run(self) -> None:
        """Until there is enough. Raises what workers raise (see `SamplerPool`), and WorkersLost.

        Late episodes are left behind: workers are stopped, unless they are kept. What a worker failed of in an earlier
        sampling that could not wait for it counts as if it were of this one.
        """
        group, watch = self._group, self._watch
        group.calls.check()
        self._versions.now += 1
        group.calls.stop()
        if group.lost and (self._rule.needs_all or len(group.lost) == group.count):
            raise self._cannot()
        try:
            watch.begin(group.pool)
            if group.growth is not None:
                group.growth.begin()
            stream = Stream(group.calls, self._rule, self, self, watch)
            for settled in chain(stream.hear(0.0), stream):  # at first: most have ended long ago
                self._settle(settled)
        except WorkerError:
            for asked in self._open:
                asked.told = True
            raise
        finally:
            watch.end()
            if not self._versions.keep and not group.closed:
                group.calls.stop()

    def patience(self) -> float | None:
        """As long as it takes until workers may be added."""
        return None if self._group.growth is None else self._group.growth.patience()

    def give(self, held: int = 0) -> None:
        """Orders for workers, of which there may be more now. Raises WorkersLost when there are none."""
        self._group.look_for_more(self._rule)
        self._send()
        if not self._open and not self._rule.done and not self._group.calls.expects:
            raise self._cannot()

    def _send(self) -> None:
        """Give orders to those who have too few, unless they have not ended what they were stopped in yet.

        One that plays on between two samplings is told its next order while it ends the one before.
        """
        group, keep = self._group, self._versions.keep
        for mine in range(self._rule.ahead):
            busy = list(map(attrgetter("worker"), self._open))
            for worker in group.ready():
                if busy.count(worker) == mine:
                    wanted = None if len(group.workers[worker].owed) - mine > keep else self._rule.wants(worker, mine)
                    if wanted is not None:
                        self.told.add(worker)
                        self._open.append(group.send(worker, replace(self._order, **wanted), self._versions.now))

    def ready(self, worker: Worker) -> None:
        """It was replaced, or added: its next order says all."""

    def answered(self, event: Done) -> list[Trajectories]:
        """Batches of the result whose place in it is certain now."""
        asked, reply, rule = event.tag, event.reply, self._rule
        extras, ours = reply.extras, asked in self._open
        made: list[Trajectories] = []
        if event.cut and not ours:  # whoever interrupted that sampling knows
            return made
        if extras is not None:
            for result in extras.infos.values():
                if isinstance(result, Mishap):
                    error = failure.task_error(result.raised, event.worker.at(asked.worker))
                    log.warning("worker %d raised and is replaced: %s", asked.worker, result.text)
                    self._group.keep(asked, error)
                elif ours or (self._versions.keep and isinstance(rule, AtLeast)):
                    self._group.played[asked.worker] += len(result.lengths)
                    asked.made += len(result.rollouts)
                    taken = rule.take(asked.worker, self._versions.completed(asked, result))
                    if taken is not None and self._watch.wanted:
                        returns = float(taken.columns["rewards"].sum())
                        self._watch.heard(event.worker, len(taken.lengths), len(taken.codes), returns)
                    made += rule.settled()
            for raised in extras.raised.values():
                self._raised(event, asked, failure.task_error(raised, event.worker.at(asked.worker)))
        if reply.last and ours:
            self._open.remove(asked)
        return made

    def _raised(self, event: Done, asked: Asked, error: WorkerError) -> None:
        """What a worker raised, in an order of this sampling or in an earlier one that did not wait for it."""
        at, worker, update = asked.worker, event.worker, error.where.phase == "update"
        if not worker.inline:  # its stream is to end; a later request is not to be stopped by an earlier one's error
            worker.stop(event.reply.id)
        if asked.told:
            if not update:  # an update is the same for all
                log.warning("worker %d has failed, too, in a sampling that failed: %s", at, why(error))
            return
        if update:  # the caller's own mistake, not the worker's
            self.refused = asked in self._open
            if worker.restarts or worker.retired:
                self._group.strangers.add(at)  # it may not have heard the rest
            raise error
        self._group.keep(asked, error)
        self._give_back(asked)
        self._group.lose(at, error)
        self._missed()

    def gone(self, event: Lost) -> None:
        """Its requests are given back by `died`."""

    def died(self, event: Lost) -> None:
        """What it was to make is made by others. Raises its error where that is wanted."""
        if event.tags and event.verdict is not None:
            self._group.keep(event.tags[0], event.error)
        for asked in event.tags:
            self._give_back(asked)
        self._open = [asked for asked in self._open if asked not in event.tags]
        if event.worker.extra and self._group.growth is not None:
            self._group.growth.stop()
            self._group.lost[event.worker.index] = event.error
            log.warning("worker %d could not be added: %s", event.worker.index, why(event.error))
        elif event.verdict is not None and not self._group.died(event):
            self._missed()

    def _give_back(self, asked: Asked) -> None:
        """What a failed worker was to make by index is for others now; so is what it would have made after that."""
        if asked in self._open and asked.order is not None:
            self._rule.lose(asked.order.indices or ())
            asked.order = None

    def _missed(self) -> None:
        """A worker is gone for good: can this still be done?"""
        if self._rule.needs_all or len(self._group.lost) == self._group.count:
            raise self._cannot()

    def _cannot(self) -> WorkerError:
        return lost_of(self._group.lost, self._group.count)


class AgentPlayed:
    """A worker's agent as an `Actor`, asked as workers ask it.

    Args:
        told: the agent as it was at first, and its updates.
        by_index: is it seeded for each episode, where it can be?
    """

    def __init__(self, told: list[Any], by_index: bool) -> None:
        self._told, self._by_index = told, by_index
        self._agent: Any = None

    def start(self, row: int, seed: int) -> None:
        """An episode begins."""
        if self._agent is None:
            worker = DefaultWorker(seed=None, max_episode_length=1, worker_number=0)
            for update in copy.deepcopy(self._told):  # the caller's own agent stays as it is
                worker.update_agent(update)
            self._agent = worker.agent
        seed_agent = getattr(self._agent, "seed", None)
        if self._by_index and callable(seed_agent):
            seed_agent(seed)
        reset_agent(self._agent)

    def act_alone(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Its action, and what it says of it."""
        return action_of(self._agent, observation)


def keep(recipe: SlotRecipe, updates: Any, asked: Any, played: int, error: WorkerError) -> None:
    """Keep it as the error's `repro`; nothing for what an update raised.

    Args:
        recipe: of the worker.
        updates: what it was told since, as `Updates`.
        asked: what it was doing, as `Asked`.
        played: its episodes that have come.
    """
    order, number, factory, where = asked.order, asked.worker, recipe.factory, error.where
    kind = getattr(factory, "_worker_class", None)
    if order is None or where.phase == "update":
        return
    root, episode, trail = order.root, where.episode, dict(error.trail or {})
    if not trail and not getattr(kind, "by_index", False):
        name = getattr(kind, "__name__", "worker of one's own")
        note_unkept(error, f"a {name} may play several environments at once, and none of them, a gymnasium.Env, raised")
        return
    agents = [recipe.agent, *(each.open() for each in updates.agent)]
    envs = [recipe.env, *(each.open() for each in updates.env)]
    if (which_env := trail.pop("env", None)) is not None:
        envs = [each[which_env] if isinstance(each, list) else each for each in envs]
    first, generator = trail.pop("start", (None, None))
    plays: list[tuple[int | None, int | None, int | None]] = []  # seed of the reset, seed of all else, number
    whose = f"worker {number}" if which_env is None else f"environment {which_env} of worker {number}"
    which = f"episode {episode} of {whose}" if trail else f"the episodes of worker {number}"
    if order.indices is not None:
        indices = order.indices[asked.made :] if episode is None else (episode,)
        which = f"episode {' or '.join(map(str, indices))}"
        plays = [(seeding.episode_env_seed(root, i), seeding.episode_policy_seed(root, i), i) for i in indices]
    elif trail:
        plays = [(first, None, None)]
    else:
        path, stop = (number, order.incarnation), played + MORE if episode is None else episode + 1
        begin = seeding.derive(root, ENVIRONMENTS, *path, len(envs)), seeding.derive(root, GLOBALS, *path), 0
        plays = [begin, *((None, None, each) for each in range(1, stop))]
    if not plays:  # all that was asked for had come
        return
    env = envs[0] if len(envs) == 1 and not is_environment(envs[0]) else partial(environment, envs)
    about = {"face": "episode", "title": f"{which} of {env_name(envs[0])}", "plays": plays, "seed": plays[0][0]}
    most = factory._max_episode_length
    repro = Repro({**about, "generator": generator, "max_steps": int(most) if most < 1 << 62 else None}, trail)
    recipe_of(repro, EnvRecipe(env, wrappers=(of_gymnasium,), registrations=None))
    phase = "step" if "action.0" in trail else where.phase
    repro.put("policy", AgentPlayed(agents, order.indices is not None))
    repro.about["failed"] = failure_of(error, reason_of(error)) | {"phase": phase}
    note(error, repro)
