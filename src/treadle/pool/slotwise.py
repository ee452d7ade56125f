"""Lockstep for faces whose slots differ: actions of any kind, calls of each slot's own, programs that need a history.

A batch of actions is usually one array. Here it is a list with anything in it, so the face brings the function that
writes it; and a program that takes a dead one's place can be told how far that one had come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.pool.joint import orders_of
from treadle.pool.lockstep import Lockstep
from treadle.pool.messages import Op
from treadle.spaces import BatchWriter

if TYPE_CHECKING:
    from treadle.pool.pool import Pool

Order = tuple[str, tuple[Any, ...], dict[str, Any]]  # name, args, kwargs of a program's operation


class SlotwiseLockstep(Lockstep):
    """See the module, and `Lockstep`.

    Args:
        pool: whose slots.
        writer: makes the function that takes a batch of actions, from the arena's arrays of action leaves (None for a
            leaf without a fixed shape): it writes what it can there, and returns None, or n values by the index of
            each leaf that goes by message.
        fresh_options: what a program in a dead one's place is given as options when its first episode begins, from
            (slot, the options that a reset asked for, or None). Not called where no death is followed by a restart.
    """

    def __init__(
        self,
        pool: Pool,
        writer: Callable[[Sequence[np.ndarray | None]], BatchWriter],
        fresh_options: Callable[[int, Any], Any],
    ) -> None:
        self._make_writer = writer
        super().__init__(pool)
        if self.recovery is not None:
            self.recovery.fresh_options = fresh_options

    def _action_writer(self, arrays: list[np.ndarray | None]) -> BatchWriter:
        return self._make_writer(arrays)

    @property
    def stale(self) -> set[int]:
        """Slots that moved on in a request that failed, without anybody seeing it: only a reset brings them back."""
        return self._stale

    def call_each(self, orders: dict[int, Order]) -> list[Any]:
        """Run an operation of its own in each of these slots; one result a slot, in the order given.

        Raises what `call` raises; `partial` has the others' results by slot.
        """
        self._settle()
        joint = self._new_joint(Op.CALL, -1, orders)
        sent = self._reachable(list(orders))
        asked = {slot: order for slot, order in orders.items() if slot in sent}
        self._launch(joint, orders_of(self.pool.in_slot_order(), asked))
        return self._land(joint)
