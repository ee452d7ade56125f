"""A sampler's reaction to failures: it raises, rebuilds the worker or drops it, and keeps what a replay needs."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from treadle import seeding
from treadle.errors import WorkerError
from treadle.pool import failure
from treadle.pool.events import Done, Lost
from treadle.pool.pool import Pool
from treadle.program.gym_env import EnvRecipe
from treadle.repro import Repro, failure_of, note, note_unkept, recipe_of
from treadle.sample.failed import reason_of
from treadle.sample.growth import Growth
from treadle.sample.named import env_name
from treadle.samplers.adapt import environment, is_environment, of_gymnasium
from treadle.samplers.agents import action_of, reset_agent
from treadle.samplers.sampler_slot import SamplerOrder, SlotRecipe, Updates
from treadle.samplers.stop_rules import StopRule
from treadle.samplers.worker import ENVIRONMENTS, GLOBALS, DefaultWorker
from treadle.worker.life import RestartPolicy, State

log = logging.getLogger("treadle")

MORE = 1000  # episodes that a replay plays, by arrival, after those that a dead worker had reported


class WorkersLost(WorkerError, EOFError):
    """A sampler cannot go on: all workers are gone, or one is gone and each must deliver an exact number of episodes.

    Attributes:
        failures: worker number -> the error that it failed with.
    """

    failures: dict[int, WorkerError]


@dataclass(eq=False)
class SamplerRequest:
    """One request to a worker, from being sent until the end of its stream.

    Attributes:
        worker: the worker's number.
        sampling: the number of the sampling that the request belongs to.
        order: None once it is certain that the rollouts will not be made.
        updates: all updates that the worker had been sent by then.
        incarnation: the number of the worker's process that got the request.
        told: True if the caller has got the failure of its sampling.
        spec: the environment's `EnvSpec`, which travels with the request's first batch.
        made: rollouts of the request that have arrived.
    """

    worker: int
    sampling: int
    order: SamplerOrder | None
    updates: Updates
    incarnation: int
    told: bool = False
    spec: Any = None
    made: int = 0


class SamplerFate:
    """The fate of a sampler's workers, see `treadle.stream.stream`.

    Args:
        pool: of the workers.
        recipes: one a worker, including workers that may be added later.
        growth: adds workers; None: the number of workers is fixed.

    Attributes:
        source: the stop rule of the present sampling.
        open: requests of the present sampling that are not over.
        refused: True if a worker raised in an update of the present sampling.
        lost: workers that will not come back -> the error that each failed with.
        played: (worker, incarnation) -> episodes that this process has reported.
    """

    over = False  # a failure that ends a sampling is raised at once

    def __init__(self, pool: Pool, recipes: Sequence[SlotRecipe], growth: Growth | None) -> None:
        self._pool, self._recipes, self._growth = pool, recipes, growth
        self.lost: dict[int, WorkerError] = {}
        self.source: StopRule
        self.open: list[SamplerRequest] = []
        self.refused = False
        self.played: Counter[tuple[int, int]] = Counter()

    def died(self, event: Lost) -> None:
        """Give the dead worker's rollouts to others. Raises its error with "raise", or if it has died too often."""
        worker, error, verdict = event.worker, event.error, event.verdict
        if event.tags and verdict is not None:
            self._keep(event.tags[0], error)
        self._give_back(event.tags)
        self.open = [asked for asked in self.open if asked not in event.tags]
        if worker.extra and self._growth is not None:
            self._growth.stop()
            self.lost[worker.index] = error
            log.warning("worker %d could not be added: %s", worker.index, _why(error))
        elif verdict is RestartPolicy.RESTART:
            log.warning("worker %d is replaced: %s", worker.index, reason_of(error))
        elif verdict is not None:
            if verdict is RestartPolicy.RAISE and self._pool.policy is not RestartPolicy.RAISE:
                self._pool.calls.drop(worker)  # the others may go on in the next sampling
            self._lose(worker.index, error)

    def mishap(self, asked: SamplerRequest, error: WorkerError, text: str) -> None:
        """Log that a worker raised and has been rebuilt."""
        self._keep(asked, error)
        log.warning("worker %d raised and is replaced: %s", asked.worker, text)

    def raised(self, event: Done, error: WorkerError) -> None:
        """Handle an error that a worker raised, in this sampling or in an earlier one that did not wait for it."""
        asked, worker, update = event.tag, event.worker, error.where.phase == "update"
        if not worker.inline:  # end this stream alone: an earlier request's error must not stop a later request
            worker.stop(event.reply.id)
        if asked.told:
            if not update:  # an update is the same for all
                log.warning("worker %d has failed, too, in a sampling that failed: %s", asked.worker, _why(error))
            return
        if update:  # the caller's own mistake, not the worker's
            self.refused = asked in self.open
            raise error
        self._keep(asked, error)
        self._give_back([asked])
        self._lose(asked.worker, error)

    def failed(self) -> None:
        """End the sampling; the caller gets its failure."""
        for asked in self.open:
            asked.told = True

    def _give_back(self, requests: Iterable[SamplerRequest]) -> None:
        """Give a failed worker's indices to others, of these requests and of those that would have followed."""
        for asked in requests:
            if asked in self.open and asked.order is not None:
                self.source.lose(asked.order.indices or ())
                asked.order = None

    def _lose(self, at: int, error: WorkerError) -> None:
        """Give a worker up. Raises its error unless workers may be dropped, and WorkersLost if none is left."""
        drop = self._pool.policy is RestartPolicy.DROP
        if drop or self._pool.workers[at].state is State.GONE:
            self.lost[at] = error
        if not drop:
            raise error
        count = len(self._pool.workers)
        log.warning("worker %d is dropped, %d of %d are left: %s", at, count - len(self.lost), count, _why(error))
        self.go_on()

    def go_on(self) -> None:
        """Go on without the lost workers. Raises WorkersLost if the sampling needs them."""
        if self.source.needs_all or len(self.lost) == len(self._pool.workers):
            raise self.cannot()

    def cannot(self) -> WorkersLost:
        """Return the error for a sampling that needs a lost worker, or that has lost all of them."""
        what = "an exact number of episodes of every worker cannot be had (on_failure='restart' replaces workers)"
        if len(self.lost) == len(self._pool.workers):
            what = "all workers are gone"
        reasons = "; ".join(f"worker {worker}: {_why(error)}" for worker, error in sorted(self.lost.items()))
        first = self.lost[min(self.lost)]
        error = WorkersLost(
            f"{what}: {reasons}", where=first.where, remote_traceback=first.remote_traceback, failures=dict(self.lost)
        )
        error.__cause__, error.repro = first, first.repro
        return error

    def _keep(self, asked: SamplerRequest, error: WorkerError) -> None:
        """Keep a failed request so that it can be replayed."""
        if self._pool.options.recorder:
            try:
                attach_repro(self._recipes[asked.worker], asked, self.played[asked.worker, asked.incarnation], error)
            except Exception as problem:  # noqa: BLE001 - opening updates runs foreign code; the failure is reported
                log.warning("what worker %d can be replayed from was not kept: %r", asked.worker, problem)


def _why(error: WorkerError) -> str:
    """Return the failure in one line."""
    if error.where.phase == "stream":  # a result could not be sent: the message says more than the traceback
        return failure.reason(error).removesuffix(". Traceback in .remote_traceback")
    step = error.where.step
    return reason_of(error) + (f" (in step {step} of an episode)" if step is not None else "")


class AgentPlayed:
    """A worker's agent as an `Actor`, asked as workers ask it.

    Args:
        told: the first agent, then its updates.
        by_index: True if the agent is seeded for each episode, provided that it has `seed`.
    """

    def __init__(self, told: list[Any], by_index: bool) -> None:
        self._told, self._by_index = told, by_index
        self._agent: Any = None

    def start(self, row: int, seed: int) -> None:
        """Begin an episode."""
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
        """Return the agent's action and info."""
        return action_of(self._agent, observation)


def attach_repro(recipe: SlotRecipe, asked: SamplerRequest, played: int, error: WorkerError) -> None:
    """Attach a repro of the failed request to the error; do nothing for an error in an update.

    Args:
        recipe: of the worker.
        asked: the request that failed.
        played: the worker's episodes that have arrived.
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
    agents = [recipe.agent, *(each.open() for each in asked.updates.agent)]
    envs = [recipe.env, *(each.open() for each in asked.updates.env)]
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
    if not plays:  # all rollouts of the request had arrived
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
