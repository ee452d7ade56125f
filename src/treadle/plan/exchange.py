"""The exchange: requests go out to slots, answers come back to the promises that wait for them.

It is the scatter schedule's half of a pool. Every request is bound to its number, so answers that nobody asks for any
more disturb nobody, and an error of one slot leaves no answer of another unread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treadle.errors import BrokenPool, ClosedPool, UsageError
from treadle.plan.promise import Promise
from treadle.pool import failure
from treadle.pool.calls import Done, Event, Lost
from treadle.pool.failure import Policy
from treadle.pool.life import State
from treadle.pool.member import Member
from treadle.pool.messages import Op
from treadle.pool.pool import Pool

AHEAD = 12  # requests that one slot may owe an answer to


class Exchange:
    """Slots, one worker each.

    Args:
        factories: of the programs.
        **pool: see `Pool`.
    """

    def __init__(self, factories: Sequence[Callable[[], Any]], **pool: Any) -> None:
        serial = pool.get("backend") == "serial"
        self.pool = Pool(factories, workers=None if serial else len(factories), rows=False, **pool)
        self._members = {slot: member for member in self.pool.members for slot in member.slots}
        self._calls = self.pool.calls

    def __len__(self) -> int:
        return self.pool.n

    @property
    def in_process(self) -> bool:
        """Do the slots run in the caller's own process?"""
        return self.pool.backend != "process"

    def slots(self) -> list[int]:
        """Those that can be asked: all but dropped ones."""
        self.pool.check()
        return [slot for slot, member in sorted(self._members.items()) if member.state is not State.GONE]

    def ask(
        self,
        slot: int,
        name: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        then: Callable[[Any], Any] | None = None,
    ) -> Promise:
        """Run a program's operation in a slot; `then` is applied to its result, here.

        Raises ClosedPool, BrokenPool, UsageError for a dropped slot.
        """
        self.pool.check()
        member = self._members[slot]
        while member.state not in (State.IDLE, State.BUSY) or len(member.owed) >= AHEAD:
            if member.state is State.GONE:
                raise UsageError(f"slot {slot} was dropped when its worker died: it takes no more requests")
            self.pump(None)
            self.pool.check()
        promise = Promise(self, then)
        self._calls.submit(member, Op.CALL, {slot: (name, args, kwargs or {})}, (slot,), (promise, slot))
        return promise

    def pump(self, timeout: float | None) -> None:
        """Hear from the workers: wait up to `timeout` seconds (None: for ever) for news, and pass it on."""
        try:
            heard = self._calls.poll(timeout, self._hear)
        except (ClosedPool, BrokenPool) as error:
            self._fail_all(error)
            raise
        if not heard and timeout is None and self._calls:  # nobody owes anything: cannot be, so do not wait on
            self._fail_all(UsageError("the answer to this request was lost"))

    def _hear(self, event: Event) -> None:
        if isinstance(event, Done):
            (promise, slot), member, extras = event.tag, event.member, event.reply.extras
            if extras is not None and slot in extras.raised:
                promise.settle(error=failure.task_error(extras.raised[slot], slot, member.shown, member.worker.pid))
            else:
                promise.settle(None if extras is None else extras.infos.get(slot))
        elif isinstance(event, Lost):
            if event.verdict is Policy.RAISE:
                self._calls.broken = self._calls.broken or event.error
            for promise, _ in event.tags:
                promise.settle(error=event.error)

    def owes(self, after: int, upto: int) -> bool:
        """Does, or may, any slot still work on a request that is numbered above `after` and at most `upto`?"""
        return any(after < owed.request.id <= upto for member in self.pool.members for owed in member.owed)

    def member(self, slot: int) -> Member:
        """The pool's record of a slot's worker."""
        return self._members[slot]

    def _fail_all(self, error: BaseException) -> None:
        for promise, _ in self._calls.clear():
            promise.settle(error=error)

    def close(self, timeout: float | None = None) -> None:
        """End all workers. Promises that have no answer yet fail. Idempotent."""
        self.pool.close(timeout)
        self._fail_all(ClosedPool("the environment is closed"))


__all__ = ["Exchange"]
