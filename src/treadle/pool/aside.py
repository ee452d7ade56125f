"""Calls of users' code in the caller's own process that can be given up.

A thread cannot be killed. So where a worker is a thread and has a time limit, it says when it is in a call of its
environment (`Patience.call`): one that is given up then is left behind in it, as a daemon, and another takes its place.
When such a call ends at last, the thread finds that nobody waits for it and ends. Coroutines run as tasks of an event
loop, one for the whole process (`EventLoop`); those that are given up are cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

from treadle.pool.interrupts import undisturbed

LAST_SECONDS = 0.5  # that tasks of coroutines get to end when nobody waits for them

_mine = threading.local()


class GivenUp(BaseException):
    """The caller waits no more for this worker. No Exception: nobody tries such a call again, or skips it."""


class Patience:
    """How long a worker's thread is waited for.

    limited: is there a time limit that is to be enforced? Then environments are called where they can be left.

    Attributes:
        over: nobody waits for it any more.
        gone: its thread has ended, or is left behind in a call: whatever it still does concerns nobody.
        files: what holds files, to be closed at once when it is left behind; its thread closes the rest when the call
            has ended.
    """

    def __init__(self, limited: bool) -> None:
        self.limited, self.over, self.gone = limited, False, False
        self.files: list[Callable[[], Any]] = []
        self._inside: deque[None] = deque()  # one entry while it is in a call; whoever takes it out decides whose it is
        self._calling = False
        self._pending: Running | None = None

    @classmethod
    def mine(cls) -> Patience | None:
        """Of the thread that asks; None: it is no worker's."""
        return getattr(_mine, "patience", None)

    @classmethod
    def here(cls) -> Patience | None:
        """Of the thread that asks, unless it is in a call already: what an environment does within is its own."""
        patience = cls.mine()
        return None if patience is None or patience._calling else patience

    def adopt(self) -> None:
        """The thread that calls this is the worker's from now on."""
        _mine.patience = self

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the function returns or raises; GivenUp where nobody waits for it any more. Called from other threads
        than the worker's, or within such a call, it is just a call."""
        if self._calling or Patience.mine() is not self:
            return function(*args, **kwargs)
        if self.over:
            raise GivenUp("nobody waits for it")
        self._inside.append(None)
        self._calling = True
        try:
            if not self.over:  # looked at again, as it may be by now without a look at `_inside`
                return function(*args, **kwargs)
        finally:
            self._calling = False
            try:
                self._inside.pop()
            except IndexError:
                self.gone = True
                raise GivenUp("it was left behind") from None
        raise GivenUp("nobody waits for it")

    def wait(self, running: Running) -> Any:
        """What the coroutine returns, or raises; GivenUp."""
        self._pending = running  # before `over` is looked at
        try:
            if self.over:
                running.cancel()
            return running.result()
        except CancelledError:
            if not self.over:
                raise
            raise GivenUp("its time was over") from None
        finally:
            self._pending = None

    def give_up(self) -> None:
        """Wait no more, for this and for whatever comes."""
        self.over = True
        with suppress(IndexError):  # it is in no call
            self._inside.pop()
            self.gone = True
        if (running := self._pending) is not None:
            running.cancel()

    @property
    def waiting(self) -> bool:
        """Is it where it can be given up: in a call, or does it wait for a coroutine?"""
        return bool(self._inside) or self._pending is not None


def waited(running: Running) -> Any:
    """The coroutine's result, waited for with the thread's own patience. What interrupts the wait cancels it."""
    patience = Patience.mine()
    if patience is not None:
        return patience.wait(running)
    try:
        return running.result()
    except BaseException:
        running.cancel()
        raise


class Running:
    """What a coroutine comes to that runs in a loop, in the context of whoever began it: a
    `concurrent.futures.Future` without its locks."""

    __slots__ = ("_box", "_context", "_coroutine", "_loop", "_over", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._box: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._coroutine, self._loop, self._over = coroutine, loop, False
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """In the loop's thread."""
        if self._over:
            self._coroutine.close()
        else:
            self._task = self._loop.create_task(self._run(), context=self._context)

    def result(self) -> Any:
        """Wait for it, once."""
        value, error = self._box.get()
        if error is not None:
            raise error
        return value

    async def _run(self) -> None:
        try:
            self._box.put((await self._coroutine, None))
        except asyncio.CancelledError:
            self._box.put((None, CancelledError()))
        except BaseException as error:  # noqa: BLE001 - it is the one's who waits; an exit would end the loop
            self._box.put((None, error))

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._box.put((None, CancelledError()))
        self._over = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.add_done_callback(lambda _: self._coroutine.close())  # it may not have taken its first step
            self._task.cancel()


class Loop:
    """An event loop in a thread of its own. Many threads share one wake-up of it, which is a system call."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._todo: deque[Running] = deque()  # what is yet to begin
        self._woken = False
        self.thread = threading.Thread(target=self._run, name="treadle-event-loop", daemon=True)
        self.thread.start()

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Running:
        answer = Running(coroutine, self.loop)
        self._todo.append(answer)
        try:
            if not self._woken:
                self._woken = True
                self.loop.call_soon_threadsafe(self._begin_all)
        except BaseException:  # an interrupt, perhaps before it was woken: the next one wakes it
            self._woken = False
            answer.cancel()
            raise
        return answer

    def end(self) -> None:
        """Cancel what runs, and end the thread; where somebody blocks the loop both are left, as a daemon."""
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop).result(2 * LAST_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(LAST_SECONDS)
        if not self.thread.is_alive():
            self.loop.close()

    def _begin_all(self) -> None:
        self._woken = False  # first: what is put there from now on wakes the loop again
        while self._todo:
            with suppress(ValueError):  # closing a coroutine that runs already
                self._todo.popleft().begin()

    def _run(self) -> None:
        while True:
            try:
                self.loop.run_forever()
                return
            except (SystemExit, KeyboardInterrupt):
                continue  # asyncio raises those of tasks here, too, when their own waiters have been told


class EventLoop:
    """A share in the process's event loop, which runs as long as anybody has one."""

    _lock = threading.Lock()
    _shares = 0
    _pid = 0
    _shared: Loop

    def __init__(self) -> None:
        self._open = True
        undisturbed(self._take, lambda _: self.close())

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What the coroutine returns, or raises."""
        return waited(self.begin(coroutine))

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Running:
        """It runs, whoever waits for it."""
        return EventLoop._shared.begin(coroutine)

    def close(self) -> None:
        """Give the share back. With the last one what still runs there is cancelled."""
        if self._open and EventLoop._pid == os.getpid():
            self._open = False
            undisturbed(self._give_back, lambda _: None)

    def _take(self) -> None:
        kind = EventLoop
        with kind._lock:
            if kind._shares == 0 or kind._pid != os.getpid():  # in a fork there is no such thread
                kind._shared, kind._shares, kind._pid = Loop(), 0, os.getpid()
            kind._shares += 1

    def _give_back(self) -> None:
        kind = EventLoop
        with kind._lock:
            kind._shares -= 1
            if not kind._shares:
                kind._shared.end()


class Settled:
    """What calls return, coroutines run to their ends; it has a share in the event loop from the first of them on."""

    _loop: EventLoop | None = None

    def __call__(self, value: Any) -> Any:
        if not asyncio.iscoroutine(value):
            return value
        self._loop = self._loop or EventLoop()
        return self._loop.run(value)

    def begin(self, value: Any) -> None:
        """Nobody waits for it."""
        if asyncio.iscoroutine(value):
            self._loop = self._loop or EventLoop()
            self._loop.begin(value)

    def close(self) -> None:
        """Give the share back."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=LAST_SECONDS / 2)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=LAST_SECONDS / 2)
