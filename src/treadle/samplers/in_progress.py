"""An episode in progress, which collects steps in lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.play.columns import array_of, columns_of, kept, stacked
from treadle.samplers.adapt import as_environment, fit_of, fitted, spec_of
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.steps import StepType
from treadle.spaces.fit import Fit
from treadle.wire.messages import snapshot


class InProgressEpisode:
    """One episode, or a fragment of one, in progress. Observations are copied, as environments reuse their arrays.

    Args:
        env: the environment; a `gymnasium.Env` is adapted.
        initial_observation: the observation before the first action; None: the environment is reset.
        episode_info: infos of the whole episode; given with `initial_observation`, and only then.
        before: None, or the same environment's episode (or fragment) before this one.

    Attributes:
        number: the number of the environment's episodes before this one.
        observations: one more than there are steps.
        actions, rewards, step_types: one a step.
        agent_infos, env_infos: dicts, one a step.

    Raises:
        ValueError: only one of initial_observation and episode_info is given, or an observation does not fit the
            environment's space.
    """

    def __init__(
        self,
        env: Any,
        initial_observation: Any = None,
        episode_info: dict[str, Any] | None = None,
        *,
        before: InProgressEpisode | None = None,
    ) -> None:
        if (initial_observation is None) != (episode_info is None):
            only = "episode info" if initial_observation is None else "initial observation"
            raise ValueError(
                f"Initial observation and episode info must be both or neither provided, but only {only} was passed in"
            )
        self.env = as_environment(env)
        self._fit: Fit | None = fit_of(self.env) if before is None else before._fit
        self._before = 0  # steps of the episode that were played before this fragment of it
        self.number: int = 0 if before is None else before.number
        if initial_observation is None:
            self.number += before is not None
            initial_observation, episode_info = self.env.reset()
            initial_observation = fitted(self._fit, initial_observation, 0)
        elif before is not None:
            self._before = before.length
        self.episode_info: dict[str, Any] = kept(episode_info or {})
        self.observations = [snapshot(initial_observation)]
        self.actions: list[Any] = []
        self.rewards: list[Any] = []
        self.step_types: list[StepType] = []
        self.agent_infos: list[dict[str, Any]] = []
        self.env_infos: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def length(self) -> int:
        """Steps of the episode so far, including earlier fragments."""
        return self._before + len(self.rewards)

    def step(self, action: Any, agent_info: dict[str, Any]) -> Any:
        """Step the environment and return its observation."""
        step = self.env.step(action)
        step.observation = fitted(self._fit, step.observation, self.length + 1)
        self.observations.append(snapshot(step.observation))
        self.actions.append(snapshot(step.action))
        self.rewards.append(step.reward)
        self.step_types.append(step.step_type)
        self.agent_infos.append(dict(agent_info))
        self.env_infos.append(kept(step.env_info))
        return step.observation

    def to_batch(self) -> EpisodeBatch:
        """Return the steps so far as a batch of one episode. Raises AssertionError before the first step."""
        assert self.rewards, "an episode without steps cannot be a batch"
        return EpisodeBatch(
            env_spec=spec_of(self.env),
            episode_infos={key: array_of([value]) for key, value in self.episode_info.items()},
            observations=stacked(self.observations[:-1]),
            last_observations=stacked([self.last_obs]),
            actions=stacked(self.actions),
            rewards=np.asarray(self.rewards),
            env_infos=columns_of(self.env_infos),
            agent_infos=columns_of(self.agent_infos),
            step_types=np.array(self.step_types, object),
            lengths=np.array([len(self.rewards)], np.int64),
        )

    @property
    def last_obs(self) -> Any:
        """The latest observation."""
        return self.observations[-1]

    @property
    def ended(self) -> bool:
        """Return True if the environment has ended the episode, as TERMINAL or TIMEOUT."""
        return bool(self.step_types) and self.step_types[-1] in (StepType.TERMINAL, StepType.TIMEOUT)
