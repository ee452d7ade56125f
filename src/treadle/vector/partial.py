"""Partial batches: send actions to some slots, receive whichever are ready first (EnvPool's protocol).

A slot is *free* (its last result was received), *out* (it has a request), *ready* (its result has arrived) or *stale*
(it raised or was late: only a reset brings it back). `send` takes free slots, `recv` hands out ready ones in the order
in which their workers finished them, so no slot starves: a worker answers in the order it was asked.

Results lie in one block of the arena that is kept for this, a row per slot, and are copied out by `recv`: a slot's row
cannot change before its next `send`. How many slots travel in one request is a compromise: alone, each is ready as
soon as it can be; together, they cost less. Where a step takes long the first is better, else the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from treadle.errors import UsageError, WorkerError
from treadle.pool import failure
from treadle.pool.batch import final_observation
from treadle.pool.calls import Done, InFlight
from treadle.pool.failure import bad_action
from treadle.pool.info_rows import InfoRows, gathered
from treadle.pool.joint import tell
from treadle.pool.line import BUSY_NS
from treadle.pool.lockstep import Lockstep
from treadle.pool.messages import Extras, Op
from treadle.pool.pool import Pool
from treadle.pool.slot_rows import ByMessage, SlotRows
from treadle.pool.worker import Worker
from treadle.spaces import Mismatch
from treadle.vector.infos import FINALS, gymnasium_infos
from treadle.vector.orders import chosen_slots, orders_of_all
from treadle.vector.refusals import NothingPending, WaitTimeout
from treadle.vector.turns import IDLE, one_at_a_time

FREE, OUT, READY, STALE = range(4)
LONG_STEP_NS = 100_000  # steps at least this long travel alone: a request costs about 5 us
OWN = FINALS | {"env_id", "valid"}  # names of columns that `recv` itself makes


class PartialBatches:
    """The protocol over one pool; made at its first use.

    Attributes:
        batch_size: how many slots `recv` waits for unless told otherwise.
        recovery: None: a death is the end.
    """

    recovery = None

    def __init__(self, pool: Pool, lockstep: Lockstep, batch_size: int) -> None:
        memory = lockstep.memory
        self._pool, self._calls, self._lockstep = pool, pool.calls, lockstep
        self.batch_size = batch_size
        self._rows = SlotRows(memory, pool.members)
        block = self._rows.fields
        self._finals = memory.arrays(block.finals)
        self._rewards, self._valid = memory.array(block.rewards), memory.array(block.valid)
        self._ends = memory.array(block.terminated), memory.array(block.truncated)
        self._state = np.full(pool.n, STALE, np.int8)  # nothing may be stepped before a reset
        self._ready: deque[int] = deque()
        self._infos: dict[int, Any] = {}  # as `InfoRows.rows` has them
        self._told: dict[int, Any] = {}
        self._errors: deque[WorkerError] = deque()
        self._steps: dict[int, int] = {}
        self._together = any(each.metadata.get("together") for each in pool.descriptions)  # see `owned.py`

    @property
    def open(self) -> bool:
        """Is anything out, ready, or yet to be raised?"""
        return bool(self._ready or self._errors or self._calls.awaits(self))

    def reset(
        self, seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None], slots: Sequence[int]
    ) -> None:
        """Ask for resets. Raises UsageError when a slot is out or ready, BrokenPool after a worker's death."""
        self._pool.check()
        self._check(slots, "reset", {FREE, STALE})
        self._post(Op.RESET, {slot: (seeds[i], options[i]) for i, slot in enumerate(slots)})

    def send(self, actions: Any, slots: Sequence[int] | None = None) -> None:
        """Ask for steps of free slots (None: all). Raises UsageError or BadAction, and BrokenPool after a worker's
        death; then nothing was sent."""
        self._pool.check()
        n = self._pool.n
        chosen = list(range(n)) if slots is None else chosen_slots(np.asarray(slots).ravel().tolist(), n)
        self._check(chosen, "step", {FREE})
        try:
            mailed = self._rows.write(actions, chosen)
        except Mismatch as error:
            error.row = None if error.row is None else chosen[error.row]
            raise bad_action(error, len(chosen), actions) from None
        self._post(Op.STEP, dict.fromkeys(chosen), mailed)

    def recv(self, least: int | None = None, most: int | None = None, timeout: float | None = None) -> Any:
        """(slots int64[m], observation tree of [m, ...], rewards, terminated, truncated, infos, finals, valid).

        Waits until `least` slots are ready (None: `batch_size`), or all that are out when they are fewer, and hands
        out at most `most` (None: `least`). infos and finals are keyed by row. Raises NothingPending, WaitTimeout (with
        everything kept for the next `recv`), once for each slot that failed its error, and BrokenPool when all that
        was left of a worker's death has been received.
        """
        least = self.batch_size if least is None else least
        most = max(least, 1) if most is None else most
        if least < 1 or most < least:
            raise UsageError(f"recv needs 1 <= min <= max, got min={least}, max={most}")
        if not self.open:
            self._pool.check()
            raise NothingPending("recv() without anything sent: it would wait for ever", "recv")
        deadline = None if timeout is None else monotonic() + timeout
        while not self._errors and len(self._ready) < least and self._calls.awaits(self):
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if not self._calls.poll(left, partial(tell, self)) and deadline is not None and monotonic() >= deadline:
                raise WaitTimeout(
                    f"{len(self._ready)} of {least} slots were ready within {timeout:g} s; nothing is lost, the next "
                    "recv goes on",
                    limit=timeout,
                )
        if self._errors:
            raise self._errors.popleft()
        return self._hand_out([self._ready.popleft() for _ in range(min(most, len(self._ready)))])

    # -- sending -----------------------------------------------------------------------------------------------------

    def _check(self, slots: Sequence[int], what: str, allowed: set[int]) -> None:
        why = {FREE: "", OUT: "in flight", READY: "ready to be received", STALE: "in need of a reset"}
        bad = [(slot, why[int(self._state[slot])]) for slot in slots if int(self._state[slot]) not in allowed]
        if bad:
            told = ", ".join(f"slot {slot} is {reason}" for slot, reason in bad[:5])
            raise UsageError(f"cannot {what}: {told}. Nothing was sent")

    def _post(self, op: Op, orders: dict[int, Any], mailed: ByMessage | None = None) -> None:
        for member, slots in self._rows.by_member(orders):
            alone = not self._together and (member.inline or self._takes_long(member))
            for group in ([slot] for slot in slots) if alone else (slots,):
                if op is Op.STEP:
                    payload = self._rows.step_payload(member, group, mailed or {})
                else:
                    payload = {slot: orders[slot] for slot in group}
                self._calls.submit(member, op, payload, group, self, self._rows.block)
                self._state[group] = OUT

    def _takes_long(self, member: Worker) -> bool:
        """Do this worker's steps take long, as far as it has shown?"""
        steps = self._steps.get(member.index, 0)
        if not steps or member.line is None:
            return False
        return bool(member.line.words[BUSY_NS] / steps >= LONG_STEP_NS)

    # -- receiving ---------------------------------------------------------------------------------------------------

    def answered(self, event: Done) -> None:
        """See `pool.joint.tell`."""
        self._arrived(event.member, event.call.slots, event.reply.extras)

    def fail(self, error: WorkerError, lost: Iterable[InFlight]) -> None:
        """See `pool.joint.tell`. The death of a worker that owes nothing breaks the pool, and is told so."""
        slots = [slot for call in lost for slot in call.slots]
        self._state[slots] = STALE
        if slots:
            self._errors.append(error)

    def _arrived(self, member: Worker, slots: tuple[int, ...], extras: Extras | None) -> None:
        self._steps[member.index] = self._steps.get(member.index, 0) + len(slots)
        raised = extras.raised if extras is not None else {}
        for slot in slots:
            if slot in raised:
                self._state[slot] = STALE
                self._errors.append(failure.task_error(raised[slot], slot, member.shown, member.pid))
            else:
                self._state[slot] = READY
                self._ready.append(slot)
        if extras is not None:
            self._infos.update(extras.infos.rows() if type(extras.infos) is InfoRows else extras.infos)
            self._rows.heard(extras)
            self._told.update(extras.finals)

    def _hand_out(self, slots: list[int]) -> Any:
        index = np.array(slots, np.int64)
        self._state[index] = FREE
        layout = self._lockstep.observations
        terminated, truncated = (ends[index] for ends in self._ends)
        infos = gathered({row: self._infos.pop(slot) for row, slot in enumerate(slots) if slot in self._infos})
        finals = {}
        for row in np.flatnonzero(terminated | truncated).tolist() if self._finals else ():
            info, untold = self._told.pop(slots[row], ({}, None))
            finals[row] = (final_observation(layout, self._finals, slots[row], untold), info)
        return (
            index,
            self._rows.read(slots),
            self._rewards[index],
            terminated,
            truncated,
            infos,
            finals,
            self._valid[index],
        )


class Partly(Enum):
    """A vector's turn while partial batches are open: nothing else may begin."""

    OPEN = "recv"


class PartialFace:
    """The methods of a vector that speak EnvPool's protocol. `send` and `recv` may follow each other in any order, with
    several requests out at once, so that a policy can work on some slots while others are stepped."""

    num_envs: int
    _pool: Pool
    _lockstep: Lockstep
    _turns: Any
    _partial: PartialBatches | None = None

    @one_at_a_time
    def async_reset(self, *, seed: Any = None, options: Any = None) -> None:
        """Ask for a reset of every slot; `recv` hands the first observations out as they come."""
        orders = orders_of_all(self.num_envs, seed, options)
        slots = list(range(self.num_envs)) if orders.slots is None else orders.slots
        self._opened("async_reset").reset(orders.seeds, orders.options, slots)
        self._settle_turn()

    @one_at_a_time
    def send(self, actions: Any, env_id: Any = None) -> None:
        """Ask for a step of the slots `env_id` (int[m], None: all), with m actions.

        Raises BadAction, and UsageError for slots that are in flight, not yet received, or in need of a reset; then
        nothing was sent.
        """
        self._opened("send").send(actions, env_id)
        self._settle_turn()

    @one_at_a_time
    def recv(
        self, *, min: int | None = None, max: int | None = None, timeout: float | None = None
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """The slots that are ready first, in the order in which they became so.

        Args:
            min: how many to wait for (None: `batch_size`); fewer come when fewer are out.
            max: how many to hand out at most (None: `min`).
            timeout: seconds for the whole call; None: for ever.

        Returns:
            observations [m, ...], rewards float64[m], terminated and truncated bool[m], infos: columns of m rows, and
            always "env_id" (int64[m]: which slots) and "valid" (bool[m]: False on rows that are resets).

        Raises:
            NothingPending, WaitTimeout (nothing is lost), and, once for each slot that failed, its error.
        """
        partial = self._opened("recv")
        try:
            index, observations, rewards, terminated, truncated, infos, finals, valid = partial.recv(min, max, timeout)
        finally:
            self._settle_turn()
        columns = gymnasium_infos(len(index), infos, finals, own=OWN)
        columns["env_id"], columns["valid"] = index, valid
        return observations, rewards, terminated, truncated, columns

    @property
    def batch_size(self) -> int:
        """How many slots `recv` waits for unless told otherwise; half of all, at least one, until it is set."""
        return self._opened("batch_size").batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        if not 1 <= size <= self.num_envs:
            raise UsageError(f"batch_size must be in 1..{self.num_envs}, got {size}")
        self._opened("batch_size").batch_size = size

    def _opened(self, name: str) -> PartialBatches:
        """For the method `name`. Raises ClosedVector, AlreadyPending; then what is pending stays so."""
        if self._turns.state is not Partly.OPEN:
            self._turns.check_free(name)
        if self._pool.policy is not failure.RestartPolicy.RAISE:
            raise UsageError("send() and recv() raise on a worker's death: they work with on_failure='raise' only")
        if self._partial is None:
            self._partial = PartialBatches(self._pool, self._lockstep, max(1, self.num_envs // 2))
        return self._partial

    def _settle_turn(self) -> None:
        open_now = self._partial is not None and self._partial.open
        self._turns.state = Partly.OPEN if open_now else IDLE
