"""Packs of small episodes, whose arrays travel one behind the other.

A pack takes a fraction of the time, and of the bytes, that a pickle of each episode takes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle import pickling
from treadle.play.episode import Episode
from treadle.spaces import Layout
from treadle.spaces.leaves import Plan, unflatten

SMALL = 1 << 14  # bytes of an episode's arrays, up to which it is copied twice more rather than sent by itself
ENOUGH = 1 << 18  # bytes of a pack, its infos included, that need not wait for more

Note = tuple[int, int, int, bytes | None]  # index, seed, steps, a pickle of what is not in the arrays


@dataclass(frozen=True)
class Tree:
    """A value over time, of several episodes.

    Attributes:
        plan: of its space.
        leaves: an array for each leaf, the episodes one behind the other; None: the leaf has no fixed shape.
    """

    plan: Plan
    leaves: list[np.ndarray | None]

    def rows(self, start: int, stop: int, loose: Iterator[Any]) -> Any:
        """Return a copy of some rows, so that a kept episode does not keep the others in memory.

        `loose`: gives the values of the leaves without a fixed shape.
        """
        found = [next(loose) if leaf is None else leaf[start:stop].copy() for leaf in self.leaves]
        return unflatten(self.plan, found)


@dataclass(frozen=True)
class Pack:
    """Several small episodes, whose arrays lie one behind the other.

    Attributes:
        notes: (index, seed, steps, pickle) of each episode; the pickle has all that is not in the arrays. None: there
            is nothing else.
        observations, actions, rewards, terminated, truncated: of all episodes, as an `Episode` has them.
        infos: True: infos are kept; those of an episode without a pickle are empty.
    """

    notes: list[Note]
    observations: Tree
    actions: Tree
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: bool

    def lengths(self) -> list[tuple[int, int]]:
        """Return (index, steps) of each episode."""
        return [(index, steps) for index, _, steps, _ in self.notes]

    def episodes(self) -> Iterator[tuple[int, int, Episode | Exception]]:
        """Yield (index, steps, episode); in place of an episode that cannot be read, the exception of reading it."""
        at = seen = 0
        for index, seed, steps, rest in self.notes:
            first, row = at, seen
            at, seen = at + steps, seen + steps + 1
            values: Any = ()
            infos: Any = ()
            policy_infos: Any = ()
            if rest is not None:
                try:
                    values, infos, policy_infos = pickle.loads(rest)
                except Exception as error:  # noqa: BLE001 - unpickling runs foreign code
                    yield index, steps, error
                    continue
            elif self.infos:
                infos = tuple([{} for _ in range(steps + 1)])
            loose = iter(values)
            yield (
                index,
                steps,
                Episode(
                    index,
                    seed,
                    self.observations.rows(row, seen, loose),
                    self.actions.rows(first, at, loose),
                    self.rewards[first:at].copy(),
                    self.terminated[first:at].copy(),
                    self.truncated[first:at].copy(),
                    infos,
                    policy_infos,
                ),
            )


class Packer:
    """Gathers episodes for a pack.

    Args:
        observations, actions: layouts of the spaces.
        infos: True: infos are kept.
        most: bytes of an episode's arrays up to which it is a small one.

    Attributes:
        nbytes: bytes of the episodes that are gathered.
    """

    def __init__(self, observations: Layout, actions: Layout, infos: bool, most: int) -> None:
        self._layouts, self._infos, self._most = (observations, actions), infos, most
        self.nbytes = 0
        self._episodes: list[Episode] = []
        self._notes: list[Note] = []

    def __len__(self) -> int:
        return len(self._notes)

    def holds(self, steps: int) -> bool:
        """Return True if an episode of so many steps is a small one."""
        return self._size(steps) <= self._most

    def _size(self, steps: int) -> int:
        seen, done = self._layouts
        return (steps + 1) * seen.row_nbytes + steps * (done.row_nbytes + 8 + 2)

    def add(self, episode: Episode) -> bool:
        """Add an episode, whose arrays are a copy. False: it cannot be pickled; sending it alone raises the reason."""
        rest, loose = None, list[Any]()
        for layout, value in zip(self._layouts, (episode.observations, episode.actions), strict=True):
            if layout.loose:
                leaves = layout.flatten(value)
                loose += [leaves[index] for index in layout.loose]
        if loose or episode.policy_infos or any(episode.infos):
            try:
                rest = pickling.quickly((loose, episode.infos, episode.policy_infos), lambda: None)
            except Exception:  # noqa: BLE001 - pickling runs foreign code
                return False
        self._episodes.append(episode)
        self._notes.append((episode.index, episode.seed, len(episode), rest))
        self.nbytes += self._size(len(episode)) + len(rest or b"")
        return True

    def pack(self) -> Pack:
        """Return the episodes that were gathered, at least one, and forget them."""
        observations, actions = self._layouts
        found, notes = self._episodes, self._notes
        self._episodes, self._notes, self.nbytes = [], [], 0
        return Pack(
            notes,
            _joined(observations, [each.observations for each in found]),
            _joined(actions, [each.actions for each in found]),
            np.concatenate([each.rewards for each in found]),
            np.concatenate([each.terminated for each in found]),
            np.concatenate([each.truncated for each in found]),
            self._infos,
        )


def _joined(layout: Layout, values: list[Any]) -> Tree:
    rows = [layout.flatten(value) for value in values]
    leaves: list[np.ndarray | None] = []
    for leaf, parts in zip(layout.leaves, zip(*rows, strict=True), strict=True):
        if not leaf.fixed:
            leaves.append(None)
            continue
        whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)  # of no other byte order
        leaves.append(np.concatenate(parts, out=whole))
    return Tree(layout.plan, leaves)


__all__ = ["ENOUGH", "SMALL", "Pack", "Packer"]
