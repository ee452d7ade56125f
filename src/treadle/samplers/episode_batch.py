"""A batch of whole episodes, or of fragments of episodes, packed into arrays whose first axis is time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle import trees
from treadle.play.columns import columns_of
from treadle.play.episode import Episode
from treadle.samplers.columns import (
    Table,
    check_episodes,
    check_steps,
    cut_table,
    join_tables,
    pad_batch_array,
    sliced,
)
from treadle.samplers.steps import EnvSpec, Infos, StepType, TimeStepBatch, codes_of, types_of


@dataclass(frozen=True, init=False, eq=False, repr=False)
class EpisodeBatch(TimeStepBatch):
    """N episodes, T steps in all. Observations and actions of Dict and Tuple spaces are dicts and tuples of arrays.

    Args:
        env_spec: the `EnvSpec` of the environment.
        episode_infos: arrays [N, ...], one row an episode (kept as `episode_infos_by_episode`).
        observations: [T, ...]; the observations before the actions.
        last_observations: [N, ...]; the observation after each episode's last action.
        actions: [T, ...].
        rewards: [T].
        env_infos: arrays [T, ...], or dicts of them.
        agent_infos: arrays [T, ...], or dicts of them.
        step_types: `StepType` objects [T].
        lengths: integers [N], steps of each episode.

    Raises:
        ValueError: columns have different lengths or wrong types, or a column's first row does not fit its space. A
            first observation that is only out of bounds causes a warning.
    """

    episode_infos_by_episode: Infos
    last_observations: Any
    lengths: np.ndarray

    def __init__(
        self,
        env_spec: EnvSpec,
        episode_infos: Infos,
        observations: Any,
        last_observations: Any,
        actions: Any,
        rewards: np.ndarray,
        env_infos: Infos,
        agent_infos: Infos,
        step_types: np.ndarray,
        lengths: np.ndarray,
    ) -> None:
        check_episodes(env_spec, episode_infos, last_observations, lengths)
        self.__dict__.update(
            env_spec=env_spec,
            episode_infos_by_episode=episode_infos,
            observations=observations,
            last_observations=last_observations,
            actions=actions,
            rewards=rewards,
            env_infos=env_infos,
            agent_infos=agent_infos,
            step_types=step_types,
            lengths=lengths,
        )
        check_steps(self, next_observations=False)
        if lengths.sum() != len(rewards):
            raise ValueError(f"rewards has batch size {len(rewards)}, but the lengths add up to {int(lengths.sum())}")

    def __repr__(self) -> str:
        mean = f", mean return {self.rewards.sum() / len(self.lengths):,.2f}" if len(self.lengths) else ""
        return f"<{type(self).__name__}: {len(self.lengths):,} episodes, {len(self):,} steps{mean}>"

    @classmethod
    def trusted(cls, **columns: Any) -> EpisodeBatch:
        """Make a batch as the constructor does, by keyword and without its checks.

        The caller guarantees that the columns fit.
        """
        batch = object.__new__(cls)
        columns["episode_infos_by_episode"] = columns.pop("episode_infos")
        batch.__dict__.update(columns)
        return batch

    def __reduce__(self) -> Any:
        return _rebuilt, (
            type(self),
            {**self.table(), "env_spec": self.env_spec, "step_types": codes_of(self.step_types)},
        )

    # -- many and one ------------------------------------------------------------------------------------------------

    @classmethod
    def concatenate(cls, *batches: Any) -> EpisodeBatch:
        """Concatenate batches in one pass over their arrays.

        In `env_infos` and `episode_infos`, keys that some batches lack are filled with zeros or None, and a column
        `_<key>` says which rows have them. Raises ValueError without a batch, and for different keys in `agent_infos`.
        """
        if not batches:
            raise ValueError("Please provide at least one EpisodeBatch to concatenate")
        return cls(env_spec=batches[0].env_spec, **join_tables([batch.table() for batch in batches]))

    def split(self) -> list[Any]:
        """Return one batch an episode, in order: the inverse of `concatenate`. Arrays are views."""
        return [self._piece(i, i + 1, *rows) for i, rows in enumerate(self._ranges())]

    def episodes(self, start: int, stop: int) -> EpisodeBatch:
        """Return episodes start to stop-1 as a batch. Arrays are views."""
        ranges = self._ranges()[start:stop]
        return self._piece(start, stop, ranges[0][0], ranges[-1][1])

    def table(self) -> Table:
        """Return the constructor's arguments by name, without `env_spec`."""
        columns = {**self.__dict__, "episode_infos": self.episode_infos_by_episode}
        del columns["episode_infos_by_episode"], columns["env_spec"]
        return columns

    def _piece(self, start: int, stop: int, first: int, last: int) -> EpisodeBatch:
        return type(self).trusted(env_spec=self.env_spec, **cut_table(self.table(), start, stop, first, last))

    def to_list(self) -> list[dict[str, Any]]:
        """Return a list of one dict for each episode.

        The keys for an episode of T steps: observations, next_observations, actions, rewards and step_types, each
        [T, ...]. Also env_infos and agent_infos (dicts of [T, ...]), and episode_infos (dict of this episode's values).
        """
        table = {**self.table(), "next_observations": self.next_observations}
        del table["last_observations"], table["lengths"]
        return [
            {**cut_table(table, i, i + 1, *rows), "episode_infos": trees.row(self.episode_infos_by_episode, i)}
            for i, rows in enumerate(self._ranges())
        ]

    @classmethod
    def from_list(cls, env_spec: EnvSpec, paths: Sequence[dict[str, Any]]) -> EpisodeBatch:
        """Make a batch of dicts as `to_list` returns them.

        Observations may be [T + 1, ...], with the last observation. If they are [T, ...] and `next_observations` is
        missing, the last observation is unknown, and the one before it takes its place. `dones` (bool[T]) may replace
        `step_types`. Raises ValueError without a dict, and what the constructor raises.
        """
        if not paths:
            raise ValueError("Please provide at least one dict")
        lengths = [len(path["rewards"]) for path in paths]
        sizes = [len(trees.leaves(path["observations"])[0]) for path in paths]
        whole = all(size == length + 1 for size, length in zip(sizes, lengths, strict=True))
        last = "observations" if whole or paths[0].get("next_observations") is None else "next_observations"
        tables = [
            {
                "episode_infos": {k: np.asarray([v]) for k, v in (path.get("episode_infos") or {}).items()},
                "observations": sliced(path["observations"], 0, length if whole else None),
                "last_observations": sliced(path[last], -1, None),
                **{name: path[name] for name in ("actions", "rewards", "env_infos", "agent_infos")},
                "step_types": _types_in(path),
                "lengths": np.array([length], np.int64),
            }
            for path, length in zip(paths, lengths, strict=True)
        ]
        return cls(env_spec=env_spec, **join_tables(tables))

    @classmethod
    def from_episodes(cls, env_spec: EnvSpec, episodes: Iterable[Episode]) -> EpisodeBatch:
        """Make a batch of episodes that `treadle.collect` yields, by concatenating their arrays.

        The info of an episode's reset becomes `episode_infos`, those of its steps become `env_infos`, and
        `policy_infos` become `agent_infos`. A step that is both terminated and truncated is a TIMEOUT.
        """
        batches = []
        for episode in episodes:
            steps = len(episode)
            codes = np.ones(steps, np.uint8)
            codes[0] = StepType.FIRST
            codes[episode.terminated] = StepType.TERMINAL
            codes[episode.truncated] = StepType.TIMEOUT
            batches.append(
                cls.trusted(
                    env_spec=env_spec,
                    episode_infos=columns_of(episode.infos[:1]),
                    observations=sliced(episode.observations, 0, steps),
                    last_observations=sliced(episode.observations, steps, steps + 1),
                    actions=episode.actions,
                    rewards=episode.rewards,
                    env_infos=columns_of(episode.infos[1:]),
                    agent_infos=columns_of(episode.policy_infos),
                    step_types=types_of(codes),
                    lengths=np.array([steps], np.int64),
                )
            )
        return cls.concatenate(*batches)

    # -- other views of the same -------------------------------------------------------------------------------------

    @property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.lengths)

    def _ranges(self) -> list[tuple[int, int]]:
        """Return (first row, row after the last) of each episode."""
        ends = self._ends.tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    @property  # type: ignore[misc]
    def next_observations(self) -> Any:
        """[T, ...]: the observation after each action. Computed at each use."""
        last_rows = self._ends - 1

        def shifted(observations: Any, last: Any) -> Any:
            if isinstance(observations, list):
                following = [*observations[1:], None]
                for row, value in zip(last_rows.tolist(), last, strict=True):
                    following[row] = value
                return following
            following = np.empty_like(observations)
            following[:-1] = observations[1:]
            following[last_rows] = last
            return following

        return trees.map(shifted, self.observations, self.last_observations)

    @property  # type: ignore[misc]
    def episode_infos(self) -> Infos:
        """Dict of arrays [T, ...]: for each step, the infos of its episode. Made anew at each use."""
        return {key: np.repeat(value, self.lengths, axis=0) for key, value in self.episode_infos_by_episode.items()}

    @property
    def observations_list(self) -> list[Any]:
        """Each episode's observations; views."""
        return [sliced(self.observations, start, stop) for start, stop in self._ranges()]

    @property
    def actions_list(self) -> list[Any]:
        """Each episode's actions; views."""
        return [sliced(self.actions, start, stop) for start, stop in self._ranges()]

    def _padded(self, values: Any) -> Any:
        limit = self.env_spec.max_episode_length
        return pad_batch_array(values, self.lengths, None if limit is None or limit == np.inf else int(limit))

    @property
    def padded_observations(self) -> Any:
        """[N, max_episode_length, ...], zeros after an episode's end. Without a limit: [N, longest episode, ...]."""
        return self._padded(self.observations)

    @property
    def padded_next_observations(self) -> Any:
        """As `padded_observations`."""
        return self._padded(self.next_observations)

    @property
    def padded_actions(self) -> Any:
        """As `padded_observations`."""
        return self._padded(self.actions)

    @property
    def padded_rewards(self) -> np.ndarray:
        """As `padded_observations`."""
        return self._padded(self.rewards)

    @property
    def padded_step_types(self) -> np.ndarray:
        """As `padded_observations`; zeros mean FIRST, so `valids` is needed to find the padding."""
        return self._padded(self.step_types)

    @property
    def padded_agent_infos(self) -> Infos:
        """As `padded_observations`, by key."""
        return {key: self._padded(values) for key, values in self.agent_infos.items()}

    @property
    def padded_env_infos(self) -> Infos:
        """As `padded_observations`, by key."""
        return {key: self._padded(values) for key, values in self.env_infos.items()}

    @property
    def valids(self) -> np.ndarray:
        """[N, max_episode_length] of the rewards' dtype: one where there is a step, zero where there is padding."""
        return self._padded(np.ones_like(self.rewards))


def _rebuilt(cls: type[EpisodeBatch], columns: dict[str, Any]) -> EpisodeBatch:
    return cls.trusted(**{**columns, "step_types": types_of(columns["step_types"])})


def _types_in(path: dict[str, Any]) -> np.ndarray:
    if "step_types" in path:
        return path["step_types"]
    return types_of(np.where(np.asarray(path["dones"], bool), int(StepType.TERMINAL), int(StepType.MID)))
