"""The workers of planning: a pool with a worker for each slot, and a future for the answer to every request.

A request is bound to its own future, so answers that nobody asks for any more disturb nobody, and an error of one slot
leaves no answer of another unread. What becomes of a worker that dies is decided in `treadle.pool.calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, NoReturn, Self

import gymnasium as gym

from treadle.errors import BrokenPool, ClosedPool, UsageError
from treadle.plan.items import Ask, Done, Method, Work, columns, items_of, packed
from treadle.plan.work import PlanSlot
from treadle.pool import calls, failure
from treadle.pool.failure import RestartPolicy
from treadle.pool.life import State
from treadle.pool.messages import Op, Raised
from treadle.pool.pool import Pool
from treadle.program.registered import own_registrations

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
        self.by_slot = {slot: worker for worker in self.pool.workers for slot in worker.slots}
        self._calls = self.pool.calls

    @property
    def in_process(self) -> bool:
        """Do the slots run in the caller's own process?"""
        return self.pool.options.backend != "process"

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

    def _hear(self, event: calls.Event) -> None:
        if isinstance(event, calls.Done):
            future, extras = event.tag, event.reply.extras
            if extras is not None and future.slot in extras.raised:
                future.settle(error=self._raised(future.slot, extras.raised[future.slot]))
            else:
                future.settle(None if extras is None else extras.infos.get(future.slot))
        elif isinstance(event, calls.Lost):
            if event.verdict is RestartPolicy.RAISE:
                self._calls.broken = self._calls.broken or event.error
            for future in event.tags:
                future.settle(error=event.error)

    def _raised(self, slot: int, raised: Raised) -> Any:
        worker = self.by_slot[slot]
        return failure.task_error(raised, slot, worker.shown, worker.pid)

    def raise_failed(self, slot: int, item: int, raised: Raised, n: int) -> NoReturn:
        """Raise what an item of a batch of n raised in a slot. The error names the item, and has it in `item`."""
        error = self._raised(slot, raised)
        error.item = item
        error.where = replace(error.where, item=item)
        text = str(error).replace(" (the worker lives; reset the slot to carry on)", " (the worker lives)")
        error.args = (f"item {item} of {n}: {text}",)
        try:
            raise error
        finally:
            del error  # its traceback knows this frame: together they would hold the batch, handles and all

    def _fail_all(self, error: BaseException) -> None:
        for future in self._calls.clear():
            future.settle(error=error)

    def close(self, timeout: float | None = None) -> None:
        """End all workers. Futures that have no answer yet fail. Idempotent."""
        self.pool.close(timeout)
        self._fail_all(ClosedPool("the environment is closed"))


class ExternalProcess:
    """Runs an environment with the interface of `PlanEnv` elsewhere, and passes everything on to it.

    Whatever the environment raises is raised here, as TaskRaised and as its own type, and the worker lives on.

    Args:
        constructor: makes the environment, there. Any callable, lambdas included.
        **pool: `backend`, `start_method`, `start_timeout`, `step_timeout`, `on_failure`, ...: see `Pool`.
    """

    def __init__(self, constructor: Callable[[], Any], **pool: Any) -> None:
        self._set(Workers(constructor, 1, **pool), 0, owner=True)

    @classmethod
    def of(cls, workers: Workers, slot: int) -> Self:
        """One slot of workers that somebody else closes."""
        self = cls.__new__(cls)
        self._set(workers, slot, owner=False)
        return self

    def _set(self, workers: Workers, slot: int, *, owner: bool) -> None:
        self._workers, self._slot, self._owner = workers, slot, owner
        self._observation_space: Any = None
        self._action_space: Any = None

    @property
    def observation_space(self) -> gym.Space:
        """The environment's; asked for once."""
        if self._observation_space is None:
            self._observation_space = self._get("observation_space")
        return self._observation_space

    @property
    def action_space(self) -> gym.Space:
        """The environment's; asked for once."""
        if self._action_space is None:
            self._action_space = self._get("action_space")
        return self._action_space

    def __getattr__(self, name: str) -> Any:
        """The environment's attribute; a method becomes one that runs there. Raises AttributeError, as attributes do.

        Names that begin with an underscore are never asked for.
        """
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._get(name)

    def _get(self, name: str) -> Any:
        found = self._workers.ask(self._slot, Ask.GET, (name,))()
        return partial(self._now, name) if isinstance(found, Method) else found

    def _now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return self.call(name, *args, **kwargs)()

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Future:
        """Call a method of the environment; the future brings what it returns."""
        return self._workers.ask(self._slot, Ask.CALL, (name, *args), kwargs)

    def step(
        self, action: Any, state: Any = None, dt: int = 1, blocking: bool = True, return_state: bool | None = None
    ) -> Any:
        """The environment's `step`; with blocking=False a future of what it returns."""
        future = self.call("step", action=action, state=state, dt=dt, return_state=return_state)
        return future() if blocking else future

    def step_batch(
        self, actions: Any, states: Any = None, dt: Any = None, return_state: bool | None = None, blocking: bool = True
    ) -> Any:
        """`step` for many items, one after the other there. `dt` None: 1.

        Returns a tuple of lists: (states,) observations, rewards, terminals, truncateds, infos; or a future of it.
        """
        items = items_of(actions, states, 1 if dt is None else dt, return_state, store=False)
        given = None if items.states is None else packed(items.states)
        work = Work(0, items.actions, items.dts, given, items.return_state)

        def unpacked(done: Done) -> tuple[list[Any], ...]:
            if done.failed is not None:
                self._workers.raise_failed(self._slot, *done.failed, len(items))
            return columns([done], bool(items.return_state))

        future = self._workers.ask(self._slot, Ask.WORK, (work,), then=unpacked)
        return future() if blocking else future

    def reset(self, blocking: bool = True, return_states: bool = False) -> Any:
        """(observation, info), with `return_states` (state, observation, info); or a future of it."""
        future = self.call("reset", return_state=return_states)
        return future() if blocking else future

    def set_state(self, state: Any, blocking: bool = True) -> Any:
        """Put the environment into a state; None, or a future of it."""
        future = self._workers.ask(self._slot, Ask.CALL, ("set_state", state), then=lambda _: None)
        return future() if blocking else future

    def close(self) -> None:
        """End the process. Idempotent; takes at most `close_timeout` and a second, whatever the environment does."""
        if self._owner:
            self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ExternalProcess(slot {self._slot})"
