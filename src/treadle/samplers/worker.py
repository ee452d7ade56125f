"""The interface of workers: what plays episodes, somewhere. Subclass it, or one of those that are there.

A sampler makes its workers by a `WorkerFactory`, gives them the agent and the environment, and calls `rollout` again
and again. Everything else is the worker's own business: what a rollout is, how many environments it has, what an
update means.
"""

from __future__ import annotations

import secrets
from typing import Any

from treadle import seeding
from treadle.samplers.adapt import as_environment, bare, seed_environment
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.updates import apply_env_update

# first numbers of the seed paths of workers; 0 to 4 are taken, see docs/architecture.md
ENVIRONMENTS, GLOBALS = 5, 6


class Worker:
    """Base of workers.

    Args:
        seed: of the sampler, None: another one every time.
        max_episode_length: steps after which an episode is cut; may be infinite.
        worker_number: from 0; makes the seeds of several workers differ.

    Attributes:
        agent, env: what it plays with; None before the first update.
        by_index: does `rollout` play one environment from one seed on, so that episodes can be made by index
            (`schedule="deterministic"`, `evaluate`)?
        interruptible: may a rollout be given up between two calls of `step_episode`, and `discard_episode` be called
            then? Otherwise a stop waits for the rollout's end.
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
        """Derive the seeds of environments to come from here on. Samplers call this for a worker that stands in for
        one that has died (`incarnation` 1, 2, ...), and where there is no seed (`root` is then drawn once for all)."""
        self._root = secrets.randbits(62) if root is None else root % 2**63
        self._incarnation, self._seeded = incarnation, 0

    def next_env_seed(self) -> int:
        """A seed for an environment that this worker takes over; another one at each call."""
        self._seeded += 1
        return seeding.derive(self._root, ENVIRONMENTS, self._worker_number, self._incarnation, self._seeded)

    def adopt(self, old_env: Any, env_update: Any) -> tuple[Any, bool]:
        """The environment to use after an update, and whether there was one.

        A new one is adapted if it is a `gymnasium.Env`, and seeded apart from its copies. Updates are called with the
        environment as its owner knows it, without the adapter. Raises TypeError for an update of an unknown type.
        """
        known = None if old_env is None else bare(old_env)
        new, updated = apply_env_update(known, env_update)
        if not updated or (new is known and known is not None):
            return old_env, updated
        env = as_environment(new)
        seed_environment(env, self.next_env_seed())
        return env, True

    def update_agent(self, agent_update: Any) -> None:
        """Change the agent. None: no change. What else there may be is the worker's business."""
        raise NotImplementedError(f"{type(self).__name__}.update_agent")

    def update_env(self, env_update: Any) -> None:
        """Change the environment. None: no change. What else there may be is the worker's business."""
        raise NotImplementedError(f"{type(self).__name__}.update_env")

    def rollout(self) -> EpisodeBatch:
        """Play; by default one episode: start, step until it is over, collect."""
        self.start_episode()
        while not self.step_episode():
            pass
        return self.collect_episode()

    def start_episode(self) -> None:
        """Begin a new episode."""
        raise NotImplementedError(f"{type(self).__name__}.start_episode")

    def step_episode(self) -> bool:
        """One step. True: the episode is over, by the environment's word or at `max_episode_length`."""
        raise NotImplementedError(f"{type(self).__name__}.step_episode")

    def collect_episode(self) -> EpisodeBatch:
        """What was played since the last call, and forget it."""
        raise NotImplementedError(f"{type(self).__name__}.collect_episode")

    def discard_episode(self) -> None:
        """Forget what was not collected. Called when a rollout was given up; see `interruptible`."""
        raise NotImplementedError(f"{type(self).__name__}.discard_episode")

    def seed_episode(self, env_seed: int) -> None:
        """Seed the environment for the next rollout alone; see `by_index`."""
        raise NotImplementedError(f"{type(self).__name__}.seed_episode")

    def shutdown(self) -> None:
        """Give back what it holds, its environments first of all. Called once."""

    def __getstate__(self) -> Any:
        raise ValueError("Workers are not pickleable. Please pickle the WorkerFactory instead.")
