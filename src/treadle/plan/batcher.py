"""The batcher: cuts a checked batch into chunks, has them done, and puts the answers together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.errors import FreedHandle, UsageError
from treadle.plan.orders import HANDLE, Orders
from treadle.plan.packed import Packed, packed
from treadle.plan.plan_slot import Ask
from treadle.plan.rollouts import RolloutBatch
from treadle.plan.scatter import Lane, balanced_chunks, columns, even_chunks, raise_failed, scatter
from treadle.plan.store import STORE_BYTES, StateHandle, Store
from treadle.plan.trays import ALIGN, SPARE, Block, Tray, Trays, Use, lay
from treadle.plan.work import Done, Work, stacked
from treadle.pool.interrupts import Later

OBSERVATIONS = (None, "last", "all")


@dataclass(eq=False)
class _Lent:
    """Rows of the store for the states that a batch leads to, until they have handles. `use`: None: not sent yet."""

    rows: list[int]
    use: Use | None = None


class Batcher:
    """Batches over some slots.

    Args:
        lanes: the slots.
        one_by_one: have one slot work at a time.
        store_bytes, state_bytes: see `Store`.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        *,
        one_by_one: bool = False,
        store_bytes: int = STORE_BYTES,
        state_bytes: int | None = None,
    ) -> None:
        self.lanes, self._one_by_one = list(lanes), one_by_one
        self._store_bytes, self._state_bytes = store_bytes, state_bytes
        self.store: Store | None = None
        self._lent: list[_Lent] = []
        self._seconds: dict[str, float] = {}  # what an item took lately
        self._room: dict[Any, float] = {}  # bytes of a tray that an item took lately
        self._trays: Trays | None = None
        first = self.lanes[0][0]
        if not first.in_process and all(lane[0] is first for lane in self.lanes):
            arena = first.pool.grounding.arena
            self._trays = None if arena is None else Trays(arena)

    # -- batches -----------------------------------------------------------------------------------------------------

    def steps(self, orders: Orders) -> tuple[Any, ...]:
        """A batch of steps; see `VectorizedEnv.step_batch`."""
        dones, targets = self._run(orders, None)
        if orders.return_state != HANDLE:
            return columns(dones, bool(orders.return_state))
        return columns(dones, True, lambda: self._handles(targets))

    def rollouts(self, orders: Orders, observations: str | None) -> RolloutBatch:
        """A batch of rollouts; `orders.actions` has a sequence of actions for each item."""
        if observations not in OBSERVATIONS:
            raise UsageError(f"observations must be None, 'last' or 'all', got {observations!r}")
        if orders.states is None:
            raise UsageError("rollouts begin in states: give one for each item")
        dones, targets = self._run(orders, observations or "none")
        longest = max(done.rewards.shape[1] for done in dones)
        rewards = np.concatenate([np.pad(d.rewards, ((0, 0), (0, longest - d.rewards.shape[1]))) for d in dones])
        seen: Any = None
        if observations is not None:
            seen = [each for done in dones for each in done.observations]
            seen = stacked(seen) if observations == "last" else seen
        states: list[Any] | None = None
        if orders.return_state:
            states = self._handles(targets) if orders.return_state == HANDLE else _joined(dones, "states")
        return RolloutBatch(
            rewards,
            np.array(_joined(dones, "lengths")),
            np.array(_joined(dones, "terminals")),
            np.array(_joined(dones, "truncateds")),
            states,
            seen,
        )

    def put(self, state: Any) -> StateHandle:
        """Put a state into the store. Raises UsageError for None, and StoreFull."""
        if state is None:
            raise UsageError("None is no state: give one that get_state(), reset() or step() returned")
        rows = self._take_rows(store := self._open_store(state), 1)
        store.map.write(rows[0], state)
        (handle,) = self._handles(rows)
        return handle

    def close(self) -> None:
        """The store is gone, and so are the trays; observations that are held keep their memory."""
        self._trays = None
        if self.store is not None:
            self.store.closed = True

    # -- one batch ---------------------------------------------------------------------------------------------------

    def _run(self, orders: Orders, rollout: str | None) -> tuple[list[Done], list[int]]:
        n, lanes = len(orders), self.lanes
        for lane in {id(lane[0]): lane for lane in lanes}.values():
            lane[0].pool.check()
        anywhere = orders.states is not None
        rows = self._rows(orders)
        store, targets = self.store, []
        if orders.return_state == HANDLE:
            store = self._open_store(None if orders.states is None or rows is not None else orders.states[0])
            targets = self._take_rows(store, n)
        what = "steps" if rollout is None else "rollouts"
        slots = len(lanes)
        chunks = balanced_chunks(n, slots, self._seconds.get(what)) if anywhere else even_chunks(n, slots)
        store_map = None if store is None or (rows is None and not targets) else store.map
        works = [_cut(orders, lo, hi, rows, targets, store_map, rollout) for lo, hi in chunks]
        each = (what, orders.return_state is True)
        block = None
        if self._trays is not None and rollout is None:
            block = self._laid(works, self._room.get(each, 0))

        use = Use(lanes[0][0])
        if block is not None:
            block.use = use
        if targets:
            self._lent[-1].use = use
        try:
            dones, by = scatter(lanes, works, anywhere=anywhere, one_by_one=self._one_by_one)
        finally:
            use.sent()
        if block is not None:
            for done in dones:
                block.unpack(done)
        raise_failed(dones, by, n)
        self._room[each] = max(done.room / len(work) for done, work in zip(dones, works, strict=True))
        took = sum(done.seconds for done in dones) / n
        before = self._seconds.get(what, took)
        self._seconds[what] = 0.5 * (before + took)
        return dones, targets

    def _laid(self, works: list[Work], each: float) -> Block | None:
        """Give each chunk a tray in a block, and lay its states there; None when there is no memory for it.

        `each`: bytes for what comes back of an item.
        """
        assert self._trays is not None
        sent = [sum(map(len, w.states.data)) if isinstance(w.states, Packed) else 0 for w in works]
        back = [int(each * len(work) * SPARE) + ALIGN for work in works]
        block = self._trays.take(sum(sent) + sum(back))
        at = 0
        for work, out, home in zip(works, sent, back, strict=True):
            if block is None:
                break
            if out:
                work.states = lay(block.memory, at, work.states.kind, work.states.data)
            work.tray = Tray(block.segment, block.segments, at + out, at + out + home)
            at += out + home
        return block

    def _rows(self, orders: Orders) -> list[int] | None:
        """The rows that the states are, where they are handles. Raises UsageError and FreedHandle, naming the item."""
        states = orders.states or ()
        if StateHandle not in set(map(type, states)):
            return None
        handles = [type(state) is StateHandle for state in states]
        if not all(handles):
            item = handles.index(not handles[0]) * orders.repeat
            raise UsageError(
                f"item {item}: give handles for all items, or states for all (env.put_state makes handles)"
            )
        rows = []
        for index, handle in enumerate(states):
            try:
                rows.append(handle.row_in(self.store))
            except FreedHandle as error:
                raise FreedHandle(f"item {index * orders.repeat}: {error}") from None
        return rows

    @property
    def free_handles(self) -> int | None:
        """How many more states the store takes; None before the first handle."""
        self._reclaim()
        return None if self.store is None else self.store.free

    def _take_rows(self, store: Store, count: int) -> list[int]:
        self._reclaim()
        with Later():
            rows = store.take(count)
            self._lent.append(_Lent(rows))
        return rows

    def _reclaim(self) -> None:
        """Have the rows of batches that failed or were cut short back, once nobody writes to them any more."""
        with Later():
            for lent in [each for each in self._lent if each.use is None or each.use.over]:
                self._lent.remove(lent)
                if self.store is not None:
                    self.store.give_back(lent.rows)

    def _handles(self, targets: list[int]) -> list[Any]:
        assert self.store is not None
        with Later():
            self._lent = [lent for lent in self._lent if lent.rows is not targets]
            return [StateHandle(self.store, row) for row in targets]

    def _open_store(self, first: Any) -> Store:
        if self.store is None:
            exchange, slot = self.lanes[0]
            if any(lane[0] is not exchange for lane in self.lanes):
                raise UsageError("handles need workers of one ParallelEnv: these processes share no memory")
            if first is None and self._state_bytes is None:
                first = exchange.ask(slot, Ask.CALL, ("get_state",))()
            arena = exchange.pool.grounding.arena
            assert arena is not None
            self.store = Store(arena, first, self._store_bytes, self._state_bytes)
        return self.store


def _cut(
    orders: Orders, lo: int, hi: int, rows: list[int] | None, targets: list[int], store: Any, rollout: str | None
) -> Work:
    """Items lo..hi-1 as a chunk."""
    k = orders.repeat
    base, end = lo // k, (hi - 1) // k + 1
    return Work(
        lo,
        orders.actions[lo:hi],
        orders.dts[lo:hi],
        None if orders.states is None or rows is not None else packed(orders.states[base:end]),
        orders.return_state,
        k,
        base,
        None if rows is None else rows[base:end],
        targets[lo:hi] if targets else None,
        store,
        rollout,
    )


def _joined(dones: list[Done], name: str) -> list[Any]:
    return [value for done in dones for value in getattr(done, name)]
