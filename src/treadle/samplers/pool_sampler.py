"""What all samplers on a pool of workers are: the constructor and the calls. The loop is in `gathering.py`."""

from __future__ import annotations

import copy
import math
import pickle
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np

from treadle import pickling, seeding
from treadle.errors import ClosedPool, UsageError, WorkerError
from treadle.play.recipe import Asking, Inference
from treadle.program.ids import own_registrations
from treadle.program.policies import policy_name
from treadle.progress import Progress, Standing
from treadle.sample.growth import Growth
from treadle.sample.inference import asking_of
from treadle.sample.run import check_root
from treadle.sample.schedule import Schedule
from treadle.sample.scores import Evaluation, Score, evaluation_of, score_of
from treadle.samplers.agents import is_parameters
from treadle.samplers.caller_sampling import CallerSampling
from treadle.samplers.default_worker import DefaultWorker
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.gathering import Broadcasts, Gathering, SamplerPool, Versions
from treadle.samplers.sampler import Sampler
from treadle.samplers.sampler_slot import Order, SlotRecipe
from treadle.samplers.steps import StepType
from treadle.samplers.stop_rules import AtLeast, ByIndex, Exactly, StopRule
from treadle.samplers.trajectories import ResultBuffers, Trajectories, batch_of
from treadle.samplers.worker_factory import WorkerFactory
from treadle.stream.watch import Watch
from treadle.wire.broadcast import Broadcast
from treadle.worker.options import MOST_WORKERS, NAMES, check_names

SCHEDULES = ("arrival", "deterministic")
MESSAGES = 8  # what is wanted comes in so many messages of each worker, where rollouts are small


class PoolSampler(Sampler):
    """See `LocalSampler` and `MultiprocessingSampler`, which differ in where their workers are."""

    backend = ""
    default_on_failure = ""
    _placement: Any = None  # of workers on nodes

    def __init__(
        self,
        *args: Any,
        agents: Any = None,
        envs: Any = None,
        worker_factory: WorkerFactory | None = None,
        max_episode_length: int | float | None = None,
        is_tf_worker: bool = False,
        seed: int | None = None,
        n_workers: int | None = None,
        worker_class: Any = DefaultWorker,
        worker_args: dict[str, Any] | None = None,
        schedule: str = "arrival",
        allow_stale: bool = False,
        on_failure: str | None = None,
        max_restarts: int = 3,
        progress: bool | None = None,
        inference: Inference | str = "worker",
        num_envs: int | None = None,
        **pool_options: Any,
    ) -> None:
        check_names(type(self), pool_options, NAMES - {"backend"})
        agents, envs, worker_factory = _positions(args, agents, envs, worker_factory)
        if worker_factory is None:
            if max_episode_length is None:
                raise TypeError(
                    "Must construct a sampler from WorkerFactory or parameters (at least max_episode_length)"
                )
            worker_factory = WorkerFactory(
                max_episode_length=max_episode_length,
                is_tf_worker=is_tf_worker,
                seed=seed,
                n_workers=n_workers,
                worker_class=worker_class,
                worker_args=worker_args,
            )
        if schedule not in SCHEDULES:
            raise UsageError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
        pool_options |= {"max_restarts": max_restarts}
        pool_options["on_failure"] = self.default_on_failure if on_failure is None else on_failure
        own = {"schedule": schedule, "allow_stale": allow_stale, "progress": progress}
        self._options = {**own, "inference": inference, "num_envs": num_envs, **pool_options}
        self._factory = worker_factory
        self._agents = worker_factory.prepare_worker_messages(agents)
        self._envs = worker_factory.prepare_worker_messages(envs)
        if isinstance(worker_factory, WorkerFactory):
            for agent, env in zip(self._agents, self._envs, strict=True):
                worker_factory.check_first(agent, env)
        self._schedule, self._progress = schedule, progress
        for what, given in (("agents", agents), ("envs", envs)):
            self._check_alike(what, given)
        own_seed = getattr(worker_factory, "_seed", None)
        self._root = secrets.randbits(62) if own_seed is None else int(own_seed) % 2**63
        self._base = 0  # rollouts that earlier samplings have used, in the deterministic schedule
        self._versions, self._buffers = Versions(allow_stale), ResultBuffers()
        self.total_env_steps = 0
        asking, _, rows = asking_of(self._agents[0], inference, num_envs, worker_factory.n_workers)
        if rows != 1:
            raise UsageError(f"num_envs={num_envs}, but each of {worker_factory.n_workers} workers plays one at a time")
        if asking is not None and (asking.where == "node" or self.backend == "ray"):
            raise UsageError(
                "a sampler's agent is asked in its workers, or, on one machine, in the caller (inference='caller'); "
                "treadle.collect(cluster=..., inference='node') asks a policy once a node"
            )
        pool_options |= {"backend": self.backend, "placement": self._placement}
        self._here = None if asking is None else self._asked_here(asking, allow_stale, pool_options)
        if self._here is not None:
            return
        registrations = None if self.backend == "serial" else own_registrations()
        drawn = self._root if own_seed is None else None
        recipes = [
            SlotRecipe(worker_factory, agent, self._own_copy(env), drawn, registrations)
            for agent, env in zip(self._agents, self._envs, strict=True)
        ]
        if self._grows(agents, envs):
            pool_options["later"] = max(0, MOST_WORKERS - len(recipes))
            more = copy.copy(worker_factory)
            more.n_workers = MOST_WORKERS
            recipes += [replace(recipes[0], factory=more)] * pool_options["later"]
        self._group = SamplerPool(recipes, **pool_options)

    def _grows(self, agents: Any, envs: Any) -> bool:
        """May workers be added? Where nobody counted them, and which of them plays an episode does not matter."""
        factory, listed = self._factory, isinstance(agents, list) or isinstance(envs, list)
        ours = isinstance(factory, WorkerFactory) and factory._worker_class is DefaultWorker and not factory.given
        possible = Growth.possible(None, self.backend, self._options.get("start_method"))
        return ours and not listed and self._schedule == "deterministic" and possible

    def _asked_here(self, asking: Asking, allow_stale: bool, options: dict[str, Any]) -> CallerSampling:
        """How the agent is asked in the caller. Raises UsageError where workers do something of their own."""
        factory = self._factory
        if not isinstance(factory, WorkerFactory) or factory._worker_class is not DefaultWorker or factory._worker_args:
            raise UsageError("with inference='caller' nobody asks workers to play: worker_class is for the workers")
        for what, given in (("agents", self._agents), ("envs", self._envs)):
            if any(each is not given[0] for each in given):
                raise UsageError(f"{what} is a list of different things, one a worker; an agent in the caller is one")
        return CallerSampling(
            self._agents[0],
            self._envs[0],
            asking,
            workers=factory.n_workers if factory.given else None,
            limit=factory._max_episode_length,
            stale=allow_stale,
            **options,
        )

    def _own_copy(self, env: Any) -> Any:
        """What a worker gets of an environment (or of an update) that the caller has."""
        return env

    # -- sampling ----------------------------------------------------------------------------------------------------

    def obtain_samples(
        self, itr: int | None, num_samples: int, agent_update: Any, env_update: Any = None
    ) -> EpisodeBatch:
        """Play whole episodes until there are enough steps.

        Args:
            itr: ignored; there for older programs.
            num_samples: steps wanted. The last episode is not cut, so there may be more.
            agent_update: None: the agents stay as they are. Parameters (a dict, tuple or array) for the agents'
                `set_param_values`, or a new agent. A list: one for each worker.
            env_update: None, an environment or an `EnvUpdate`, or a list of these: one for each worker.

        Returns:
            The episodes in order of arrival, or with schedule="deterministic" in order of index. None was played with
            an older agent (with allow_stale=True some may be: `episode_infos["agent_version"]` tells).

        Raises:
            ValueError: a list of another length than there are workers, or less than one step.
            TypeError, WorkerError: what workers raise, by `on_failure`; what an update raises, always.
            WorkersLost: nobody is left to sample.
        """
        wanted = _count("num_samples", num_samples)
        each = -(-wanted // (MESSAGES * len(self._agents)))
        return self._sampled(partial(AtLeast, wanted), agent_update, env_update, steps=wanted, together=each)

    def obtain_exact_episodes(self, n_eps_per_worker: int, agent_update: Any, env_update: Any = None) -> EpisodeBatch:
        """Play so many episodes in each worker.

        Args:
            n_eps_per_worker: how many.
            agent_update, env_update: as for `obtain_samples`.

        Returns:
            The episodes in worker order: all of worker 0, then all of worker 1, and so on. With
            schedule="deterministic" as many, in order of index.

        Raises:
            As `obtain_samples`; WorkersLost as soon as one worker is gone.
        """
        each, workers = _count("n_eps_per_worker", n_eps_per_worker), len(self._agents)
        return self._sampled(partial(Exactly, each, workers), agent_update, env_update, episodes=each * workers)

    def evaluate(
        self, episodes: int = 100, agent_update: Any = None, env_update: Any = None, *, seed: int = 0
    ) -> Evaluation:
        """Play whole episodes and return how they went, for example between two samplings.

        Episode i is played from (seed, i) alone, so the result is the same for any number of workers, and two agents
        meet the same episodes: see `treadle.compare`. What is sampled afterwards is not touched by it, and
        `total_env_steps` does not count it.

        Args:
            episodes: how many.
            agent_update, env_update: as for `obtain_samples`, but no lists; they stay.
            seed: of the episodes.

        Raises:
            As `obtain_samples`; UsageError for workers that cannot play single episodes (VecWorker, FragmentWorker).
        """
        episodes = _count("episodes", episodes)
        check_root(seed)
        with self._watched(episodes=episodes) as watch:
            if self._here is not None:
                self._told_here(agent_update, env_update)
                played = map(score_of, self._here.by_index(Schedule(episodes=episodes), seed, watch))
                scores = [replace(each, truncated=not each.terminated) for each in played]
            else:
                rule = ByIndex(Schedule(episodes=episodes), self._group.count)
                self._gather(rule, agent_update, env_update, watch, Trajectories.strip, root=seed, aside=True)
                scores = _scores(rule.batches(), seed)
        return evaluation_of(policy_name(self._agents[0]), scores, seed)

    @contextmanager
    def _watched(self, steps: int | None = None, episodes: int | None = None) -> Iterator[Watch]:
        with Progress(self._progress) as shown:
            yield Watch(Standing(of_steps=steps, of_episodes=episodes), shown.tell)

    def _sampled(
        self,
        arriving: Callable[[], StopRule],
        agent_update: Any,
        env_update: Any,
        *,
        steps: int | None = None,
        episodes: int | None = None,
        together: int = 1 << 40,
    ) -> Any:
        """Sample so many steps, or episodes. arriving: makes the rule of what is enough in order of arrival. together:
        steps that are worth a message."""
        by_index, here, buffers = self._schedule == "deterministic", self._here, self._buffers
        with self._watched(steps, episodes) as watch:
            if here is not None:
                self._told_here(agent_update, env_update)
                schedule = Schedule(episodes, steps, first=self._base)
                if by_index or steps is None:
                    batch = here.batch(here.by_index(schedule, self._root, watch))
                    self._base = schedule.end or 0
                else:
                    try:
                        batch = here.batch(here.arriving(steps, self._root, watch, self._base))
                    finally:  # also what was interrupted is not played twice
                        self._base = max(self._base, here.upcoming)
            else:
                schedule = Schedule(episodes, steps)
                rule = ByIndex(schedule, self._group.count, self._base) if by_index else arriving()
                buffers.begin()
                settle = partial(Trajectories.settle, lay=buffers.lay)
                self._gather(rule, agent_update, env_update, watch, settle, root=self._root, steps=together)
                self._base += schedule.end or 0  # of use by index alone
                batch = batch_of(rule.batches(), buffers.joined)
        self.total_env_steps += len(batch.rewards)
        return batch

    def _told_here(self, agent_update: Any, env_update: Any) -> None:
        assert self._here is not None
        if self._here.closed:
            raise ClosedPool("the sampler is shut down")
        for what, given in (("agent_update", agent_update), ("env_update", env_update)):
            if isinstance(given, list):
                raise UsageError(f"{what} is a list, one a worker; an agent in the caller is one: give one for all")
        self._here.update(agent_update, env_update)

    def _gather(
        self,
        rule: StopRule,
        agent_update: Any,
        env_update: Any,
        watch: Watch,
        settle: Callable[[Trajectories], None],
        *,
        root: int,
        steps: int = 1 << 40,
        aside: bool = False,
    ) -> None:
        by_index = isinstance(rule, ByIndex)
        if by_index:
            for what, given in (("agent_update", agent_update), ("env_update", env_update)):
                self._check_alike(what, given, by_index)
        if self._group.closed:
            raise ClosedPool("the sampler is shut down")
        agents, envs = self._updates(agent_update), self._updates(env_update, copied=True)
        group, before = self._group, list(self._group.updates)
        if agent_update is not None or env_update is not None:
            group.updates = [each.and_then(*new) for each, *new in zip(before, agents, envs, strict=True)]
        order = Order(steps=steps, root=root, aside=aside)
        gathering = Gathering(group, self._versions, rule, order, watch, settle)
        try:
            gathering.run()
        except WorkerError:
            if gathering.refused:  # what cannot be applied is not told to workers that come later, either
                told = [replace(each, due_agent=(), due_env=()) for each in before]
                group.updates = [t if w in gathering.told else b for w, (b, t) in enumerate(zip(before, told))]
            raise

    def _updates(self, update: Any, *, copied: bool = False) -> list[Broadcasts]:
        """One tuple of broadcasts a worker. Workers in processes share one broadcast where they get the same."""
        if update is None:
            return [()] * self._group.count
        values = self._factory.prepare_worker_messages(update)
        if isinstance(update, list) or (copied and self._group.shared):
            broadcasts: list[Broadcasts] = [
                () if value is None else (Broadcast(self._own_copy(value) if copied else value, is_parameters(value)),)
                for value in values
            ]
        else:
            broadcasts = [(Broadcast(update, is_parameters(update)),)] * len(values)
        broadcasts += broadcasts[:1] * (self._group.count - len(values))  # workers that were added are as the others
        if not self._group.shared:
            for (broadcast,) in filter(None, broadcasts[: len(values)]):
                try:
                    broadcast.pack()
                except Exception as error:  # pickling runs foreign code
                    raise UsageError(f"an update cannot be sent: {type(error).__name__}: {error}") from error
        return broadcasts

    def _check_alike(self, what: str, given: Any, by_index: bool | None = None) -> None:
        """By index, workers must be alike: which of them plays an episode must not matter."""
        by_index = self._schedule == "deterministic" if by_index is None else by_index
        if by_index and isinstance(given, list) and any(each is not given[0] for each in given):
            raise UsageError(
                f"{what} is a list of different things, one a worker; episodes by index (schedule='deterministic', "
                "evaluate) must not depend on who plays them: give one for all"
            )

    # -- the end -----------------------------------------------------------------------------------------------------

    def shutdown_worker(self) -> None:
        """End the workers, who close their environments. A second call does nothing."""
        if self._here is not None:
            self._here.close()
            return
        self._group.close()
        self._buffers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown_worker()

    def __getstate__(self) -> dict[str, Any]:
        """The factory, the original agents and environments, and the options; not what workers were told since."""
        made_of = (self._factory, self._agents, self._envs, self._options)
        return {"made_of": pickling.dumps(made_of), "total_env_steps": self.total_env_steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Starts new workers."""
        factory, agents, envs, options = pickle.loads(state["made_of"])
        self.__init__(agents, envs, worker_factory=factory, **options)  # type: ignore[misc]
        self.total_env_steps = state["total_env_steps"]


def _positions(args: tuple[Any, ...], agents: Any, envs: Any, factory: Any) -> tuple[Any, Any, Any]:
    """(agents, envs, factory) of both orders of arguments: (agents, envs) and (worker_factory, agents, envs)."""
    older = bool(args) and callable(getattr(args[0], "prepare_worker_messages", None))
    names = ("worker_factory", "agents", "envs") if older else ("agents", "envs")
    if len(args) > len(names):
        raise TypeError(f"at most {len(names)} arguments go by position ({', '.join(names)}), got {len(args)}")
    found = {"agents": agents, "envs": envs, "worker_factory": factory}
    for name, value in zip(names, args, strict=False):
        if found[name] is not None:
            raise TypeError(f"{name} was given twice")
        found[name] = value
    for name in ("agents", "envs"):
        if found[name] is None:
            raise TypeError(f"a sampler needs {name}")
    return found["agents"], found["envs"], found["worker_factory"]


def _scores(batches: Sequence[Trajectories], seed: int) -> list[Score]:
    """The scores of rollouts 0, 1, 2, ... of the root `seed`, in order."""
    scores = []
    singles = [batch.part(i, i + 1) for batch in batches for i in range(len(batch.rollouts))]
    for index, batch in enumerate(singles):
        rewards, last = batch.columns["rewards"], batch.codes[-1]
        terminated = bool(last == StepType.TERMINAL)
        scores.append(
            Score(
                index,
                seeding.episode_env_seed(seed, index),
                float(np.sum(rewards)),
                len(rewards),
                terminated,
                not terminated,
            )
        )
    return scores


def _count(name: str, count: Any) -> int:
    """`count` as a whole number, rounded up. Raise UsageError for what is no finite number of at least 1."""
    try:
        if count >= 1:
            return math.ceil(count)
    except (TypeError, OverflowError):
        raise UsageError(f"{name} must be a finite number, got {count!r}") from None
    raise UsageError(f"{name} must be at least 1, got {count!r}")
