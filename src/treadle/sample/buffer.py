"""A growing record of one episode in the making. Every observation is checked exactly as it is written.

The buffers are used again for the next episode: an `Episode` made from them shares their memory until then, unless
it is asked for as a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.sample.episode import Episode
from treadle.spaces import Layout

FIRST_BYTES = 1 << 20  # room that a leaf's column starts with


class Column:
    """One leaf over time."""

    def __init__(self, leaf: Any) -> None:
        self._leaf = leaf
        rows = max(64, min(1024, FIRST_BYTES // max(1, leaf.nbytes)))
        self.data = np.empty((rows, *leaf.shape), leaf.dtype)

    def grow(self) -> None:
        bigger = np.empty((2 * len(self.data), *self._leaf.shape), self._leaf.dtype)
        bigger[: len(self.data)] = self.data
        self.data = bigger


class TreeColumn:
    """A value of a space over time: one column a leaf, a list for leaves without a fixed shape."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._columns = [Column(leaf) if leaf.fixed else None for leaf in layout.leaves]
        self._loose: list[Any] = [[] for leaf in layout.leaves if not leaf.fixed]
        self._room = 0
        self._vector: Any = None
        self._bind()

    def clear(self) -> None:
        for values in self._loose:
            values.clear()

    def write(self, at: int, value: Any) -> None:
        """Write row `at`. Raises `spaces.Mismatch`."""
        if at >= self._room:
            for column in self._columns:
                if column is not None:
                    column.grow()
            self._bind()
        self._write(at, value)

    def tree(self, rows: int, copy: bool) -> Any:
        loose = iter(self._loose)
        values: list[Any] = []
        for column in self._columns:
            if column is None:
                values.append(list(next(loose)))
            else:
                values.append(column.data[:rows].copy() if copy else column.data[:rows])
        return self._layout.unflatten(values)

    def _bind(self) -> None:
        """Choose the quickest exact way to write a row, for columns as they are now."""
        columns, layout = self._columns, self._layout
        self._room = min((len(c.data) for c in columns if c is not None), default=1 << 62)
        leaves = layout.leaves
        self._write: Callable[[int, Any], None] = self._write_any
        if len(leaves) == 1 and leaves[0].fixed and not leaves[0].path:
            data = columns[0].data  # type: ignore[union-attr]
            dtype, shape = leaves[0].dtype, leaves[0].shape

            def write(at: int, value: Any) -> None:
                if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
                    data[at] = value
                else:
                    self._write_any(at, value)

            self._write = write

    def _write_any(self, at: int, value: Any) -> None:
        problem = self._layout.problem(value)
        if problem is not None:
            raise problem
        loose = iter(self._loose)
        for column, leaf in zip(self._columns, self._layout.flatten(value), strict=True):
            if column is None:
                next(loose).append(leaf)
            else:
                column.data[at] = leaf


class EpisodeBuffer:
    """One episode in the making: `begin`, then `step` until it ends, then `episode`."""

    def __init__(self, observations: Layout, actions: Layout, *, infos: bool) -> None:
        self._observations, self._actions = TreeColumn(observations), TreeColumn(actions)
        self._keep_infos = infos
        self.index = self.seed = -1
        self.length = 0

    def begin(self, index: int, seed: int, observation: Any, info: dict[str, Any]) -> None:
        self.index, self.seed, self.length = index, seed, 0
        self._observations.clear()
        self._actions.clear()
        self._rewards: list[float] = []
        self._infos: list[dict[str, Any]] = [dict(info)] if self._keep_infos else []
        self._policy_infos: list[dict[str, Any]] = []
        self._observations.write(0, observation)

    def step(self, action: Any, policy_info: dict[str, Any] | None, result: tuple[Any, ...]) -> None:
        """One step. Raises `spaces.Mismatch` when the observation does not fit."""
        observation, reward, _, _, info = result
        self._actions.write(self.length, action)
        self._rewards.append(reward)
        if self._keep_infos:
            self._infos.append(dict(info) if info else {})
        if policy_info is not None:
            self._policy_infos.append(policy_info)
        self.length += 1
        self._observations.write(self.length, observation)

    def episode(self, terminated: bool, truncated: bool, *, copy: bool) -> Episode:
        """The finished record. With `copy` it is yours to keep, else it is good until the next `begin`."""
        steps = self.length
        ends = np.zeros((2, steps), np.bool_)
        ends[0, -1], ends[1, -1] = terminated, truncated
        return Episode(
            self.index,
            self.seed,
            self._observations.tree(steps + 1, copy),
            self._actions.tree(steps, copy),
            np.array(self._rewards, np.float64),
            ends[0],
            ends[1],
            tuple(self._infos),
            tuple(self._policy_infos),
        )
