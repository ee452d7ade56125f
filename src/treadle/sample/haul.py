"""Rollouts on their way to the caller: columns with time first, several rollouts one after the other.

Small rollouts travel together, because a message costs as much as some 20 steps of a small environment. Step types
are bytes here, and the spaces come along only when they are new to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle import trees
from treadle.sample.episode_batch import EpisodeBatch
from treadle.sample.info_columns import join_columns
from treadle.sample.padding import joined, rows_of
from treadle.sample.step_type import codes_of, types_of


@dataclass
class Haul:
    """R rollouts: N episodes, T steps.

    Attributes:
        env_spec: None: the same as in the worker's haul before.
        columns: what `EpisodeBatch` takes, but for env_spec and step_types.
        codes: uint8[T], see `step_type`.
        rollouts: int64[R], episodes of each.
        indices: of the rollouts, where they have any, else empty.
        kind: the class of batches that the worker made.
    """

    env_spec: Any
    columns: dict[str, Any]
    codes: np.ndarray
    rollouts: np.ndarray
    indices: list[int] = field(default_factory=list)
    kind: type = EpisodeBatch

    @property
    def lengths(self) -> np.ndarray:
        """int64[N]: steps of each episode."""
        return self.columns["lengths"]

    @property
    def steps(self) -> np.ndarray:
        """int64[R]: steps of each rollout."""
        return np.add.reduceat(self.lengths, np.cumsum(self.rollouts) - self.rollouts)

    def __deepcopy__(self, memo: Any) -> Haul:
        return self  # made to be handed over: nobody else refers to it

    def settle(self, lay: Callable[[Any, np.ndarray], np.ndarray]) -> None:
        """Let its arrays lie where `lay` says, which is called with each one's path and the array."""
        for name, tree in self.columns.items():
            paths = iter(trees.paths(tree))
            self.columns[name] = trees.map(
                lambda leaf, name=name, paths=paths: _laid(lay, (name, *next(paths)), leaf), tree
            )

    def strip(self) -> None:
        """Keep rewards and lengths alone."""
        self.columns = {name: self.columns[name] for name in ("rewards", "lengths")}

    def part(self, start: int, stop: int) -> Haul:
        """Rollouts start to stop-1; arrays are views."""
        if start == 0 and stop == len(self.rollouts):
            return self
        ends = np.concatenate([[0], np.cumsum(self.rollouts)])
        return self._cut(int(ends[start]), int(ends[stop]), self.rollouts[start:stop], self.indices[start:stop])

    def first_episodes(self, count: int) -> Haul:
        """The first `count` episodes, each as a rollout of its own; arrays are views."""
        return self._cut(0, count, np.ones(count, np.int64), self.indices[:count])

    def _cut(self, first: int, last: int, rollouts: np.ndarray, indices: list[int]) -> Haul:
        rows = np.concatenate([[0], np.cumsum(self.lengths)])
        begin, end = int(rows[first]), int(rows[last])
        columns = {
            name: rows_of(values, first, last) if name in BY_EPISODE else rows_of(values, begin, end)
            for name, values in self.columns.items()
        }
        return Haul(self.env_spec, columns, self.codes[begin:end], rollouts, indices, self.kind)


def _laid(lay: Callable[[Any, np.ndarray], np.ndarray], path: Any, leaf: Any) -> Any:
    return lay(path, leaf) if isinstance(leaf, np.ndarray) else leaf


BY_EPISODE = frozenset({"episode_infos", "last_observations", "lengths"})


def haul_of(batches: Sequence[EpisodeBatch]) -> Haul:
    """What workers' rollouts returned, one batch a rollout. Raises TypeError for what is no batch."""
    for batch in batches:
        if not isinstance(batch, EpisodeBatch):
            raise TypeError(f"a worker's rollout returns an EpisodeBatch; this one returned a {type(batch).__name__}")
    rows = [len(batch.rewards) for batch in batches]
    episodes = [len(batch.lengths) for batch in batches]
    columns = {
        "episode_infos": join_columns([b.episode_infos_by_episode for b in batches], episodes),
        "env_infos": join_columns([b.env_infos for b in batches], rows),
        "agent_infos": join_columns([b.agent_infos for b in batches], rows, strict="agent_infos"),
    }
    for name in ("observations", "last_observations", "actions", "rewards", "lengths"):
        columns[name] = joined([getattr(batch, name) for batch in batches])
    codes = codes_of(joined([batch.step_types for batch in batches]))
    rollouts = np.array(episodes, np.int64)
    return Haul(batches[0].env_spec, columns, codes, rollouts, kind=type(batches[0]))


def batch_of(hauls: Sequence[Haul], there: Callable[..., Any] | None = None) -> Any:
    """All of them as one batch, in one pass over the arrays. Raises what building the batch raises.

    `there`: see `padding.joined`.
    """
    lengths = [haul.lengths for haul in hauls]
    rows, episodes = [len(haul.codes) for haul in hauls], list(map(len, lengths))
    tables = [haul.columns for haul in hauls]
    return hauls[0].kind(
        env_spec=hauls[0].env_spec,
        episode_infos=join_columns([t["episode_infos"] for t in tables], episodes, there=there),
        env_infos=join_columns([t["env_infos"] for t in tables], rows, there=there),
        agent_infos=join_columns([t["agent_infos"] for t in tables], rows, strict="agent_infos", there=there),
        **{
            name: joined([t[name] for t in tables], there)
            for name in ("observations", "last_observations", "actions", "rewards")
        },
        step_types=types_of(joined([haul.codes for haul in hauls])),
        lengths=joined(lengths, there),
    )
