"""The interface of samplers: what gathers episodes from workers, somewhere."""

from __future__ import annotations

from typing import Any, Self

from treadle.samplers.episode_batch import EpisodeBatch


class Sampler:
    """Base of samplers. A subclass gathers episodes in its own way."""

    total_env_steps = 0

    @classmethod
    def from_worker_factory(cls, worker_factory: Any, agents: Any, envs: Any) -> Self:
        """A sampler whose workers that factory makes; see the constructor."""
        return cls(agents, envs, worker_factory=worker_factory)  # type: ignore[call-arg]

    def start_worker(self) -> None:
        """Nothing: workers are started by the constructor. There for older programs."""

    def obtain_samples(self, itr: int, num_samples: int, agent_update: Any, env_update: Any = None) -> EpisodeBatch:
        """At least so many steps, in whole episodes."""
        raise NotImplementedError(f"{type(self).__name__}.obtain_samples")

    def obtain_exact_episodes(self, n_eps_per_worker: int, agent_update: Any, env_update: Any = None) -> EpisodeBatch:
        """So many episodes of each worker, in worker order."""
        raise NotImplementedError(f"{type(self).__name__}.obtain_exact_episodes")

    def shutdown_worker(self) -> None:
        """End the workers. A second call does nothing."""
        raise NotImplementedError(f"{type(self).__name__}.shutdown_worker")
