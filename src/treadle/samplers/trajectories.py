"""Rollouts on their way to the caller: packed columns whose first axis is time, with one or more rollouts.

Small rollouts share a message, because a message costs as much as some 20 steps of a small environment. Step types
are bytes here, and the spaces are sent only when they are new to the caller.

On arrival, large rollouts are copied to their place in the result (`memory/reserved.py`). This frees the memory that
they came in for later rollouts, and the result is complete when its last rollout arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from treadle import trees
from treadle.samplers.columns import cut_table, join_tables, joined
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.steps import codes_of, types_of


@dataclass
class Trajectories:
    """R rollouts: N episodes, T steps.

    Attributes:
        env_spec: None: the same as in the worker's last batch.
        columns: the arguments of `EpisodeBatch` by name, without env_spec and step_types.
        codes: uint8[T], see `steps.StepType`.
        rollouts: int64[R], episodes of each rollout.
        indices: of the rollouts; empty if they have none.
        kind: the class of the worker's batches.
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

    def __deepcopy__(self, memo: Any) -> Trajectories:
        return self  # the worker hands it over and keeps no reference

    def settle(self, lay: Callable[[Any, np.ndarray], np.ndarray]) -> None:
        """Replace every array by `lay(path, array)`."""
        for name, tree in self.columns.items():
            if isinstance(tree, np.ndarray):
                self.columns[name] = lay((name,), tree)
            elif tree:
                paths = iter(trees.paths(tree))
                self.columns[name] = trees.map(
                    lambda leaf, name=name, paths=paths: _laid(lay, (name, *next(paths)), leaf), tree
                )

    def strip(self) -> None:
        """Keep rewards and lengths alone."""
        self.columns = {name: self.columns[name] for name in ("rewards", "lengths")}

    def part(self, start: int, stop: int) -> Trajectories:
        """Return rollouts start to stop-1; arrays are views."""
        if start == 0 and stop == len(self.rollouts):
            return self
        ends = np.concatenate([[0], np.cumsum(self.rollouts)])
        return self._cut(int(ends[start]), int(ends[stop]), self.rollouts[start:stop], self.indices[start:stop])

    def first_episodes(self, count: int) -> Trajectories:
        """Return the first `count` episodes, each as one rollout; arrays are views."""
        return self._cut(0, count, np.ones(count, np.int64), self.indices[:count])

    def _cut(self, first: int, last: int, rollouts: np.ndarray, indices: list[int]) -> Trajectories:
        rows = np.concatenate([[0], np.cumsum(self.lengths)])
        begin, end = int(rows[first]), int(rows[last])
        columns = cut_table(self.columns, first, last, begin, end)
        return Trajectories(self.env_spec, columns, self.codes[begin:end], rollouts, indices, self.kind)


def _laid(lay: Callable[[Any, np.ndarray], np.ndarray], path: Any, leaf: Any) -> Any:
    return lay(path, leaf) if isinstance(leaf, np.ndarray) else leaf


def trajectories_of(batches: Sequence[EpisodeBatch]) -> Trajectories:
    """Make trajectories of workers' batches, one batch a rollout."""
    columns = join_tables([batch.table() for batch in batches])
    rollouts = np.array([len(batch.lengths) for batch in batches], np.int64)
    codes = codes_of(columns.pop("step_types"))
    return Trajectories(batches[0].env_spec, columns, codes, rollouts, kind=type(batches[0]))


def batch_of(pieces: Sequence[Trajectories], there: Callable[..., Any] | None = None) -> Any:
    """Join the pieces to one batch, in one pass over the arrays. Raises what the batch's constructor raises.

    `there`: see `columns.joined`.
    """
    columns, first = join_tables(list(map(attrgetter("columns"), pieces)), there), pieces[0]
    codes = joined(list(map(attrgetter("codes"), pieces)))
    return first.kind(env_spec=first.env_spec, step_types=types_of(codes), **columns)
