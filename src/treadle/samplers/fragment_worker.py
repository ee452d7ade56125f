"""Fragments: some steps of several environments at a time, which go on where they stopped."""

from __future__ import annotations

from treadle.checks import check_whole
from treadle.samplers.agents import reset_agent
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.in_progress import InProgressEpisode
from treadle.samplers.vec_worker import ManyEnvs


class FragmentWorker(ManyEnvs):
    """A rollout is `timesteps_per_call` steps in each environment, as fragments: first those whose episode ended, then
    the others, which go on in the next rollout. An update of the agent does not begin the episodes anew.

    In a fragment only an episode's very first step is FIRST, and only its last TERMINAL or TIMEOUT.

    Args:
        seed, max_episode_length, worker_number: see `Worker`.
        n_envs: how many environments.
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
        """After an update of an environment: begin an episode in all of them."""
        if self._needs_env_reset:
            self._needs_env_reset = False
            reset_agent(self.agent, [True] * self._n_envs)
            for i in range(self._n_envs):
                self._begin(i)
            self._completed = []

    def collect_episode(self) -> EpisodeBatch:
        """The fragments since the last call."""
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
        """`timesteps_per_call` steps in each environment."""
        self.start_episode()
        for _ in range(self._timesteps_per_call):
            self.step_episode()
        return self.collect_episode()
