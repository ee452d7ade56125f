"""What a replay is compared with on its way: rewards, ends and check sums that were recorded, or a stored episode."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.errors import UsageError
from treadle.replays.result import Difference
from treadle.repro import UNKNOWN, Repro, fingerprint, spaces_of
from treadle.spaces import Layout, Mismatch


class Checks:
    """Asked after each step; `difference` is the first thing that was not as recorded, `at` the step that made it.
    `place`: which episode and step is compared; steps are counted over all of them.

    Args:
        repro: its arrays "rewards", "ends" (1: terminated, 2: truncated) and "checks" (steps, and the check sums of
            their observations) are compared, and of a stored episode its "observation.0", ...; those that it has.
        space: of observations.
    """

    def __init__(self, repro: Repro, space: Any) -> None:
        arrays, self._layout = repro.arrays, Layout.of(space)
        self._rewards, self._ends = arrays.get("rewards"), arrays.get("ends")
        self._sums = dict(arrays["checks"].T.tolist()) if "checks" in arrays else {}
        stored = {i: arrays.get(f"observation.{i}") for i in range(len(self._layout.leaves))}
        self._stored = {i: rows for i, rows in stored.items() if rows is not None}
        seen = "first observation" if not self._stored and [*self._sums] == [0] else "observations"
        told = {"rewards": self._rewards, "ends": self._ends, seen: self._sums or self._stored or None}
        self.compared = [name for name, value in told.items() if value is not None]
        self.difference: Difference | None = None
        self.at, self.place = 0, (0, 0)

    def _differs(self, step: int, field: str, recorded: Any, now: Any) -> None:
        if self.difference is None:
            self.at = step
            self.difference = Difference(self.place[1], field, recorded, now, self.place[0])

    def step(self, step: int, reward: float, terminated: bool, truncated: bool) -> None:
        """Compare what step `step` said, counted from 1 over all that is played."""
        if self._rewards is None or step > len(self._rewards) or self._rewards[step - 1].tobytes() == UNKNOWN:
            return
        was = float(self._rewards[step - 1])
        if np.float64(was).tobytes() != np.float64(reward).tobytes():
            self._differs(step, "reward", was, reward)
        if self._ends is not None and step <= len(self._ends):
            was_end, end = int(self._ends[step - 1]), bool(terminated) + 2 * bool(truncated)
            if was_end != end:
                self._differs(step, "the end of the episode", _END[was_end], _END[end])

    def observation(self, step: int, observation: Any) -> None:
        """Compare what was seen after step `step`; 0: at the reset."""
        if self.difference is not None or not (step in self._sums or self._stored):
            return
        try:
            leaves = self._layout.flatten(observation)
        except Mismatch as error:
            self._differs(step, f"observation ({error})", None, None)
            return
        pairs = zip(leaves, self._layout.leaves, strict=True)
        rows = [np.asarray(value, leaf.dtype) if leaf.fixed else None for value, leaf in pairs]
        if step in self._sums and fingerprint(rows) != self._sums.pop(step) & 0xFFFFFFFF:  # once, at the first reset
            self._differs(step, "observation", None, None)
        for i, stored in self._stored.items():
            row = rows[i]
            if row is None or step >= len(stored):
                continue
            if row.tobytes() != np.asarray(stored[step], row.dtype).tobytes():
                path = "".join(f"[{each!r}]" for each in self._layout.leaves[i].path)
                self._differs(step, f"observation{path}", *_unlike(stored[step], row))


def check_spaces(repro: Repro, env: Any) -> None:
    """Raise UsageError where the spaces of an environment that was given are not those of the recorded one."""
    now = spaces_of([env.observation_space, env.action_space])
    for what, was, own in zip(("observation", "action"), repro.about["spaces"], now, strict=True):
        if was and own and was != own:
            raise UsageError(f"env (--env) is not what was played: its {what} space is {own}, and was {was}")


_END = {0: "going on", 1: "terminated", 2: "truncated", 3: "terminated and truncated"}


def _unlike(was: Any, now: np.ndarray) -> tuple[Any, Any]:
    """Of two rows what a person can read of them."""
    return (np.asarray(was), now) if now.size <= 8 else (None, None)
