"""A batch of single steps, which need not belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from treadle.samplers.columns import check_steps, join_tables, rows_of
from treadle.samplers.steps import EnvSpec, StepType, codes_of

Infos = dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class TimeStepBatch:
    """T steps as columns. Observations and actions of Dict and Tuple spaces are dicts and tuples of arrays.

    Attributes:
        env_spec: of the environment.
        episode_infos: what holds for the whole episode of each step: arrays [T, ...].
        observations: [T, ...]; what the actions were chosen from.
        actions: [T, ...].
        rewards: [T].
        next_observations: [T, ...]; what the actions led to.
        agent_infos: arrays [T, ...], or dicts of them.
        env_infos: arrays [T, ...], or dicts of them.
        step_types: `StepType` objects [T].

    Raises:
        ValueError: columns of different lengths or wrong types, or whose first row does not fit its space.
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
        """The batches one after the other, in one pass over their arrays.

        Keys that some lack are filled in `env_infos` and `episode_infos` (zeros, and a column `_<key>` that says which
        rows have them). Raises ValueError for no batch, and for different keys in `agent_infos`.
        """
        if not batches:
            raise ValueError("Please provide at least one TimeStepBatch to concatenate")
        tables = [{name: getattr(batch, name) for name in COLUMNS} for batch in batches]
        return TimeStepBatch(batches[0].env_spec, **join_tables(tables))

    def split(self) -> list[Any]:
        """One batch a step, in order: the inverse of `concatenate`. Arrays are views."""
        return [TimeStepBatch(env_spec=self.env_spec, **row) for row in self.to_time_step_list()]

    def to_time_step_list(self) -> list[dict[str, Any]]:
        """One dict a step, whose columns have one row."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        return [{name: rows_of(values, i, i + 1) for name, values in columns.items()} for i in range(len(self))]

    @classmethod
    def from_time_step_list(cls, env_spec: EnvSpec, ts_samples: Sequence[dict[str, Any]]) -> TimeStepBatch:
        """The batch of which `to_time_step_list` made these; each may have any number of rows.

        Raises ValueError for no dict, and what building a batch raises.
        """
        if len(ts_samples) < 1:
            raise ValueError("Please provide at least one dict")
        return TimeStepBatch.concatenate(
            *(TimeStepBatch(env_spec, **{name: sample[name] for name in COLUMNS}) for sample in ts_samples)
        )

    @classmethod
    def from_episode_batch(cls, batch: Any) -> TimeStepBatch:
        """The steps of an `EpisodeBatch`, with next observations and episode infos as columns."""
        return TimeStepBatch(batch.env_spec, **{name: getattr(batch, name) for name in COLUMNS})

    @property
    def terminals(self) -> np.ndarray:
        """bool[T]: which steps are TERMINAL."""
        return codes_of(self.step_types) == StepType.TERMINAL


COLUMNS = tuple(each.name for each in fields(TimeStepBatch) if each.name != "env_spec")
