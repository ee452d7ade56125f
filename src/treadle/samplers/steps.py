"""Steps, their types and their spaces, and batches of steps, which may belong to different episodes."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from treadle.samplers.columns import check_steps, join_tables, sliced


class StepType(enum.IntEnum):
    """The place of a step in its episode.

    FIRST: the step of the first action. MID: neither the first nor the last. TERMINAL: the environment ended the
    episode. TIMEOUT: a time limit of the environment ended it.

    An episode of one step has no FIRST: its only step is TERMINAL or TIMEOUT. If a worker's own `max_episode_length`
    cuts an episode, its last step keeps its type.
    """

    FIRST = 0
    MID = 1
    TERMINAL = 2
    TIMEOUT = 3

    @classmethod
    def get_step_type(cls, step_cnt: int, max_episode_length: int | float | None, done: bool) -> StepType:
        """Return the type of a step. At the limit, TIMEOUT wins over TERMINAL.

        Args:
            step_cnt: number of the step in its episode, from 1.
            max_episode_length: the most steps of the episode; None: no limit.
            done: True if the environment ended the episode.

        Raises:
            ValueError: `step_cnt` is below 1.
        """
        if max_episode_length is not None and step_cnt >= max_episode_length:
            return cls.TIMEOUT
        if done:
            return cls.TERMINAL
        if step_cnt < 1:
            raise ValueError(
                f"Expect step_cnt to be >= 1, but got {step_cnt} instead. Did you forget to call `reset()`?"
            )
        return cls.FIRST if step_cnt == 1 else cls.MID


_MEMBERS = np.array(list(StepType), dtype=object)


def codes_of(step_types: np.ndarray) -> np.ndarray:
    """Return an object array of StepType as uint8[T], which travels between processes."""
    return step_types.astype(np.uint8)


def types_of(codes: np.ndarray) -> np.ndarray:
    """Return the object array of StepType for uint8[T]."""
    return _MEMBERS[codes]


@dataclass(frozen=True)
class InOutSpec:
    """An input space and an output space."""

    input_space: Any
    output_space: Any


@dataclass(frozen=True, init=False)
class EnvSpec(InOutSpec):
    """The spaces of an environment, and its limit of steps.

    Spaces are Gymnasium's, or objects with `contains` and, optionally, `flat_dim`.

    Attributes:
        max_episode_length: the most steps of an episode; None: no limit.
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
    """Properties that test the step type."""

    step_type: StepType

    @property
    def first(self) -> bool:
        """Return True for the first step of an episode (of more than one step)."""
        return self.step_type is StepType.FIRST

    @property
    def mid(self) -> bool:
        """Return True for a step that is neither the first nor the last."""
        return self.step_type is StepType.MID

    @property
    def terminal(self) -> bool:
        """Return True if the environment ended the episode with this step."""
        return self.step_type is StepType.TERMINAL

    @property
    def timeout(self) -> bool:
        """Return True if a time limit ended the episode with this step."""
        return self.step_type is StepType.TIMEOUT

    @property
    def last(self) -> bool:
        """Return True if the episode ended with this step, as TERMINAL or TIMEOUT."""
        return self.step_type is StepType.TERMINAL or self.step_type is StepType.TIMEOUT


@dataclass
class EnvStep(_Typed):
    """The return value of an environment's `step`.

    Attributes:
        env_spec: the environment's spaces.
        action: the action.
        reward: its reward.
        observation: the observation after it.
        env_info: the environment's info dict.
        step_type: the step's place in the episode.
    """

    env_spec: EnvSpec
    action: Any
    reward: Any
    observation: Any
    env_info: dict[str, Any]
    step_type: StepType


@dataclass(frozen=True)
class TimeStep(_Typed):
    """One step, with the observations before and after it.

    Attributes:
        env_spec: the environment's spaces.
        episode_info: infos of the whole episode.
        observation: the observation before the action.
        action: the action.
        reward: its reward.
        next_observation: the observation after it.
        env_info: the environment's info dict.
        agent_info: the agent's info dict.
        step_type: the step's place in the episode.
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
        """Make a `TimeStep` of an `EnvStep`, the observation before it, and the infos of agent and episode."""
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


Infos = dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class TimeStepBatch:
    """T steps as columns. Observations and actions of Dict and Tuple spaces are dicts and tuples of arrays.

    Attributes:
        env_spec: the `EnvSpec` of the environment.
        episode_infos: arrays [T, ...]; the infos of each step's episode.
        observations: [T, ...]; the observations before the actions.
        actions: [T, ...].
        rewards: [T].
        next_observations: [T, ...]; the observations after the actions.
        agent_infos: arrays [T, ...], or dicts of them.
        env_infos: arrays [T, ...], or dicts of them.
        step_types: `StepType` objects [T].

    Raises:
        ValueError: columns have different lengths or wrong types, or a column's first row does not fit its space.
    """

    env_spec: EnvSpec
    episode_infos: Infos
    observations: Any
    actions: Any
    rewards: np.ndarray
    next_observations: Any
    agent_infos: Infos
    env_infos: Infos
    step_types: np.ndarray

    def __post_init__(self) -> None:
        check_steps(self, next_observations=True)

    def __len__(self) -> int:
        return len(self.rewards)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} steps>"

    @classmethod
    def concatenate(cls, *batches: TimeStepBatch) -> TimeStepBatch:
        """Concatenate batches in one pass over their arrays.

        In `env_infos` and `episode_infos`, keys that some batches lack are filled with zeros or None, and a column
        `_<key>` says which rows have them. Raises ValueError without a batch, and for different keys in `agent_infos`.
        """
        if not batches:
            raise ValueError("Please provide at least one TimeStepBatch to concatenate")
        tables = [{name: getattr(batch, name) for name in COLUMNS} for batch in batches]
        return TimeStepBatch(batches[0].env_spec, **join_tables(tables))

    def split(self) -> list[Any]:
        """Return one batch a step, in order: the inverse of `concatenate`. Arrays are views."""
        return [TimeStepBatch(env_spec=self.env_spec, **row) for row in self.to_time_step_list()]

    def to_time_step_list(self) -> list[dict[str, Any]]:
        """Return one dict a step, whose columns have one row."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        return [{name: sliced(values, i, i + 1) for name, values in columns.items()} for i in range(len(self))]

    @classmethod
    def from_time_step_list(cls, env_spec: EnvSpec, ts_samples: Sequence[dict[str, Any]]) -> TimeStepBatch:
        """Make a batch of dicts as `to_time_step_list` returns them; each may have any number of rows.

        Raises ValueError without a dict, and what the constructor raises.
        """
        if len(ts_samples) < 1:
            raise ValueError("Please provide at least one dict")
        return TimeStepBatch.concatenate(
            *(TimeStepBatch(env_spec, **{name: sample[name] for name in COLUMNS}) for sample in ts_samples)
        )

    @classmethod
    def from_episode_batch(cls, batch: Any) -> TimeStepBatch:
        """Make a batch of an `EpisodeBatch`, with next observations and episode infos as columns."""
        return TimeStepBatch(batch.env_spec, **{name: getattr(batch, name) for name in COLUMNS})

    @property
    def terminals(self) -> np.ndarray:
        """bool[T]: True for steps that are TERMINAL."""
        return codes_of(self.step_types) == StepType.TERMINAL


COLUMNS = tuple(each.name for each in fields(TimeStepBatch) if each.name != "env_spec")
