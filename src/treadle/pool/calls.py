"""Calls: the pool's one book of requests under way, and the one place that decides what follows a worker's death.

`submit` hands a worker a request under a tag, which means something to whoever submits and nothing here; `poll` tells
what has become of tags. A worker that dies, or is late where it is to be replaced, loses all tags that it had; whether
another is started in its place, after how long, and when it is enough, follows from the pool's policy alone, by the
table in `failure.py`. What a lost tag means (an item again, an index again, an error) its owner knows.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, NamedTuple

from treadle.errors import WorkerError
from treadle.pool import failure
from treadle.pool.dispatch import Dispatch
from treadle.pool.failure import Policy, Verdict
from treadle.pool.life import State
from treadle.pool.member import Answered, Member, PoolEvent, Started
from treadle.pool.messages import Op, Reply


class Done(NamedTuple):
    """An answer to the request of a tag; a stream's tag has several, until `reply.last`."""

    tag: Any
    member: Member
    reply: Reply


class Lost(NamedTuple):
    """A worker has failed, and no answer of these tags' requests will come.

    `verdict`: what becomes of the worker; it is on its way already. None: it lives, and was only late. RAISE is for the
    owner of the tags to carry out: the worker is not replaced, and `error` is the reason.
    """

    tags: list[Any]
    member: Member
    error: WorkerError
    verdict: Policy | None


class Ready(NamedTuple):
    """A worker that was started in the place of another takes requests."""

    member: Member


Event = Done | Lost | Ready


class Calls:
    """Args:
    pool: whose workers are asked.
    blame: asked of every death before it is decided about, with the member and the error: did it die of what it was
        made to do, whoever does it? Then the death says nothing against the worker, nor against those that follow it.
    """

    def __init__(self, pool: Dispatch, blame: Callable[[Member, WorkerError], bool] | None = None) -> None:
        self.pool, self._blame = pool, blame
        self._open: dict[int, tuple[Any, Member]] = {}  # request -> its tag, and whose it is

    def __bool__(self) -> bool:
        """Is anything awaited?"""
        return bool(self._open)

    def submit(self, member: Member, op: Op, payload: Any, slots: Iterable[int], tag: Any, block: int = -1) -> None:
        """Send a request; `block` is where its rows go. Raises ClosedPool, BrokenPool or UsageError; never waits."""
        (id,) = self.pool.send_all(op, [(member, payload, tuple(slots))], block)
        self._open[id] = tag, member

    def poll(self, timeout: float | None, hear: Callable[[Event], None]) -> bool:
        """Tell what has happened, waiting up to `timeout` seconds (None: for ever) for something; was there anything?

        Each event is told as it is taken, so that Ctrl-C comes before or after both. Raises as `submit`.
        """

        def note(event: PoolEvent) -> None:
            for each in self._events(event):
                hear(each)

        return bool(self.pool.poll(timeout, note))

    def stop(self) -> None:
        """Ask all streams under way to end at their next look; what they then have is told as ever."""
        for member in self.pool.members:
            if member.owed:
                member.worker.stop(self.pool.latest_id)

    def clear(self) -> list[Any]:
        """Forget all requests; returns their tags."""
        found = [tag for tag, _ in self._open.values()]
        self._open.clear()
        return found

    def _events(self, event: PoolEvent) -> list[Event]:
        if isinstance(event, Started):
            return [Ready(event.member)]
        if isinstance(event, Answered):
            reply = event.reply
            found = self._open.pop(reply.id, None) if reply.last else self._open.get(reply.id)
            return [] if found is None else [Done(found[0], event.member, reply)]
        member = event.member
        if member.state is State.LATE and self.pool.policy is not Policy.RAISE:
            member.worker.kill(signal.SIGKILL)  # its death is the next thing we see, and decides
        mine = [id for id, (_, whose) in self._open.items() if whose is member]
        tags = [self._open.pop(id)[0] for id in mine]
        if member.state is not State.DEAD:
            return [Lost(tags, member, event.error, None)]
        if self._blame is not None and self._blame(member, event.error):
            member.barren = 0
        return [Lost(tags, member, event.error, carry_out(self.pool, member, verdict_on(self.pool, member)))]


def verdict_on(pool: Dispatch, member: Member) -> Verdict:
    """What is to become of a dead worker: the one place where that is decided."""
    error = member.failure
    assert error is not None
    return failure.on_death(
        pool.policy,
        member.restarts,
        monotonic(),
        pool.max_restarts,
        lasting=failure.lasts(error, member.worker.report),
        others=any(each is not member and each.state is not State.GONE for each in pool.members),
        barren=member.barren,
    )


def carry_out(pool: Dispatch, member: Member, verdict: Verdict) -> Policy:
    """Start another worker in the place of a dead one, or do without it; RAISE is left to who asked."""
    if verdict.act is Policy.RESTART:
        pool.restart(member, verdict.delay)
    elif verdict.act is Policy.DROP:
        pool.drop(member)
    return verdict.act


__all__ = ["Calls", "Done", "Event", "Lost", "Ready", "carry_out", "verdict_on"]
