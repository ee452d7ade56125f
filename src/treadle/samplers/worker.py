"""The interface of workers, which play episodes, and `DefaultWorker`, which plays one episode a rollout.

Users may subclass any worker. A sampler makes its workers with a `WorkerFactory`, gives them the agent and the
environment, and calls `rollout` repeatedly. The worker decides what a rollout contains, how many environments it has,
and what an update means.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from typing import Any

import numpy as np

from treadle import seeding
from treadle.play.columns import array_of, columns_of, kept, stacked
from treadle.samplers.adapt import apply_env_update, as_environment, bare, fit_of, fitted, seed_environment, spec_of
from treadle.samplers.agents import action_of, as_agent, is_parameters, reset_agent, set_parameters
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.steps import EnvStep
from treadle.spaces.fit import Fit
from treadle.wire.messages import snapshot

# first numbers of workers' seed paths; 0 to 4 have other uses, see docs/decisions.md
ENVIRONMENTS, GLOBALS = 5, 6


class Worker:
    """Base of workers.

    Args:
        seed: the sampler's seed; None: a new seed each time.
        max_episode_length: steps after which an episode is cut; may be infinite.
        worker_number: from 0; makes the seeds of several workers differ.

    Attributes:
        agent, env: the agent and the environment; None before the first update.
        by_index: True if `rollout` plays one environment from one seed, so that episodes can be made by index
            (`ordered=True`, `evaluate`).
        interruptible: True if a rollout may be given up between two calls of `step_episode`, followed by
            `discard_episode`. False: a stop waits for the rollout's end.
    """

    agent: Any = None
    env: Any = None
    by_index = False
    interruptible = False

    def __init__(self, *, seed: int | None, max_episode_length: int | float, worker_number: int) -> None:
        self._seed = seed
        self._max_episode_length = max_episode_length
        self._worker_number = worker_number
        self.reseed(None if seed is None else int(seed), 0)

    def reseed(self, root: int | None, incarnation: int) -> None:
        """Derive the seeds of later environments from `root` and `incarnation`.

        Samplers call this for a worker that replaces a dead one (`incarnation` 1, 2, ...). A sampler without a seed
        also calls it, with one random `root` for all workers.
        """
        self._root = secrets.randbits(62) if root is None else root % 2**63
        self._incarnation, self._seeded = incarnation, 0

    def next_env_seed(self) -> int:
        """Return a seed for an environment that this worker takes over, a different one at each call."""
        self._seeded += 1
        return seeding.derive(self._root, ENVIRONMENTS, self._worker_number, self._incarnation, self._seeded)

    def adopt(self, old_env: Any, env_update: Any) -> tuple[Any, bool]:
        """Return (the environment to use after an update, True if there was an update).

        A new environment is adapted if it is a `gymnasium.Env`, and gets another seed than its copies. Updates are
        called with the environment without its adapter. Raises TypeError for an update of an unknown type.
        """
        known = None if old_env is None else bare(old_env)
        new, updated = apply_env_update(known, env_update)
        if not updated or (new is known and known is not None):
            return old_env, updated
        env = as_environment(new)
        seed_environment(env, self.next_env_seed())
        return env, True

    def update_agent(self, agent_update: Any) -> None:
        """Change the agent. None: no change. The worker decides which other updates it accepts."""
        raise NotImplementedError(f"{type(self).__name__}.update_agent")

    def update_env(self, env_update: Any) -> None:
        """Change the environment. None: no change. The worker decides which other updates it accepts."""
        raise NotImplementedError(f"{type(self).__name__}.update_env")

    def rollout(self) -> EpisodeBatch:
        """Play a rollout; by default one episode: start it, step until it is over, collect it."""
        self.start_episode()
        while not self.step_episode():
            pass
        return self.collect_episode()

    def start_episode(self) -> None:
        """Begin a new episode."""
        raise NotImplementedError(f"{type(self).__name__}.start_episode")

    def step_episode(self) -> bool:
        """Take one step. Return True if the environment or `max_episode_length` has ended the episode."""
        raise NotImplementedError(f"{type(self).__name__}.step_episode")

    def collect_episode(self) -> EpisodeBatch:
        """Return the steps played since the last call, and forget them."""
        raise NotImplementedError(f"{type(self).__name__}.collect_episode")

    def discard_episode(self) -> None:
        """Forget steps that were not collected. Called when a rollout was given up; see `interruptible`."""
        raise NotImplementedError(f"{type(self).__name__}.discard_episode")

    def seed_episode(self, env_seed: int) -> None:
        """Seed the environment for the next rollout alone; see `by_index`."""
        raise NotImplementedError(f"{type(self).__name__}.seed_episode")

    def shutdown(self) -> None:
        """Release the worker's resources: close its environments first. Called once."""

    def __getstate__(self) -> Any:
        raise ValueError("Workers are not pickleable. Please pickle the WorkerFactory instead.")


class DefaultWorker(Worker):
    """Plays one episode per rollout.

    Subclasses may override any method, and use the attributes that the methods fill:

    - `_prev_obs`: the observation that the next action is chosen from. `_eps_length`: steps of the present episode.
    - `_observations` and `_env_steps`: lists with one entry for each step. `_agent_infos`: key -> list of one value for
      each step.
    - `_lengths`: list of one number for each episode. `_episode_infos`: key -> list of one value for each episode.

    Args:
        seed, max_episode_length, worker_number: see `Worker`.
    """

    by_index = True
    interruptible = True

    def __init__(self, *, seed: int | None, max_episode_length: int | float, worker_number: int) -> None:
        super().__init__(seed=seed, max_episode_length=max_episode_length, worker_number=worker_number)
        self._prev_obs: Any = None
        self._eps_length = 0
        self._fit_env: Any = None
        self._fit: Fit | None = None
        self._forget()
        self.worker_init()

    def _forget(self) -> None:
        self._observations: list[Any] = []
        self._env_steps: list[EnvStep] = []
        self._agent_infos: Any = defaultdict(list)
        self._lengths: list[int] = []
        self._last_observations: list[Any] = []
        self._episode_infos: Any = defaultdict(list)

    def worker_init(self) -> None:
        """Seed this process's `random`, `numpy.random` and torch, unless the seed is None."""
        if self._seed is not None:
            seeding.seed_globals(seeding.derive(self._root, GLOBALS, self._worker_number, self._incarnation))

    def update_agent(self, agent_update: Any) -> None:
        """Set the agent's parameters if the update is a dict, tuple or array, else replace the agent. None: no change.

        Raises TypeError for parameters if the agent has no `set_param_values`, and for an object that is not an agent.
        """
        if is_parameters(agent_update):
            set_parameters(self.agent, agent_update)
        elif agent_update is not None:
            self.agent = as_agent(agent_update)

    def update_env(self, env_update: Any) -> None:
        """Use an environment, an object that makes one, or an `EnvUpdate`; None: no change.

        Raises TypeError for an update of another type.
        """
        self.env, updated = self.adopt(self.env, env_update)
        if updated:
            self._fit_env = None

    def start_episode(self) -> None:
        """Reset the environment, then the agent."""
        self._eps_length = 0
        self._prev_obs, episode_info = self.env.reset()
        for key, value in kept(episode_info).items():
            self._episode_infos[key].append(value)
        reset_agent(self.agent)

    def step_episode(self) -> bool:
        """Take one step. Return True if the environment or `max_episode_length` has ended the episode."""
        if self._fit_env is not self.env:  # a subclass may replace `env` in any way
            self._fit_env, self._fit = self.env, fit_of(self.env)
        if self._eps_length == 0:  # checked here, as a subclass may begin episodes in its own way
            self._prev_obs = fitted(self._fit, self._prev_obs, 0)
        action, agent_info = action_of(self.agent, self._prev_obs)
        self._observations.append(snapshot(self._prev_obs))  # an environment may use its array again
        step = self.env.step(action)
        step.observation = snapshot(fitted(self._fit, step.observation, self._eps_length + 1))
        step.action, step.env_info = snapshot(step.action), kept(step.env_info)
        self._env_steps.append(step)
        for key, value in agent_info.items():
            self._agent_infos[key].append(value)
        self._eps_length += 1
        self._prev_obs = step.observation
        if step.last or self._eps_length >= self._max_episode_length:
            self._lengths.append(self._eps_length)
            self._last_observations.append(step.observation)
            return True
        return False

    def collect_episode(self) -> EpisodeBatch:
        """Return the episodes since the last call as a batch.

        The last observation of an episode is that of its last step, even if a subclass has noted another.
        """
        steps, lengths = self._env_steps, np.array(self._lengths, np.int64)
        ends = np.cumsum(lengths) - 1
        batch = EpisodeBatch(
            env_spec=spec_of(self.env),
            episode_infos={key: array_of(values) for key, values in self._episode_infos.items()},
            observations=stacked(self._observations),
            last_observations=stacked([steps[end].observation for end in ends]),
            actions=stacked([step.action for step in steps]),
            rewards=np.asarray([step.reward for step in steps]),
            env_infos=columns_of([step.env_info for step in steps]),
            agent_infos={key: array_of(values) for key, values in self._agent_infos.items()},
            step_types=np.array([step.step_type for step in steps], object),
            lengths=lengths,
        )
        self._forget()
        return batch

    def discard_episode(self) -> None:
        """Forget steps that were not collected."""
        self._forget()

    def seed_episode(self, env_seed: int) -> None:
        """Seed the environment for the next rollout alone."""
        seed_environment(self.env, env_seed)

    def shutdown(self) -> None:
        """Close the environment."""
        if self.env is not None:
            self.env.close()
