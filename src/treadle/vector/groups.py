"""Groups: the policy works on some of the slots while the workers step the others.

A policy that takes as long as the steps leaves the cores idle while it thinks, and is left idle while they step. With
two groups each has something to do all the time. Within a group everything is as for all slots: lockstep, the same
episodes for the same seeds, arrays that are the caller's to keep, one row a slot in slot order.

What can be had: let a policy take p for a group, and all cores together e for stepping one. Without groups a group's
share of a batch takes p + e (the policy's time for twice as many rows being twice as long), with them max(p, e); where
the policy computes on one of the same W cores, max(p, e + p / W).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from treadle.errors import ClosedPool, UsageError, WorkerError
from treadle.pool.batch import Batch
from treadle.pool.messages import Op
from treadle.pool.parts import Part, parts_of
from treadle.vector.core import Core
from treadle.vector.infos import Five
from treadle.vector.orders import Options, Seeds, orders_of_all
from treadle.vector.turns import one_at_a_time


class GroupSteps:
    """A part of a vector's slots, spoken to as the vector itself would be."""

    def __init__(self, core: Core, part: Part) -> None:
        self.core, self.part, self._mender = core, part, core.mender(part)

    def post(self, actions: Any) -> None:
        """Begin a step. Raises what `VectorEnv.step` raises about actions and slots."""
        self._mender.given(self.part.post_step, actions)

    def current(self) -> Batch:
        """What has come of it; see `Part.current`."""
        joint = self.part._joint
        stepped = joint is not None and joint.op is Op.STEP
        try:
            batch = self.part.current()
        except WorkerError as error:
            self.core.form.keep_partial(error, self.five)
            raise
        if stepped:
            self.core.counts.steps[self.part.rows] += 1
        return batch

    def five(self, batch: Batch) -> Five:
        """The five parts of a step, of the group's rows."""
        observations, rewards, terminated, truncated, infos = self.core.form.five(batch)
        return observations, rewards, terminated, truncated, _rows(infos, self.part.rows)


def _rows(infos: Any, rows: slice) -> Any:
    """Of infos of all slots, in any of the three forms, those of some."""
    if isinstance(infos, dict):
        return {key: _rows(column, rows) for key, column in infos.items()}
    return infos[rows]


class Group:
    """Some of a vector's slots, in a loop over `VectorEnv.groups`. Arrays have a row for each of them, in slot order.

    Attributes:
        slots: which, as an index of arrays that have one entry for each slot of the vector.
        num_envs: how many, k.
        t: steps that it has taken in this loop; 0: none, and what follows is what there is to be seen before the first.
        observations: tree of [k, ...].
        rewards: float64[k].
        terminated, truncated: bool[k].
        infos: as the vector's, columns of k values.
        valid: bool[k]: False on rows that are no transition.
    """

    observations: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: Any
    valid: np.ndarray

    def __init__(self, loop: GroupLoop, steps: GroupSteps) -> None:
        self._loop, self._steps, self._turns = loop, steps, loop.core.turns
        self.slots, self.num_envs, self.t = steps.part.rows, len(steps.part.slots), -1

    def __repr__(self) -> str:
        return f"<Group: slots {list(self._steps.part.slots)}, {self.t:,} steps>"

    @one_at_a_time
    def step(self, actions: Any) -> None:
        """Begin a step with k actions. It is waited for when the group's turn has come again.

        Raises BadAction, with nothing sent; ClosedVector; UsageError for a group that is under way or has taken all of
        its steps, and as `VectorEnv.step`.
        """
        self._check("step()")
        if self.t == self._loop.steps:
            raise UsageError(f"the group has taken the {self.t} steps of this loop: the next loop goes on from here")
        try:
            self._steps.post(actions)
        except ClosedPool as error:
            raise self._turns.closed() from error

    @one_at_a_time
    def reset(self, *, seed: Seeds = None, options: Options | None = None) -> tuple[Any, Any]:
        """Reset the group's slots, or those of options["reset_mask"] (bool[k]): needed in DISABLED mode, where an
        episode has ended. Waits for them; the other groups are stepped meanwhile.

        Args:
            seed: slot i of the vector gets seed + i; or one for each of the k slots.
            options: as of `VectorEnv.reset`, for k slots.

        Returns:
            observations and infos, of k rows; `observations` are these from now on.
        """
        self._check("reset()")
        part, core = self._steps.part, self._loop.core
        seeds = [int(seed) + slot for slot in part.slots] if isinstance(seed, int | np.integer) else seed
        gone = {row for row, slot in enumerate(part.slots) if slot in core.lockstep.gone}
        orders = orders_of_all(self.num_envs, seeds, options, gone)
        chosen = list(part.slots) if orders.slots is None else [part.slots[row] for row in orders.slots]
        core.counts.note_resets(chosen)
        try:
            batch = part.reset(orders.seeds, orders.options, chosen)
        except WorkerError as error:
            core.form.keep_partial(error, self._steps.five)
            raise
        self.observations, _, _, _, infos = self._steps.five(batch)
        return self.observations, infos

    @one_at_a_time
    def _arrive(self) -> None:
        batch = self._steps.current()
        self.observations, self.rewards, self.terminated, self.truncated, self.infos = self._steps.five(batch)
        self.valid = self._steps.part.valid
        self.t += 1

    def _check(self, what: str) -> None:
        self._turns.check_open()
        self._loop.check()
        if self._steps.part.under_way:
            raise UsageError(f"{what} of a group that is under way: it comes again in the loop when it has arrived")


class GroupLoop(Iterator[Group]):
    """See `VectorEnv.groups`."""

    def __init__(self, core: Core, count: int, steps: int | None) -> None:
        self.core, self.steps, self._parts = core, steps, parts_of(core.lockstep, count)
        self._waiting = deque(Group(self, GroupSteps(core, part)) for part in self._parts.parts)
        self._out: Group | None = None  # the caller has it
        core.turns.loop = self

    def check(self) -> None:
        """Raises UsageError when something else has been asked of the vector since it began."""
        if self._parts.over or self.core.turns.loop is not self:
            raise UsageError(
                "this loop over groups has ended, as something else was asked of the vector meanwhile: begin another "
                "one, it goes on from where the slots are"
            )

    def __next__(self) -> Group:
        group, self._out = self._out, None
        if group is not None and group._steps.part.under_way:
            self._waiting.append(group)
        if not self._waiting:
            raise StopIteration
        self.core.turns.check_open()
        self.check()
        group = self._waiting.popleft()
        try:
            group._arrive()
        except BaseException:
            self._waiting.appendleft(group)
            raise
        self._out = group
        return group


def check_count(groups: Any, n: int) -> int:
    """How many groups n slots are to be stepped in. Raises UsageError unless it is a whole number from 1 to n."""
    if isinstance(groups, bool) or not isinstance(groups, int | np.integer) or not 1 <= groups <= n:
        raise UsageError(f"groups must be a whole number from 1 to the number of slots ({n}), got {groups!r}")
    return int(groups)
