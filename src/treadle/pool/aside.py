"""Calls of users' code in the caller's own process that can be given up.

A thread cannot be killed. So where a worker is a thread and has a time limit, its environment is called in a thread of
the environment's own (`OwnThread`), and the worker's thread only waits for the answer: when it is told to wait no more,
it ends, another takes its place, and the call's thread is left behind as a daemon. Coroutines run as tasks of an event
loop, one for the whole process (`EventLoop`); those that are given up are cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, ClassVar

from treadle.pool.interrupts import undisturbed

LAST_SECONDS = 0.5  # that tasks of coroutines get to end when nobody waits for them

MOST_LEFT = 100  # threads that may be left behind in calls that do not end

log = logging.getLogger("treadle")
_mine = threading.local()


class GivenUp(RuntimeError):
    """The caller waits no more for this worker."""


class Patience:
    """What a worker's thread waits with.

    limited: is there a time limit that is to be enforced? Then environments are called where they can be left.

    Attributes:
        over: it waits for nothing any more.
    """

    def __init__(self, limited: bool) -> None:
        self.limited, self.over = limited, False
        self._pending: Answer | None = None

    @classmethod
    def mine(cls) -> Patience | None:
        """Of the thread that asks; None: it is no worker's."""
        return getattr(_mine, "patience", None)

    def adopt(self) -> None:
        """The thread that calls this waits with it from now on."""
        _mine.patience = self

    @property
    def waiting(self) -> bool:
        """Does it wait for a call that it could give up?"""
        return self._pending is not None

    def wait(self, answer: Answer) -> Any:
        """The answer's result, or what it raises; GivenUp."""
        self._pending = answer  # before `over` is looked at
        try:
            if self.over:
                answer.cancel()
            return answer.result()
        except CancelledError:
            if not self.over:
                raise
            raise GivenUp("its time was over") from None
        finally:
            self._pending = None

    def give_up(self) -> None:
        """Wait no more, for this and for whatever comes."""
        self.over = True
        if (answer := self._pending) is not None:
            answer.cancel()


def waited(answer: Answer) -> Any:
    """The answer's result, waited for with the thread's own patience. What interrupts the wait cancels it."""
    patience = Patience.mine()
    if patience is not None:
        return patience.wait(answer)
    try:
        return answer.result()
    except BaseException:
        answer.cancel()
        raise


class Answer:
    """What a call in another thread comes to: a `concurrent.futures.Future` without its locks."""

    __slots__ = ("_box",)

    def __init__(self) -> None:
        self._box: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def put(self, value: Any, error: BaseException | None = None) -> None:
        """It is this; only the first counts."""
        self._box.put((value, error))

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._box.put((None, CancelledError()))

    def result(self) -> Any:
        """Wait for it, once."""
        value, error = self._box.get()
        if error is not None:
            raise error
        return value


class OwnThread:
    """A daemon thread that does what it is given, one after another, until it is to `end`."""

    left: ClassVar[set[threading.Thread]] = set()  # of this process, behind in a call when last looked at

    def __init__(self, name: str) -> None:
        self._todo: queue.SimpleQueue[tuple[Answer, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Any]) -> Answer:
        answer = Answer()
        self._todo.put((answer, function))
        return answer

    def end(self) -> None:
        """It ends when it has done all that it was given; waits for that only where it does not hang."""
        patience = Patience.mine()
        self._todo.put(None)
        if patience is not None and patience.over:
            self.left.add(self._thread)
            if many := self.behind():
                log.warning("a thread is left behind in a call that was given up (%d of at most %d)", many, MOST_LEFT)
        else:
            self._thread.join()

    @classmethod
    def behind(cls) -> int:
        """How many are left behind and have not ended since."""
        cls.left.difference_update([thread for thread in cls.left.copy() if not thread.is_alive()])
        return len(cls.left)

    def _run(self) -> None:
        while (todo := self._todo.get()) is not None:
            answer, function = todo
            try:
                answer.put(function())
            except BaseException as error:  # noqa: BLE001 - it is the one's who waits
                answer.put(None, error)
            del todo, answer, function


class Running(Answer):
    """What a coroutine comes to that runs in a loop, in the context of whoever began it."""

    __slots__ = ("_context", "_coroutine", "_loop", "_over", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._coroutine, self._loop, self._over = coroutine, loop, False
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """In the loop's thread."""
        if self._over:
            self._coroutine.close()
        else:
            self._task = self._loop.create_task(self._run(), context=self._context)

    async def _run(self) -> None:
        try:
            self.put(await self._coroutine)
        except asyncio.CancelledError:
            self.put(None, CancelledError())
        except BaseException as error:  # noqa: BLE001 - it is the one's who waits; an exit would end the loop
            self.put(None, error)

    def cancel(self) -> None:
        super().cancel()
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
