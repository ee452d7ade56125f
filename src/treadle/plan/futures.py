"""Futures for the answers of planning's slots, which may be waited for in any order.

A pool has a worker for each slot (`Workers`), and a future for the answer to every request. Answers without a reader
are dropped, and after an error of one slot the answers of the others are still read. `treadle.pool.calls` decides about
a worker that dies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any, NoReturn

from treadle.errors import BrokenPool, ClosedPool, UsageError
from treadle.plan.work import PlanSlot
from treadle.pool import failure
from treadle.pool.events import Done, Event, Lost
from treadle.pool.pool import Pool
from treadle.program.ids import own_registrations
from treadle.wire.messages import Op, Raised
from treadle.worker.life import RestartPolicy, State

AHEAD = 12  # requests that one worker may owe an answer to
TAKING = frozenset({State.IDLE, State.BUSY})  # requests


class Future:
    """The answer to one request. Futures may be read in any order, many times, or never.

    Calling it without arguments waits for the answer and returns it, as with plangym's futures. It also has the waiting
    methods of `concurrent.futures.Future`.
    """

    def __init__(self, workers: Workers, slot: int, then: Callable[[Any], Any] | None = None) -> None:
        self.workers, self.slot = workers, slot
        self._then = then
        self.settled = False
        self.value: Any = None  # `value` and `error` are valid once the future is settled
        self.error: BaseException | None = None

    def __call__(self) -> Any:
        """Wait for the answer and return it, or raise its error."""
        return self.result()

    def result(self, timeout: float | None = None) -> Any:
        """Wait at most `timeout` seconds (None: without limit) for the answer, and return it.

        Raises WorkerError, and TimeoutError after `timeout`; the answer can still be waited for.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does, and return the error, or None for an answer without an error."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self.settled:
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"no answer within {timeout:g} s; it is still awaited")
            self.workers.pump(left)
        return self.error

    def done(self) -> bool:
        """Return True if the answer has come, without waiting."""
        if not self.settled:
            self.workers.pump(0.0)
        return self.settled

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Set the answer. The workers call it once."""
        if error is None and self._then is not None:
            try:
                value = self._then(value)
            except Exception as raised:  # noqa: BLE001 - `result` raises it
                value, error = None, raised
        self.value, self.error, self.settled = value, error, True


class Workers:
    """Slots with one worker each; with backend="serial", all are in the caller.

    Args:
        constructor: makes the environment of a slot, in the worker.
        n: number of slots.
        **pool: see `Pool`.
    """

    def __init__(self, constructor: Callable[[], Any], n: int, **pool: Any) -> None:
        registrations = own_registrations()
        workers = None if pool.get("backend") == "serial" else n
        self.pool = Pool([lambda: PlanSlot(constructor, registrations)] * n, workers=workers, rows=False, **pool)
        self.by_slot, self._calls = self.pool.by_slot, self.pool.calls
        self._calls.again = ""  # states come with the items, so slots need no reset after a failure

    def ask(
        self,
        slot: int,
        name: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        then: Callable[[Any], Any] | None = None,
    ) -> Future:
        """Run a program's operation in a slot; `then` is applied to its result in the caller.

        Raises ClosedPool, BrokenPool, and UsageError for a dropped slot.
        """
        worker = self.by_slot[slot]
        while worker.state not in TAKING or len(worker.owed) >= AHEAD:
            self.pool.check()
            if worker.state is State.GONE:
                raise UsageError(f"slot {slot} was dropped when its worker died: it takes no more requests")
            self.pump(None)
        future = Future(self, slot, then)
        self._calls.submit(worker, Op.CALL, {slot: (name, args, kwargs or {})}, (slot,), future)
        return future

    def pump(self, timeout: float | None) -> None:
        """Wait up to `timeout` seconds (None: without limit) for answers, and settle their futures."""
        try:
            self._calls.poll(timeout, self._hear)
        except (ClosedPool, BrokenPool) as error:
            self._fail_all(error)
            raise

    def _hear(self, event: Event) -> None:
        if isinstance(event, Done):
            future, extras = event.tag, event.reply.extras
            if extras is not None and future.slot in extras.raised:
                future.settle(error=self._raised(future.slot, extras.raised[future.slot]))
            else:
                future.settle(None if extras is None else extras.infos.get(future.slot))
        elif isinstance(event, Lost):
            if event.verdict is RestartPolicy.RAISE:
                self._calls.broken = self._calls.broken or event.error
            for future in event.tags:
                future.settle(error=event.error)

    def _raised(self, slot: int, raised: Raised) -> Any:
        return failure.task_error(raised, self.pool.where(slot))

    def raise_failed(self, slot: int, item: int, raised: Raised, n: int) -> NoReturn:
        """Raise the error of an item of a batch of n. The error names the item, also in its attribute `item`."""
        error = self._raised(slot, raised)
        error.item = item
        error.where = replace(error.where, item=item)
        error.args = (f"item {item} of {n}: {error}",)
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame: the cycle would keep the batch and its states

    def _fail_all(self, error: BaseException) -> None:
        for future in self._calls.clear():
            future.settle(error=error)

    def close(self, timeout: float | None = None) -> None:
        """End all workers. Futures without an answer fail. Idempotent."""
        self.pool.close(timeout)
        self._fail_all(ClosedPool("the environment is closed"))
