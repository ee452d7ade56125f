"""The base of all samplers on a pool of workers: the constructor and the calls.

`gathering.py` samples with workers that ask the agent themselves. With the agent in the caller, `CallerSampling`
samples: each sampling is a run in environments that stay open. By index, both play the same episodes; in order of
arrival, episodes count as they come.
"""

from __future__ import annotations

import copy
import math
import pickle
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self

from treadle import pickling
from treadle.checks import check_names
from treadle.errors import ClosedPool, UsageError
from treadle.play.episode import Episode
from treadle.play.recipe import CallerInference, Inference, RolloutRecipe
from treadle.pool.pool import Pool
from treadle.pool.spent import Spent
from treadle.program.gym_env import EnvRecipe
from treadle.program.ids import own_registrations
from treadle.program.policies import policy_name
from treadle.progress import Progress, Standing
from treadle.sample.collection import Collection, run_here
from treadle.sample.growth import Growth
from treadle.sample.inference import asking_of
from treadle.sample.run import check_root
from treadle.sample.schedule import ByIndex, Schedule
from treadle.sample.scores import Evaluation, Score, evaluation_of, score_of
from treadle.samplers.adapt import environment
from treadle.samplers.agents import askable, is_parameters, set_parameters
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.gathering import BY_INDEX, Gathering, check_alike, with_versions
from treadle.samplers.sampler_slot import SlotRecipe
from treadle.samplers.steps import EnvSpec
from treadle.samplers.worker import DefaultWorker
from treadle.samplers.worker_factory import WorkerFactory
from treadle.stream.stream import Watch
from treadle.verdict import Verdict
from treadle.worker.options import MOST_WORKERS, WorkerOptions, chosen


class Sampler:
    """Base of samplers; subclasses gather episodes."""

    total_env_steps = 0

    @classmethod
    def from_worker_factory(cls, worker_factory: Any, agents: Any, envs: Any) -> Self:
        """Make a sampler whose workers come from the factory; see the constructor."""
        return cls(agents, envs, worker_factory=worker_factory)  # type: ignore[call-arg]

    def start_worker(self) -> None:
        """Do nothing: the constructor starts the workers. Kept for older programs."""

    def obtain_samples(self, itr: int, num_samples: int, agent_update: Any, env_update: Any = None) -> EpisodeBatch:
        """Return at least `num_samples` steps, in whole episodes."""
        raise NotImplementedError(f"{type(self).__name__}.obtain_samples")

    def obtain_exact_episodes(self, n_eps_per_worker: int, agent_update: Any, env_update: Any = None) -> EpisodeBatch:
        """Return `n_eps_per_worker` episodes of each worker, in worker order."""
        raise NotImplementedError(f"{type(self).__name__}.obtain_exact_episodes")

    def shutdown_worker(self) -> None:
        """End the workers. A second call does nothing."""
        raise NotImplementedError(f"{type(self).__name__}.shutdown_worker")


class CallerSampling:
    """Samplings with the agent in the caller.

    Args:
        agent: the caller's own object; None: no agent yet.
        env: as samplers take it, one for all workers.
        asking: how the agent is asked.
        workers: processes; None: as many as suit the environments.
        limit: the most steps of an episode.
        by_index: True: episodes count by index. False: in order of arrival.
        stale: True: episodes that agents of earlier samplings have begun are handed out, too.
        root: the seed that all other seeds are derived from.
        options: of the collection.
    """

    def __init__(
        self,
        agent: Any,
        env: Any,
        asking: CallerInference,
        *,
        limit: float,
        by_index: bool,
        stale: bool,
        root: int,
        **options: Any,
    ) -> None:
        self._agent, self._envs, self._asking, self._options = agent, [env], asking, options
        self._by_index, self._stale, self._root = by_index, stale, root
        self._limit = None if math.isinf(limit) else int(limit)
        self._endless: Iterator[tuple[int, int, Any]] | None = None  # episodes in order of arrival, to go on with
        self._version, self._arrivals = 0, Schedule()
        self._base = 0  # the first index that no sampling has used
        # episode -> the agent's versions at its first and its last step, until the episode is handed out
        self._versions: dict[int, tuple[int, int]] = {}
        self._run = self._built()

    def _built(self) -> Collection:
        recipe = RolloutRecipe(
            EnvRecipe(partial(environment, list(self._envs))),
            max_steps=self._limit,
            marks_cuts=False,
            asking=replace(self._asking, policy=askable(self._agent)),
        )
        run = run_here(recipe, ByIndex(Schedule(), 0), **self._options)
        assert run.rows is not None
        self._spec, self._rows = EnvSpec(*run.spaces, self._limit), run.rows
        self._rows.acting = self._acting
        return run

    def _acting(self, index: int, steps: int) -> None:
        first = self._version if steps == 0 else self._versions[index][0]
        self._versions[index] = first, self._version

    @property
    def pool(self) -> Pool:
        return self._run.pool

    def update(self, agent_update: Any, env_update: Any, by_index: bool) -> None:
        """Update the agent (None, parameters, or a new agent) and the environments, which are then rebuilt."""
        for what, given in (("agent_update", agent_update), ("env_update", env_update)):
            if isinstance(given, list):
                raise UsageError(f"{what} is a list, one a worker; an agent in the caller is one: give one for all")
        self._version += 1
        if is_parameters(agent_update):
            set_parameters(self._agent, agent_update)
        elif agent_update is not None:
            self._agent = agent_update
            self._rows.policy.ask_from_now(askable(agent_update), policy_name(agent_update))
        if env_update is not None:
            self._envs.append(env_update)
            try:
                run = self._built()
            except BaseException:  # the present environments stay in use
                self._envs.pop()
                raise
            self._run.close()
            self._endless, self._run = None, run

    def sample(self, steps: int | None, episodes: int | None, watch: Watch) -> EpisodeBatch:
        """Return a batch of so many steps or episodes."""
        if self._by_index or steps is None:
            schedule = Schedule(episodes, steps, first=self._base)
            found = self._of(schedule, self._root, watch)
            self._base = schedule.end or 0
        else:
            try:
                found = self._arriving(steps, watch)
            finally:  # do not play the same indices again after an interrupt
                self._base = max(self._base, self._arrivals.upcoming)
        return EpisodeBatch.from_episodes(self._spec, found)

    def scores(self, episodes: int, seed: int, watch: Watch) -> list[Score]:
        """Return the scores of episodes 0, 1, 2, ... of the root `seed`, in order."""
        scores = map(score_of, self._of(Schedule(episodes), seed, watch))
        return [replace(each, truncated=not each.terminated) for each in scores]

    def _of(self, schedule: Schedule, root: int, watch: Watch) -> list[Episode]:
        """Return the episodes of a schedule, in order of index."""
        self._again(schedule, root, watch)
        found = {index: episode for index, _, episode in self._run}
        self._run.warn()
        end = schedule.end
        return [self._stamped(found[index]) for index in sorted(found) if end is None or index < end]

    def _arriving(self, steps: int, watch: Watch) -> list[Episode]:
        """Return episodes in order of arrival, with at least `steps` steps in all."""
        if self._endless is None or not self._stale:
            self._arrivals = Schedule(first=self._base)
            self._again(self._arrivals, self._root, watch)
            self._endless = iter(self._run)
        found: list[Episode] = []
        try:
            while steps > 0:
                _, length, episode = next(self._endless)
                steps -= length
                found.append(self._stamped(episode))
        except BaseException:
            self._endless = None
            raise
        return found

    def _again(self, schedule: Schedule, root: int, watch: Watch) -> None:
        self._endless = None
        self._run.again(schedule, root, watch)
        self._versions.clear()

    def _stamped(self, episode: Episode) -> Episode:
        first, last = self._versions.pop(episode.index)
        if not self._stale:
            return episode
        return replace(episode, infos=(with_versions(episode.infos[0], first, last), *episode.infos[1:]))

    def close(self) -> None:
        """End the workers, who close their environments."""
        self._run.close()


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
        seed: int | None = None,
        n_workers: int | None = None,
        worker_class: Any = DefaultWorker,
        worker_args: dict[str, Any] | None = None,
        ordered: bool = False,
        allow_stale: bool = False,
        step_timeout: float | None = None,
        on_failure: str | None = None,
        progress: bool | None = None,
        inference: Inference | str = "worker",
        num_envs: int | None = None,
        worker_options: WorkerOptions | None = None,
        **unknown: Any,
    ) -> None:
        check_names(type(self), unknown)
        on_failure = self.default_on_failure if on_failure is None else on_failure
        how = {"step_timeout": step_timeout, "on_failure": on_failure}
        pool_options = {"max_restarts": 3, **chosen(worker_options, backend="the class of a sampler says it"), **how}
        agents, envs, worker_factory = _positions(args, agents, envs, worker_factory)
        if worker_factory is None:
            if max_episode_length is None:
                raise TypeError(
                    "Must construct a sampler from WorkerFactory or parameters (at least max_episode_length)"
                )
            worker_factory = WorkerFactory(
                max_episode_length=max_episode_length,
                seed=seed,
                n_workers=n_workers,
                worker_class=worker_class,
                worker_args=worker_args,
            )
        if not isinstance(ordered, bool):
            raise UsageError(f"ordered must be True or False, got {ordered!r}")
        own = {"ordered": ordered, "allow_stale": allow_stale, "progress": progress}
        self._options = {
            **own, "inference": inference, "num_envs": num_envs, "worker_options": worker_options, **how
        }  # fmt: skip
        self._start_method = None if worker_options is None else worker_options.start_method
        self._factory = worker_factory
        self._agents = worker_factory.prepare_worker_messages(agents)
        self._envs = worker_factory.prepare_worker_messages(envs)
        if isinstance(worker_factory, WorkerFactory):
            for agent, env in zip(self._agents, self._envs, strict=True):
                worker_factory.check_first(agent, env)
        self._by_index, self._progress = ordered, progress
        if self._by_index:
            check_alike(BY_INDEX, agents=agents, envs=envs)
        own_seed = getattr(worker_factory, "_seed", None)
        root = secrets.randbits(62) if own_seed is None else int(own_seed) % 2**63
        self.total_env_steps = 0
        asking, _, rows = asking_of(self._agents[0], inference, num_envs, worker_factory.n_workers)
        if rows != 1:
            given = f"pad_to={rows}" if num_envs is None else f"num_envs={num_envs}"
            raise UsageError(f"{given}, but each of {worker_factory.n_workers} workers plays one at a time")
        if asking is not None and (asking.where == "node" or self.backend == "ray"):
            raise UsageError(
                "a sampler's agent is asked in its workers or, on one machine, in the caller (inference='caller'). "
                "For a policy that is asked once a node, use treadle.collect(cluster=..., inference='node')"
            )
        pool_options |= {"backend": self.backend, "placement": self._placement}
        pool_options |= {"by_index": self._by_index, "stale": allow_stale, "root": root}
        self._sampling: CallerSampling | Gathering
        if asking is not None:
            self._sampling = self._asked_here(asking, pool_options)
        else:
            drawn = root if own_seed is None else None
            self._sampling = self._gathering(drawn, self._grows(agents, envs), pool_options)
        self._spent = Spent(self._sampling.pool)

    def _gathering(self, drawn: int | None, grows: bool, pool_options: dict[str, Any]) -> Gathering:
        """Return the sampling of agents in workers. `drawn`: the seed, if the user gave none."""
        registrations = None if self.backend == "serial" else own_registrations()
        recipes = [
            SlotRecipe(self._factory, agent, self._own_copy(env), drawn, registrations)
            for agent, env in zip(self._agents, self._envs, strict=True)
        ]
        if grows:
            pool_options["later"] = max(0, MOST_WORKERS - len(recipes))
            more = copy.copy(self._factory)
            more.n_workers = MOST_WORKERS
            recipes += [replace(recipes[0], factory=more)] * pool_options["later"]
        return Gathering(recipes, self._prepared, **pool_options)

    def _grows(self, agents: Any, envs: Any) -> bool:
        """Return True if workers may be added: without n_workers, by index, with one agent and env for all workers."""
        factory, listed = self._factory, isinstance(agents, list) or isinstance(envs, list)
        ours = isinstance(factory, WorkerFactory) and factory._worker_class is DefaultWorker and not factory.given
        possible = Growth.possible(None, self.backend, self._start_method)
        return ours and not listed and self._by_index and possible

    def _asked_here(self, asking: CallerInference, options: dict[str, Any]) -> CallerSampling:
        """Return the sampling with the agent in the caller. Raises UsageError for workers of another class."""
        factory = self._factory
        if not isinstance(factory, WorkerFactory) or factory._worker_class is not DefaultWorker or factory._worker_args:
            raise UsageError("inference='caller' takes no worker_class and no worker_args: the caller asks the agent")
        check_alike("an agent in the caller is one", agents=self._agents, envs=self._envs)
        workers, limit = factory.n_workers if factory.given else None, factory._max_episode_length
        return CallerSampling(self._agents[0], self._envs[0], asking, workers=workers, limit=limit, **options)

    def _prepared(self, update: Any, of_envs: bool) -> list[Any]:
        """Return each worker's part of an update."""
        values = self._factory.prepare_worker_messages(update)
        return [self._own_copy(value) for value in values] if of_envs else values

    def _own_copy(self, env: Any) -> Any:
        """Return a worker's part of an environment (or of an update) that the caller has."""
        return env

    # -- sampling ----------------------------------------------------------------------------------------------------

    def obtain_samples(
        self, itr: int | None, num_samples: int, agent_update: Any, env_update: Any = None
    ) -> EpisodeBatch:
        """Play whole episodes until there are enough steps.

        Args:
            itr: ignored; there for older programs.
            num_samples: number of steps wanted. The last episode is not cut, so there may be more.
            agent_update: None: the agents stay as they are. Parameters (a dict, tuple or array) for the agents'
                `set_param_values`, or a new agent. A list: one for each worker.
            env_update: None, an environment or an `EnvUpdate`, or a list of these: one for each worker.

        Returns:
            The episodes in order of arrival, or with ordered=True in order of index. All were played with
            the updated agent; with allow_stale=True, `episode_infos["agent_version"]` marks those of older agents.

        Raises:
            ValueError: a list of another length than the number of workers, or less than one step.
            TypeError, WorkerError: errors of workers, depending on `on_failure`; errors in an update, always.
            WorkersLost: all workers are gone.
        """
        return self._sampled(_count("num_samples", num_samples), None, agent_update, env_update)

    def obtain_exact_episodes(self, n_eps_per_worker: int, agent_update: Any, env_update: Any = None) -> EpisodeBatch:
        """Play a number of episodes in each worker.

        Args:
            n_eps_per_worker: number of episodes of each worker.
            agent_update, env_update: as for `obtain_samples`.

        Returns:
            The episodes in worker order: all of worker 0, then all of worker 1, and so on. With ordered=True, or with
            the agent in the caller: as many episodes in all, in order of index.

        Raises:
            The errors of `obtain_samples`. In worker order, WorkersLost as soon as one worker is gone.
        """
        each = _count("n_eps_per_worker", n_eps_per_worker)
        return self._sampled(None, each * len(self._agents), agent_update, env_update)

    def evaluate(
        self, episodes: int = 100, agent_update: Any = None, env_update: Any = None, *, seed: int = 0
    ) -> Evaluation:
        """Play whole episodes and return their scores, for example between two samplings.

        Episode i depends on (seed, i) alone. So the result is the same for any number of workers, and two agents play
        the same episodes: see `treadle.compare`. An evaluation does not change later samplings, and `total_env_steps`
        does not count its steps.

        Args:
            episodes: number of episodes.
            agent_update, env_update: as for `obtain_samples`, but not lists; later samplings use them, too.
            seed: seed of the episodes.

        Raises:
            The errors of `obtain_samples`; UsageError for workers that cannot play single episodes (VecWorker,
            FragmentWorker).
        """
        episodes = _count("episodes", episodes)
        check_root(seed)
        with self._watched(None, episodes, agent_update, env_update, by_index=True) as watch:
            scores = self._sampling.scores(episodes, seed, watch)
        return evaluation_of(policy_name(self._agents[0]), scores, seed)

    @property
    def verdict(self) -> Verdict:
        """The verdict on all samplings after the first: see `treadle.verdict`."""
        return self._spent.verdict()

    def _sampled(self, steps: int | None, episodes: int | None, agent_update: Any, env_update: Any) -> Any:
        with self._watched(steps, episodes, agent_update, env_update, self._by_index) as watch:
            batch = self._sampling.sample(steps, episodes, watch)
        self.total_env_steps += len(batch.rewards)
        return batch

    @contextmanager
    def _watched(
        self, steps: int | None, episodes: int | None, agent_update: Any, env_update: Any, by_index: bool
    ) -> Iterator[Watch]:
        """Send the updates, begin to play so many steps or episodes, and yield the `Watch` that shows the progress."""
        with Progress(self._progress) as shown:
            if self._sampling.pool.group.closed:
                raise ClosedPool("the sampler is shut down")
            self._spent.enter()
            self._sampling.update(agent_update, env_update, by_index)
            yield Watch(Standing(of_steps=steps, of_episodes=episodes), shown.tell)
            self._spent.leave()

    # -- the end -----------------------------------------------------------------------------------------------------

    def shutdown_worker(self) -> None:
        """End the workers, which close their environments. A second call does nothing."""
        self._spent.tell()
        self._sampling.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown_worker()

    def __getstate__(self) -> dict[str, Any]:
        """Return the factory, the original agents and environments, and the options, without later updates."""
        made_of = (self._factory, self._agents, self._envs, self._options)
        return {"made_of": pickling.dumps(made_of), "total_env_steps": self.total_env_steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start new workers."""
        factory, agents, envs, options = pickle.loads(state["made_of"])
        self.__init__(agents, envs, worker_factory=factory, **options)  # type: ignore[misc]
        self.total_env_steps = state["total_env_steps"]


def _positions(args: tuple[Any, ...], agents: Any, envs: Any, factory: Any) -> tuple[Any, Any, Any]:
    """Return (agents, envs, factory) of either order of arguments: (agents, envs) or (worker_factory, agents, envs)."""
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


def _count(name: str, count: Any) -> int:
    """Return `count` rounded up to a whole number. Raises UsageError unless it is a finite number of at least 1."""
    try:
        if count >= 1:
            return math.ceil(count)
    except (TypeError, OverflowError):
        raise UsageError(f"{name} must be a finite number, got {count!r}") from None
    raise UsageError(f"{name} must be at least 1, got {count!r}")
