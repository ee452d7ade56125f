"""Futures: the answers to requests of planning's slots, asked for in any order.

A pool has a worker for each slot (`Workers`), and a future for the answer to every request: answers that
nothing waits for are dropped, and an error of one slot leaves no answer of another unread. `treadle.pool.calls` decides
about a worker that dies.
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
    """The answer to one request, whenever it comes: futures may be asked in any order, many times, or never.

    A callable without arguments, as plangym's are, with the waiting methods of `concurrent.futures.Future`.
    """

    def __init__(self, workers: Workers, slot: int, then: Callable[[Any], Any] | None = None) -> None:
        self.workers, self.slot = workers, slot
        self._then = then
        self.settled = False
        self.value: Any = None  # these two once it is settled
        self.error: BaseException | None = None

    def __call__(self) -> Any:
        """Wait for the answer and return it, or raise what went wrong."""
        return self.result()

    def result(self, timeout: float | None = None) -> Any:
        """The same, waiting at most `timeout` seconds (None: for ever).

        Raises TimeoutError then, and the answer still comes; and WorkerError.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does; what went wrong, None when nothing did."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self.settled:
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"no answer within {timeout:g} s; it is still awaited")
            self.workers.pump(left)
        return self.error

    def done(self) -> bool:
        """Is the answer here? Never waits."""
        if not self.settled:
            self.workers.pump(0.0)
        return self.settled

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Called by its workers, once."""
        if error is None and self._then is not None:
            try:
                value = self._then(value)
            except Exception as raised:  # noqa: BLE001 - told to whoever asks for the answer
                value, error = None, raised
        self.value, self.error, self.settled = value, error, True


class Workers:
    """Slots, one worker each (with backend="serial" the caller has them all).

    Args:
        constructor: makes the environment of a slot, there.
        n: how many slots.
        **pool: see `Pool`.
    """

    def __init__(self, constructor: Callable[[], Any], n: int, **pool: Any) -> None:
        registrations = own_registrations()
        workers = None if pool.get("backend") == "serial" else n
        self.pool = Pool([lambda: PlanSlot(constructor, registrations)] * n, workers=workers, rows=False, **pool)
        self.by_slot, self._calls = self.pool.by_slot, self.pool.calls
        self._calls.again = ""  # states come with the items: there is nothing to be reset

    def ask(
        self,
        slot: int,
        name: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        then: Callable[[Any], Any] | None = None,
    ) -> Future:
        """Run a program's operation in a slot; `then` is applied to its result, here.

        Raises ClosedPool, BrokenPool, UsageError for a dropped slot.
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
        """Hear from the workers: wait up to `timeout` seconds (None: for ever) for news, and pass it on."""
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
        """Raise what an item of a batch of n raised in a slot. The error names the item, and has it in `item`."""
        error = self._raised(slot, raised)
        error.item = item
        error.where = replace(error.where, item=item)
        error.args = (f"item {item} of {n}: {error}",)
        try:
            raise error
        finally:
            del error  # its traceback knows this frame: together they would hold the batch, states and all

    def _fail_all(self, error: BaseException) -> None:
        for future in self._calls.clear():
            future.settle(error=error)

    def close(self, timeout: float | None = None) -> None:
        """End all workers. Futures that have no answer yet fail. Idempotent."""
        self.pool.close(timeout)
        self._fail_all(ClosedPool("the environment is closed"))
