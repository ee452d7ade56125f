"""Scatter: the items of a batch go to any slot, because their states travel with them.

Items are dealt in chunks. As long as chunks are left, every slot has one at work and one waiting; whoever is done gets
the next, so a slow item (or a busy core) delays its own chunk only. A chunk should take some milliseconds: smaller
ones cost more in messages than they save in waiting, so how many there are follows from what items took before.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from treadle.errors import WorkerDied, WorkerTimeout
from treadle.plan.exchange import Exchange
from treadle.plan.plan_slot import Ask
from treadle.plan.promise import Promise
from treadle.plan.work import Done, Work
from treadle.pool import failure
from treadle.pool.failure import Policy
from treadle.pool.life import State

Lane = tuple[Exchange, int]

CHUNK_SECONDS = 0.010
LEAST_SECONDS = 0.0004  # a chunk that is shorter costs more, in caller and worker, than it saves
MOST = 8  # chunks a slot


def even_chunks(n: int, slots: int) -> list[tuple[int, int]]:
    """At most one chunk a slot, all as long as the first but for the last: how items that go on are dealt."""
    size = -(-n // slots)
    return [(start, min(n, start + size)) for start in range(0, n, size)]


def balanced_chunks(n: int, slots: int, seconds: float | None) -> list[tuple[int, int]]:
    """Chunks for items that may go anywhere. `seconds`: what one takes; None: not known.

    Without knowledge there are two a slot, and with it as many as take CHUNK_SECONDS each, from one to MOST a slot.
    What takes less than LEAST_SECONDS for each slot is left to a few of them.
    """
    if seconds is None:
        count = 2 * slots
    else:
        each = min(MOST, max(1, int(n * seconds / slots / CHUNK_SECONDS)))
        count = min(slots * each, max(1, int(n * seconds / LEAST_SECONDS)))
    count = min(n, count)
    edges = [n * i // count for i in range(count + 1)]
    return list(itertools.pairwise(edges))


def scatter(
    lanes: Sequence[Lane],
    works: Sequence[Work],
    *,
    anywhere: bool,
    one_by_one: bool = False,
) -> tuple[list[Done], list[Lane]]:
    """Have the chunks done; returns what came of each, in order, and who did it.

    Args:
        lanes: the slots.
        works: the chunks.
        anywhere: may a chunk go to any slot? Else chunk i goes to slot i. A chunk whose worker died is then given to
            another, as long as the pool starts new workers (on_failure="restart") or does without ("drop").
        one_by_one: wait for each chunk before the next is sent.

    Raises WorkerError when a worker fails; all other answers have come by then.
    """
    return _Scattered(lanes, works, anywhere, one_by_one).run()


class _Scattered:
    """One batch on its way."""

    def __init__(self, lanes: Sequence[Lane], works: Sequence[Work], anywhere: bool, one_by_one: bool) -> None:
        self._lanes, self._works, self._anywhere, self._one_by_one = lanes, works, anywhere, one_by_one
        self._todo = deque(range(len(works)))
        self._results: list[Done | None] = [None] * len(works)
        self._by: list[Lane] = [lanes[0]] * len(works)
        self._load = dict.fromkeys(lanes, 0)
        self._error: BaseException | None = None
        self.out: dict[int, tuple[Promise, Lane]] = {}  # chunk -> its promise, and who has it

    def run(self) -> tuple[list[Done], list[Lane]]:
        while self._todo or self.out:
            self._send()
            if self.out:
                for index in _settled(self.out):
                    self._take(index)
            elif self._error is not None:
                break
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # as in `raise_failed`
        return [done for done in self._results if done is not None], self._by

    def _send(self) -> None:
        if self._error is not None:
            return
        able = {id(lane[0]): lane[0].slots() for lane in self._lanes} if self._anywhere and self._todo else {}
        alive = [lane for lane in self._lanes if lane[1] in able.get(id(lane[0]), ())]
        while self._todo and not (self._one_by_one and self.out):
            lane = _next_lane(self._load, alive, len(able)) if self._anywhere else self._lanes[self._todo[0]]
            if lane is None:
                return
            index = self._todo[0]
            try:
                work = self._works[index]
                self.out[index] = lane[0].ask(lane[1], Ask.WORK, (work,)), lane
            except Exception as error:  # noqa: BLE001 - raised again once all answers have come
                if self._anywhere and lane[0].member(lane[1]).state is State.GONE:  # dropped while it was waited for
                    alive = [other for other in alive if other != lane]
                    if alive:
                        continue
                self._error = error
                return
            self._todo.popleft()
            self._load[lane] += 1

    def _take(self, index: int) -> None:
        promise, lane = self.out.pop(index)
        self._load[lane] -= 1
        error = promise.exception()
        if error is None:
            self._results[index], self._by[index] = promise.result(), lane
            return
        if self._anywhere and _can_go_on(error, lane):
            work = self._works[index]
            work.tray = None if work.tray is None else work.tray.without_room()
            self._todo.appendleft(index)
        elif self._error is None:
            self._error = error


def _next_lane(load: dict[Lane, int], alive: Sequence[Lane], pools: int) -> Lane | None:
    """The one with least to do; None when all have enough, or there is none."""
    most = 2 if pools == 1 else len(load)  # pulling needs one pool to listen to
    lane = min(alive, key=load.__getitem__, default=None)
    return lane if lane is not None and load[lane] < most else None


def _settled(out: dict[int, tuple[Promise, Lane]]) -> list[int]:
    """The chunks whose answers have come, at least one."""
    while True:
        exchanges = {id(lane[0]): lane[0] for _, lane in out.values()}
        found = [index for index, (promise, _) in out.items() if promise._done]
        if found:
            return found
        if len(exchanges) == 1:
            next(iter(exchanges.values())).pump(None)
        else:  # processes of their own: each answers to its own pool, so wait for one, and see to the others after it
            next(iter(out.values()))[0].exception()


def _can_go_on(error: BaseException, lane: Lane) -> bool:
    """Was it the worker that failed, and is there, or will there be, another one?"""
    pool = lane[0].pool
    return isinstance(error, WorkerDied | WorkerTimeout) and pool.policy is not Policy.RAISE and pool.broken is None


def raise_failed(dones: Sequence[Done], by: Sequence[Lane], n: int) -> None:
    """Raise the error of the first item that failed, if one did. It names the item, and has it in `item`."""
    failed = [(done.failed, lane) for done, lane in zip(dones, by, strict=True) if done.failed is not None]
    if not failed:
        return
    (item, raised), (exchange, slot) = min(failed, key=lambda each: each[0][0])
    member = exchange.member(slot)
    error = failure.task_error(raised, slot, member.shown, member.worker.pid)
    error.item = item  # type: ignore[attr-defined]  # TreadleErrors take fields
    error.where = replace(error.where, item=item)
    text = str(error).replace(" (the worker lives; reset the slot to carry on)", " (the worker lives)")
    error.args = (f"item {item} of {n}: {text}",)
    try:
        raise error
    finally:
        del error  # its traceback knows this frame: together they would hold the batch, handles and all


def columns(dones: Sequence[Done], with_states: bool, make: Callable[[], list[Any]] | None = None) -> tuple[Any, ...]:
    """A batch's result, one list a part, in item order. `make`: the states, where they are handles."""
    observations: list[Any] = []
    for done in dones:
        observations.extend(done.observations)
    parts: list[list[Any]] = [
        observations,
        [reward for done in dones for reward in done.rewards],
        [terminal for done in dones for terminal in done.terminals],
        [truncated for done in dones for truncated in done.truncateds],
        [info for done in dones for info in done.infos],
    ]
    if with_states:
        parts.insert(0, make() if make is not None else [state for done in dones for state in done.states or ()])
    return tuple(parts)


__all__ = ["Lane", "balanced_chunks", "columns", "even_chunks", "raise_failed", "scatter"]
