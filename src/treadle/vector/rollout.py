"""Rollouts: observations, actions and rewards of the next T steps, as arrays [T, n, ...] without stacking.

Workers write their rows directly into the rollout's memory; the caller's part of a step is to ask the policy. For
images this avoids a copy of each batch, which costs more than the batch's whole way through shared memory.

To the pool a rollout is a ring like that of the batches (`treadle.memory.ring`): a step is *aimed* at one of its
blocks. The arrays are lent, like a batch: a ring is written again only when no array of it is referenced. That holds
for arrays over all its steps, and for those of a single step that a policy has kept. So two rings take turns in a loop
that drops each rollout before the next but one. A caller that keeps ten rollouts has ten rings. A ring that has become
too small is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from treadle import trees
from treadle.memory.ring import Ring, RolloutArrays
from treadle.program.torch_policy import library
from treadle.spaces import Mailed
from treadle.vector.core import Core
from treadle.vector.env_slot import EnvOp
from treadle.vector.infos import Five
from treadle.vector.next_obs import finals_of

Act = Callable[[Any], Any]
KEPT = ("infos", "terminal_observations")  # no trees of arrays


@dataclass(frozen=True, repr=False)
class Rollout:
    """T steps of n slots, time first. The caller may keep the arrays; the memory is used again once they are released.

    Attributes:
        observations: tree of [T, n, ...]: the policy's observations at step t. A leaf without a fixed shape is a list
            of T tuples of n values.
        actions: tree of [T, n, ...]: the actions as the environments got them, in the action space's dtypes. A dtype
            that cannot hold the policy's number is wider (float64 for a float32 Box). If a part of an action has no
            fixed shape, this is a list of the policy's T batches.
        rewards: float64[T, n].
        terminated, truncated: bool[T, n].
        valid: bool[T, n]: False on rows that are not transitions, such as resets in NEXT_STEP mode.
        episode_ids: int64[T, n]: number of the slot's episode that the row belongs to, from 0; it goes on from one
            rollout to the next. A row that is a reset belongs to the episode that it begins.
        infos: T entries, each as `step` returns it; empty without infos.
        bootstrap: tree of [n, ...]: the observation after the last step: `following[-1]`. If that step has ended an
            episode, bootstrap only from `next_obs[-1]`, or not at all.
        following: tree of [T, n, ...]: the observations of the next step: `observations` shifted by one step, in the
            same memory.
        terminal_observations: (t, slot) -> the last observation of the episode that ended there. It has only episodes
            after which the row of the next step shows another observation (SAME_STEP and DISABLED mode). `next_obs`
            has the last observations of all episodes.
    """

    observations: Any
    actions: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    episode_ids: np.ndarray
    infos: list[Any]
    bootstrap: Any
    following: Any
    terminal_observations: dict[tuple[int, int], Any]

    def __repr__(self) -> str:
        steps, slots = self.rewards.shape
        return f"<Rollout: {steps:,} steps of {slots:,} slots, {int(self.valid.sum()):,} transitions>"

    @cached_property
    def next_obs(self) -> Any:
        """Tree of [T, n, ...]: the observation after each action, in every autoreset mode.

        Without `terminal_observations` this is `following` itself. Otherwise it is a copy with them put in,
        made at the first use.
        """
        if not self.terminal_observations:
            return self.following
        places, ends = zip(*self.terminal_observations.items(), strict=True)
        return trees.map(lambda leaf, *rows: _with_ends(leaf, places, rows), self.following, *ends)

    def torch(self) -> Any:
        """Return the rollout with a torch tensor in the place of every array, over the same memory.

        The tensors keep the memory alive. Leaves without a fixed shape and infos stay as they are. Raises
        MissingExtra without torch.
        """
        torch = library("a rollout's tensors need")  # a Rollout's fields say arrays, and hold tensors here

        def tensors(tree: Any, kinds: Any = np.ndarray) -> Any:
            return trees.map(lambda leaf: torch.as_tensor(leaf) if isinstance(leaf, kinds) else leaf, tree)

        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in KEPT}
        ends = {at: tensors(end, np.ndarray | np.generic) for at, end in self.terminal_observations.items()}
        return replace(self, **{name: tensors(each) for name, each in found.items()}, terminal_observations=ends)


def _with_ends(leaf: Any, places: Iterable[tuple[int, int]], ends: Iterable[Any]) -> Any:
    if not isinstance(leaf, list):  # an array or a tensor
        out: Any = leaf.copy() if isinstance(leaf, np.ndarray) else leaf.clone()
        for at, end in zip(places, ends):
            out[at] = end
        return out
    rows = [list(row) for row in leaf]
    for (t, slot), end in zip(places, ends):
        rows[t][slot] = end
    return [tuple(row) for row in rows]


class RolloutMaker:
    """Makes a vector's rollouts.

    Args:
        core: the vector's.
        step, reset, sample: the vector's own, and of its action space.
    """

    def __init__(self, core: Core, step: Callable[[Any], Five], reset: Callable[..., Any], sample: Act) -> None:
        self.core, self.step, self.reset, self._sample = core, step, reset, sample
        self.memory = core.lockstep.memory

    def make(self, policy: Act | None, steps: int) -> Rollout:
        """See `VectorEnv.rollout`."""
        filling = Filling(self, *self._memory_for(steps))
        try:
            filling.fill(policy or self._sample, steps)
        finally:
            self.aim(None)
        return filling.rollout()

    def aim(self, block: int | None) -> None:
        """Let the next step go to a block of a rollout; None: to any of the standing ones again."""
        self.memory.standing.aimed = block

    def _memory_for(self, steps: int) -> tuple[int, RolloutArrays, Any]:
        """Return free memory for `steps` steps, with the present observations in its row 0.

        Returns the block of its first step, its arrays, and that row as a tree. Raises as `Lockstep.latest`,
        ArenaError, and the error of a dead or late worker.
        """
        rings, standing, now = self.memory.rings, self.memory.standing, self.core.lockstep.latest()
        fitting = [each for each in rings.all if each is not standing and each.steps >= steps]
        ring = next((each for each in fitting if each.free), None) or self._opened(steps, now)
        rings.announce(ring)
        standing.target = ring
        arrays = ring.whole(steps)
        before = rings.of(now).peek(now)
        seen = [each for each in arrays.observations if each is not None]
        for row, source in zip(seen, before):
            row[0] = source
        return ring.first, arrays, self.core.lockstep.tree([*(each[0] for each in seen), *before[-3:]])

    def _opened(self, steps: int, now: int) -> Ring:
        """A new ring; those that are too small from now on are given back."""
        rings, standing = self.memory.rings, self.memory.standing
        ring = rings.open(steps)
        for each in rings.all:
            if each is not standing and each.steps < steps and now not in each and each.free:
                rings.drop(each)
        return ring


class Filling:
    """One rollout in the making; its arguments are what `RolloutMaker._memory_for` returns."""

    def __init__(self, maker: RolloutMaker, first: int, buffer: RolloutArrays, seen: Any) -> None:
        self._maker, self._core, self._first, self._buffer = maker, maker.core, first, buffer
        self._lockstep = maker.core.lockstep
        self._infos: list[Any] = []
        self._actions: list[np.ndarray | None] = list(buffer.actions)
        self._loose_actions: list[Any] = []  # as given, where some of them have no fixed shape
        self._terminal: dict[tuple[int, int], Any] = {}
        self._loose = bool(self._lockstep.observations.loose)
        self._loose_values: list[list[Any]] = []  # all leaves of what was seen at each step
        self._held = self._core.mode is AutoresetMode.DISABLED
        self._seen = seen
        if self._held and (over := np.array(self._lockstep.call(EnvOp.OVER))).any():
            self._seen = self._reset(over, 0, seen)
        self._first_ids = self._lockstep.episodes - 1

    def fill(self, act: Act, steps: int) -> None:
        """Take the steps."""
        buffer, lockstep, step, aim = self._buffer, self._lockstep, self._maker.step, self._maker.aim
        last = lockstep.memory.arrays(lockstep.memory.fields.actions)  # as they were given to the environments
        loose_actions = bool(lockstep.actions.loose)
        same_step = self._core.mode is AutoresetMode.SAME_STEP
        by_the_books = lockstep.recovery is not None
        seen, first = self._noted(self._seen), self._first
        for t in range(steps):
            actions = act(seen)
            aim(first + t)
            lockstep.mailed = None
            seen, _, terminated, truncated, infos = step(actions)
            self._keep_actions(t, last, lockstep.mailed or {})
            if loose_actions:
                self._loose_actions.append(actions)
            self._infos.append(infos)
            if same_step and infos:
                for slot, observation in finals_of(infos).items():
                    self._terminal[t, slot] = observation
            if by_the_books:  # a slot whose worker died has no transition, whatever its row says
                buffer.valid[t] = self._lockstep.valid
            if self._held and t + 1 < steps and (over := terminated | truncated).any():
                for slot in np.flatnonzero(over).tolist():
                    self._terminal[t, slot] = self._row_of(seen, slot)
                seen = self._reset(over, t + 1, seen)
            if self._loose:
                seen = self._noted(seen)

    def rollout(self) -> Rollout:
        """Return the rollout."""
        buffer, layout = self._buffer, self._lockstep.observations
        loose = self._loose_values
        whole = [[row[i] for row in loose] if each is None else each for i, each in enumerate(buffer.observations)]
        actions = self._loose_actions or self._lockstep.actions.unflatten(self._actions)
        return Rollout(
            layout.unflatten([leaf[:-1] for leaf in whole]),
            actions,
            buffer.rewards,
            buffer.terminated,
            buffer.truncated,
            buffer.valid,
            self._episode_ids(),
            self._infos,
            layout.unflatten([leaf[-1] for leaf in whole]),
            layout.unflatten([leaf[1:] for leaf in whole]),
            self._terminal,
        )

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _keep_actions(self, t: int, last: list[np.ndarray | None], mailed: Mailed) -> None:
        """Keep the actions of step t, from the rows of `last` or from messages. Arrays of floats that cannot hold an
        action of another dtype are widened."""
        for i, given in mailed.items():
            kept = self._actions[i]
            if kept is not None and kept.dtype.kind == "f":
                self._actions[i] = kept.astype(np.result_type(kept.dtype, np.asarray(given).dtype), copy=False)
        for i, kept in enumerate(self._actions):
            if kept is not None:
                kept[t] = mailed[i] if i in mailed else last[i]

    def _noted(self, seen: Any) -> Any:
        """Keep the leaves without a fixed shape, which have no place in the buffer; they are tuples of n values."""
        if not self._loose:
            return seen
        layout = self._lockstep.observations
        values = layout.flatten(seen)
        for i in layout.loose:
            values[i] = tuple(values[i])
        self._loose_values.append(values)
        return layout.unflatten(values)

    def _row_of(self, batch: Any, slot: int) -> Any:
        layout = self._lockstep.observations
        values = layout.flatten(batch)
        return layout.unflatten(
            [value[slot].copy() if isinstance(value, np.ndarray) else value[slot] for value in values]
        )

    def _reset(self, over: np.ndarray, t: int, seen: Any) -> Any:
        """Reset slots whose episode is over; what they show belongs to row t. Returns what is seen now."""
        self._maker.aim(None)
        observations, _ = self._maker.reset(options={"reset_mask": over})
        layout = self._lockstep.observations
        for array, fresh in zip(self._buffer.observations, layout.flatten(observations)):
            if array is not None:  # `seen` is over the same memory
                array[t][over] = fresh[over]
        return observations if self._loose else seen

    def _episode_ids(self) -> np.ndarray:
        """See `Rollout`."""
        buffer = self._buffer
        ends = buffer.terminated | buffer.truncated
        if self._core.mode is AutoresetMode.NEXT_STEP:
            begun = ~buffer.valid & ~ends
        else:
            begun = np.zeros_like(ends)
            begun[1:] = ends[:-1]
        return self._first_ids + np.cumsum(begun, axis=0, dtype=np.int64)
