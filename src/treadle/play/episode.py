"""One episode, whole: what a rollout makes, what `collect` yields and what datasets store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle import trees

SUCCESS_KEYS = ("is_success", "success")  # of an episode's last info


@dataclass(frozen=True, eq=False, repr=False)
class Episode:
    """A finished episode of T steps.

    Trees (nested dicts and tuples, as the spaces nest) have arrays as leaves, time first. A leaf without a fixed shape
    (text, graphs, sequences) is a plain list with one value per row.

    Attributes:
        index: of the episode in the run, from 0. The run's seed and the index alone decide the contents.
        seed: of the environment's reset.
        observations: tree of [T+1, ...]; row 0 is the reset's, row T the terminal one.
        actions: tree of [T, ...].
        rewards: float64[T].
        terminated: bool[T]; only the last can be True.
        truncated: bool[T]; only the last can be True.
        infos: T+1 dicts, the reset's first; an empty tuple when infos are not kept.
        policy_infos: T dicts, or an empty tuple without policy infos.
        final_info: the info of the last step, also when infos are not kept; {} in other processes than the one that
            made the episode.
        first_info: the info of the reset, likewise.
        seconds: time from the end of the reset to the end of the episode; NaN in other processes.
    """

    index: int
    seed: int
    observations: Any
    actions: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: tuple[dict[str, Any], ...] = ()
    policy_infos: tuple[dict[str, Any], ...] = ()
    final_info: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    first_info: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    seconds: float = field(default=math.nan, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "final_info": {}, "first_info": {}, "seconds": math.nan}

    def __len__(self) -> int:
        return len(self.rewards)

    def __repr__(self) -> str:
        return f"<Episode {self.index}: {len(self):,} steps, return {self.total_reward:,.2f}, {self._end}>"

    @property
    def _end(self) -> str:
        how = [name for name in ("terminated", "truncated") if getattr(self, name).any()]
        return " and ".join(how) or "unfinished"

    @property
    def total_reward(self) -> float:
        """The undiscounted return."""
        return float(self.rewards.sum())

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays (lists of text and infos are not counted)."""
        leaves = [*trees.leaves(self.observations), *trees.leaves(self.actions)]
        arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
        return sum(a.nbytes for a in (*arrays, self.rewards, self.terminated, self.truncated))


def success_of(info: Mapping[str, Any], keys: Iterable[str] = SUCCESS_KEYS) -> bool | None:
    """Return True if an episode was a success, by the first of `keys` that its last info has.

    None: the info has none of the keys, or its value is not one number or bool. Call it in the process that made the
    episode.
    """
    said = next((info[key] for key in keys if key in info), None)
    try:
        value = np.asarray(said)
    except Exception:  # noqa: BLE001 - an object of somebody's, such as an array on another device
        return None
    return bool(value) if value.ndim == 0 and value.dtype.kind in "biuf" else None
