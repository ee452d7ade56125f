"""Single steps, and the spaces that they are about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treadle.sample.step_type import StepType


@dataclass(frozen=True)
class InOutSpec:
    """The spaces of whatever takes one thing and gives another."""

    input_space: Any
    output_space: Any


@dataclass(frozen=True, init=False)
class EnvSpec(InOutSpec):
    """The spaces of an environment, and how long its episodes may last.

    Spaces are Gymnasium's, or anything with `contains` (and, where it has one, `flat_dim`).

    Attributes:
        max_episode_length: steps, None: no limit.
    """

    max_episode_length: int | None = None

    def __init__(self, observation_space: Any, action_space: Any, max_episode_length: int | None = None) -> None:
        super().__init__(input_space=action_space, output_space=observation_space)
        object.__setattr__(self, "max_episode_length", max_episode_length)

    @property
    def observation_space(self) -> Any:
        return self.output_space

    @property
    def action_space(self) -> Any:
        return self.input_space


class _Typed:
    """Words for a step type."""

    step_type: StepType

    @property
    def first(self) -> bool:
        """Is it the first step of its episode?"""
        return self.step_type is StepType.FIRST

    @property
    def mid(self) -> bool:
        """Is it neither the first nor the last?"""
        return self.step_type is StepType.MID

    @property
    def terminal(self) -> bool:
        """Did the environment end the episode with it?"""
        return self.step_type is StepType.TERMINAL

    @property
    def timeout(self) -> bool:
        """Did a time limit end the episode with it?"""
        return self.step_type is StepType.TIMEOUT

    @property
    def last(self) -> bool:
        """Did the episode end with it, in either way?"""
        return self.step_type is StepType.TERMINAL or self.step_type is StepType.TIMEOUT


@dataclass
class EnvStep(_Typed):
    """What an environment's `step` returns.

    Attributes:
        env_spec: the environment's.
        action: what was done.
        reward: for it.
        observation: what it led to.
        env_info: more about it.
        step_type: its place in the episode.
    """

    env_spec: EnvSpec
    action: Any
    reward: Any
    observation: Any
    env_info: dict[str, Any]
    step_type: StepType


@dataclass(frozen=True)
class TimeStep(_Typed):
    """One step with all that is known of it.

    Attributes:
        env_spec: of the environment.
        episode_info: what holds for the whole episode.
        observation: what the action was chosen from.
        action: what was done.
        reward: for it.
        next_observation: what it led to.
        env_info: more from the environment.
        agent_info: more from the agent.
        step_type: its place in the episode.
    """

    env_spec: EnvSpec
    episode_info: dict[str, Any]
    observation: Any
    action: Any
    reward: float
    next_observation: Any
    env_info: dict[str, Any]
    agent_info: dict[str, Any]
    step_type: StepType

    @classmethod
    def from_env_step(
        cls, env_step: EnvStep, last_observation: Any, agent_info: dict[str, Any], episode_info: dict[str, Any]
    ) -> TimeStep:
        """An `EnvStep` with what was seen before it, and what the agent and the episode add."""
        return cls(
            env_spec=env_step.env_spec,
            episode_info=episode_info,
            observation=last_observation,
            action=env_step.action,
            reward=env_step.reward,
            next_observation=env_step.observation,
            env_info=env_step.env_info,
            agent_info=agent_info,
            step_type=env_step.step_type,
        )
