"""Several episodes in the making, one after the other in columns with time first, for the batches of samplers.

An environment may give an info on some steps only (Gymnasium's do). Then rows without it hold zero, or None where the
values are not numbers. The column `_<key>` (bool) marks the rows that have it, as in Gymnasium's vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from treadle import trees
from treadle.play.contract import BadStep, numbers
from treadle.play.recorder import Recorder, dense
from treadle.spaces import Layout
from treadle.wire.messages import snapshot


def array_of(values: Sequence[Any]) -> np.ndarray:
    """Return the values of steps as one array; of objects if they have no common shape, or are objects themselves."""
    try:
        return np.asarray(values)
    except ValueError:  # of different shapes
        return np.fromiter(values, object, len(values))


def stacked(values: Sequence[Any]) -> Any:
    """Return a list of values of steps as a tree of arrays, time first; dicts and tuples are nodes of the tree."""
    first = values[0]
    if type(first) is dict or (type(first) is tuple and not hasattr(first, "_fields")):
        return trees.map(lambda *leaves: array_of(leaves), first, *values[1:])
    return array_of(values)


def kept(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an info to keep. Its arrays are copied, as environments use theirs again; other values are not."""
    return {key: value.copy() if type(value) is np.ndarray else value for key, value in info.items()}


def columns_of(infos: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return an array of len(infos) rows for each key. A key that some rows lack gets a second column, `_<key>`."""
    if not any(infos):
        return {}
    rows = len(infos)
    values: dict[str, list[Any]] = {}
    places: dict[str, list[int]] = {}
    for row, info in enumerate(infos):
        for key, value in info.items():
            if key in values:
                values[key].append(value)
                places[key].append(row)
            else:
                values[key], places[key] = [value], [row]
    columns = {}
    for key, found in values.items():
        array = array_of(found)
        if len(found) < rows:
            there = np.zeros(rows, np.bool_)
            there[places[key]] = True
            whole = absent(array, rows)
            whole[there] = array
            columns[key], columns[f"_{key}"] = whole, there
        else:
            columns[key] = array
    return columns


def absent(like: Any, rows: int) -> Any:
    """Return a column of `rows` rows without a value, of the shape and dtype of `like`: zeros, or None for objects."""
    if isinstance(like, dict):
        return {key: absent(value, rows) for key, value in like.items()}
    if like.dtype.kind in "biufc":
        return np.zeros((rows, *like.shape[1:]), like.dtype)
    return np.full((rows, *like.shape[1:]), None, object)


class ColumnsBuffer(Recorder):
    """Several episodes one after the other, for samplers.

    For each: `begin`, then drive `play` until it returns, then `finish_episode`. `columns` returns them all.

    Args:
        observations: layout of the observation space.
        action_shape: shape of an action.

    Attributes:
        lengths: steps of each episode since `clear`.
        ends: (terminated, truncated) of each.
        rows: steps of all episodes.
        nbytes: bytes of their observations.
    """

    def __init__(self, observations: Layout, action_shape: Any) -> None:
        super().__init__(observations, None, kept, dict)
        self._row_bytes, self._action_shape = observations.row_nbytes, action_shape
        self.clear()

    @property
    def rows(self) -> int:
        return self._base

    @property
    def nbytes(self) -> int:
        return self._base * self._row_bytes

    def clear(self) -> None:
        """Forget all episodes; their arrays are written again from now on."""
        self._clear()
        self.lengths: list[int] = []
        self.ends: list[tuple[bool, bool]] = []
        self._lasts: list[Any] = []
        self._episode_infos: list[dict[str, Any]] = []

    def begin(self, observation: Any, episode_info: Mapping[str, Any]) -> None:
        """Begin an episode with the result of a reset. An episode that is not finished is dropped."""
        self._give_up()
        self._begin(observation)
        self._first_info = kept(episode_info)

    def finish_episode(self, ends: tuple[bool, bool]) -> None:
        """Keep the episode whose `play` has returned `ends`."""
        self.lengths.append(self.length)
        self.ends.append(ends)
        self._lasts.append(snapshot(self.last))
        self._episode_infos.append(self._first_info)
        self._base += self.length

    def columns(self, *, copy: bool) -> dict[str, Any]:
        """Return the finished episodes since `clear`, as an `EpisodeBatch` takes them.

        `copy`: False: arrays of observations hold until `clear`.

        Raises `BadStep` for a reward that is not a real number, ValueError for policies' infos whose keys vary.
        """
        self._give_up()
        lengths = np.array(self.lengths, np.int64)
        return {
            "episode_infos": columns_of(self._episode_infos),
            "observations": self._observations.tree(self.rows, copy),
            "last_observations": stacked(self._lasts),
            "actions": stacked(self._given),
            "rewards": self._numbers(np.cumsum(lengths)),
            "env_infos": columns_of(dense(self._infos, self.rows)) if self._infos else {},
            "agent_infos": _strict(dense(self._policy_infos, self.rows)) if self._policy_infos else {},
            "lengths": lengths,
        }

    def _done(self, first: int, stop: int) -> list[np.ndarray] | None:
        with suppress(ValueError):  # arrays of different shapes
            actions = np.array(self._given[first:stop])
            if actions.shape[1:] == self._action_shape and not actions.dtype.hasobject:
                return [actions]
        return None

    def _numbers(self, ends: np.ndarray) -> np.ndarray:
        try:
            return numbers(self._rewards)
        except BadStep as error:
            step = error.step or 1  # of all episodes together
            error.step = step - int(max(ends[ends < step], default=0))
            raise


def _strict(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one array for each key of an agent's infos. Raises ValueError unless every step has every key."""
    keys = infos[0].keys() if infos else {}.keys()
    if any(info.keys() != keys for info in infos):
        raise ValueError("the agent's infos have different keys on different steps")
    return {key: array_of([info[key] for info in infos]) for key in keys}
