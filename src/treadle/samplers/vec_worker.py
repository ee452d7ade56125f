"""Workers with one agent and several environments, whose agent is asked about a batch of observations.

A rollout holds whole episodes, or fragments: some steps of each environment, which go on where they stopped.
"""

from __future__ import annotations

import copy
from typing import Any

from treadle.checks import check_whole
from treadle.errors import attributes_of
from treadle.play.contract import in_step
from treadle.play.recorder import Trail
from treadle.samplers.adapt import GymEnv
from treadle.samplers.agents import actions_of, reset_agent
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.in_progress import InProgressEpisode
from treadle.samplers.worker import DefaultWorker
from treadle.spaces import Mismatch


class ManyEnvs(DefaultWorker):
    """The base of workers with several environments.

    Args:
        seed, max_episode_length, worker_number: see `Worker`.
        n_envs: how many.
    """

    DEFAULT_N_ENVS = 8
    by_index = False

    def __init__(
        self,
        *,
        seed: int | None,
        max_episode_length: int | float,
        worker_number: int,
        n_envs: int = DEFAULT_N_ENVS,
    ) -> None:
        super().__init__(seed=seed, max_episode_length=max_episode_length, worker_number=worker_number)
        check_whole(none=False, n_envs=n_envs)
        self._n_envs = n_envs
        self._envs: list[Any] = [None] * n_envs
        self._episodes: list[InProgressEpisode | None] = [None] * n_envs
        self._trails: list[Trail] = [Trail(None, (None, None))] * n_envs
        self._completed: list[EpisodeBatch] = []
        self._needs_env_reset = True

    def update_env(self, env_update: Any) -> None:
        """Use one environment or `EnvUpdate` for all (copied), or a list with one for each; None: no change.

        Raises TypeError for an update of another type, ValueError for a list of another length.
        """
        if env_update is None:
            return
        if isinstance(env_update, list):
            if len(env_update) != self._n_envs:
                raise ValueError(
                    "If separate environments are passed for each worker, there must be exactly n_envs "
                    f"({self._n_envs}) environments, but received {len(env_update)} environments."
                )
            updates = env_update
        else:
            updates = [copy.deepcopy(env_update) for _ in range(self._n_envs)]
        for i, update in enumerate(updates):
            self._envs[i], updated = self.adopt(self._envs[i], update)
            self._needs_env_reset |= updated

    def step_episode(self) -> bool:
        """Step every environment. Return True if at least one episode is over; its environment has begun the next."""
        over = self._step_all()
        for i, ended in enumerate(over):
            if ended:
                episode = self._episodes[i]
                assert episode is not None
                self._completed.append(episode.to_batch())
                self._begin(i, episode)
        if any(over):
            reset_agent(self.agent, over)
        return any(over)

    def _step_all(self) -> list[bool]:
        """Step every environment and return, for each, True if its episode is over."""
        episodes = self._episodes
        actions, infos = actions_of(self.agent, [episode.last_obs for episode in episodes if episode is not None])
        over = []
        for i, (episode, action) in enumerate(zip(episodes, actions, strict=True)):
            assert episode is not None
            trail = self._trails[i]
            try:
                trail.act(action)
                observation = episode.step(action, {key: values[i] for key, values in infos.items()})
                trail.see(observation, episode.rewards[-1])
            except Exception as error:
                self._failed(error, i, episode.length + 1, episode.number)
                raise
            over.append(episode.ended or episode.length >= self._max_episode_length)
        return over

    def _begin(self, i: int, before: InProgressEpisode | None = None) -> None:
        """Begin an episode in environment i, whose last one was `before`."""
        env = self._envs[i]
        self._trails[i] = trail = Trail(env, env.begins() if isinstance(env, GymEnv) else (None, None))
        try:
            self._episodes[i] = episode = InProgressEpisode(env, before=before)
            trail.see(episode.last_obs)
        except Exception as error:
            self._failed(error, i, None, 0 if before is None else before.number + 1)
            raise

    def _failed(self, error: Exception, i: int, step: int | None, episode: int) -> None:
        """Add the place to an error of environment i. Its state is unknown, so all environments begin anew."""
        self._needs_env_reset = True
        in_step(error, step, episode)
        if (trail := self._trails[i].entries()) is not None:
            attributes_of(error)["treadle_trail"] = {**trail, "env": i}
        if isinstance(error, Mismatch):
            error.name = f"environment {i}'s observation"

    def shutdown(self) -> None:
        """Close the environments."""
        for env in self._envs:
            if env is not None:
                env.close()


class VecWorker(ManyEnvs):
    """Steps all its environments together; a rollout ends when at least one episode ends.

    The other episodes go on in the next rollout, unless the agent or an environment was updated.

    Args:
        seed, max_episode_length, worker_number: see `Worker`.
        n_envs: number of environments.
    """

    _needs_agent_reset = True

    def update_agent(self, agent_update: Any) -> None:
        """As `DefaultWorker.update_agent`. All episodes begin anew, as an episode must not have two policies."""
        super().update_agent(agent_update)
        self._needs_agent_reset = True

    def start_episode(self) -> None:
        """After an update, begin an episode in every environment that is not at an episode's beginning."""
        if not (self._needs_agent_reset or self._needs_env_reset):
            return
        reset_agent(self.agent, [True] * self._n_envs)
        for i, episode in enumerate(self._episodes):
            if self._needs_env_reset or episode is None:
                self._begin(i)
            elif episode.length:
                self._begin(i, episode)
        self._completed = []
        self._needs_agent_reset = self._needs_env_reset = False

    def collect_episode(self) -> EpisodeBatch:
        """Return the episodes that have ended since the last call."""
        completed, self._completed = self._completed, []
        return completed[0] if len(completed) == 1 else EpisodeBatch.concatenate(*completed)

    def discard_episode(self) -> None:
        """Forget finished episodes. The others go on, as none is in the middle of a step."""
        self._completed = []


class FragmentWorker(ManyEnvs):
    """Plays `timesteps_per_call` steps in each environment as a rollout of fragments.

    Fragments whose episode has ended come first, then the others, whose episodes go on in the next rollout. An update
    of the agent does not begin the episodes anew.

    Only an episode's first step is FIRST, and only its last step is TERMINAL or TIMEOUT, whatever the fragment.

    Args:
        seed, max_episode_length, worker_number: see `Worker`.
        n_envs: number of environments.
        timesteps_per_call: steps of each environment in a rollout.
    """

    def __init__(
        self,
        *,
        seed: int | None,
        max_episode_length: int | float,
        worker_number: int,
        n_envs: int = ManyEnvs.DEFAULT_N_ENVS,
        timesteps_per_call: int = 1,
    ) -> None:
        super().__init__(seed=seed, max_episode_length=max_episode_length, worker_number=worker_number, n_envs=n_envs)
        check_whole(none=False, timesteps_per_call=timesteps_per_call)
        self._timesteps_per_call = timesteps_per_call

    def start_episode(self) -> None:
        """After an update of an environment, begin an episode in all environments."""
        if self._needs_env_reset:
            self._needs_env_reset = False
            reset_agent(self.agent, [True] * self._n_envs)
            for i in range(self._n_envs):
                self._begin(i)
            self._completed = []

    def collect_episode(self) -> EpisodeBatch:
        """Return the fragments since the last call."""
        fragments, self._completed = self._completed, []
        for i, episode in enumerate(self._episodes):
            if episode is not None and len(episode):
                fragments.append(episode.to_batch())
                self._go_on(i, episode)
        return EpisodeBatch.concatenate(*fragments)

    def _go_on(self, i: int, episode: InProgressEpisode) -> None:
        """Begin a new fragment of the same episode."""
        self._episodes[i] = InProgressEpisode(episode.env, episode.last_obs, episode.episode_info, before=episode)

    def discard_episode(self) -> None:
        """Forget the steps that were not collected; their episodes go on after them."""
        self._completed = []
        for i, episode in enumerate(self._episodes):
            if episode is not None and len(episode):
                self._go_on(i, episode)

    def rollout(self) -> EpisodeBatch:
        """Play `timesteps_per_call` steps in each environment."""
        self.start_episode()
        for _ in range(self._timesteps_per_call):
            self.step_episode()
        return self.collect_episode()
