"""The coroutines of environments and policies, and the threads that wait for them.

Coroutines run as tasks of one event loop for the whole process (`Settled`), while a worker's thread or the caller
waits. A thread cannot be killed, but a coroutine can be cancelled. So where workers are threads and have a time limit,
the methods of their environments are coroutines. A late worker is given up (`Owner.give_up`): the coroutine that it
waits for is cancelled, and its thread ends.

A coroutine that does not await blocks the loop, and all other coroutines wait for it. The loop measures how late its
own ticks are (`Loop.stuck`). That time counts only against the worker whose task is running. Where that task belongs to
no worker that has a limit, the pool ends with an error (`STUCK`). The loop cannot be stopped from outside, and a task
cannot cancel tasks that other owners have begun.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic
from typing import Any

from treadle.errors import UsageError
from treadle.interrupts import Later

LAST_SECONDS = 0.5  # seconds that tasks get to end once no thread waits for them
CLEAN_UP = 5.0  # seconds that a cancelled coroutine gets while the loop runs on
TICK = 0.05  # seconds between two looks of the loop at how late it is
STUCK = 60.0  # seconds for which a coroutine that was given up, or that no worker owns, may block the loop

log = logging.getLogger("treadle")

_mine = threading.local()
_owner: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("treadle_owner", default=None)


class GivenUp(BaseException):
    """The caller no longer waits for this worker.

    Not an Exception, so that code that retries or skips failed calls does not catch it.
    """


class Owner:
    """A worker's thread, and the coroutine that it waits for.

    Args:
        timed: True if the worker has a time limit; the methods of its environments are then coroutines.

    Attributes:
        over: True once the pool has stopped waiting for the worker, at time `given_up` (monotonic seconds).
        gone: True once the thread has ended.
        name: of the thread.
        pending: the coroutine that the thread waits for; None: it waits for none.
    """

    def __init__(self, timed: bool) -> None:
        self.timed, self.over, self.gone, self.name = timed, False, False, ""
        self.given_up = inf
        self.pending: Future[Any] | None = None
        self._loop: Any = None
        self._stuck = 0.0  # seconds that the loop was stuck at the latest look
        self._ran = False  # True if a task of this owner ran at that look
        self._suspect = inf  # the tick that was due at that look, if no limit covers the task that blocked the loop

    @classmethod
    def mine(cls) -> Owner | None:
        """Return the owner of the calling thread; None: the thread is not a worker's."""
        return getattr(_mine, "owner", None)

    def adopt(self) -> None:
        """Make the calling thread the worker's from now on."""
        _mine.owner, self.name = self, threading.current_thread().name
        _owner.set(self)

    @classmethod
    @contextmanager
    def untimed(cls) -> Iterator[bool]:
        """Lift the time limit while environments are built. Yields True if there was a limit."""
        owner = cls.mine()
        if owner is None or not owner.timed:
            yield False
            return
        owner.timed = False
        try:
            yield True
        finally:
            owner.timed = True

    def wait(self, future: Future[Any], loop: Loop) -> Any:
        """Return or raise what the coroutine does. Raises GivenUp once the worker has been given up."""
        self._loop, self._stuck, self._ran = loop, loop.stuck(monotonic()), False
        self.pending = future  # set before `over` is read
        try:
            if self.over:
                self.give_up()
            return future.result()
        except CancelledError:
            if not self.over:
                raise CancelledError(
                    "not by its pool: it cancels itself, or other code cancels what it awaits"
                ) from None
            raise GivenUp("its time was over") from None
        finally:
            self.pending = None

    def give_up(self) -> None:
        """Stop waiting for the pending coroutine and for every later one."""
        self.over, self.given_up = True, monotonic()
        if (future := self.pending) is not None:
            future.cancel()
            self._loop.given_up(self)

    def held_up(self, now: float) -> float:
        """Return the seconds since the last call in which another coroutine blocked the loop and held this owner's up.

        Raises UsageError if a coroutine that was given up, or that no worker owns, blocks the loop for more than
        `STUCK`.
        """
        if self.pending is None:
            return 0.0
        loop, ran, due = self._loop, self._ran, self._loop.due
        before, self._stuck = self._stuck, max(self._stuck, loop.stuck(now))
        task = loop.running() if now > due else None
        owner = None if task is None else task.owner
        self._ran = owner is self
        since, suspect = due, self._suspect
        if owner is not None and owner.over:
            since = max(due, owner.given_up)
        elif task is not None and (owner is None or owner.pending is not None):
            since = inf  # the caller's own time, or a worker that is late itself
        self._suspect = due if now - since > STUCK else inf
        if self._suspect == suspect < inf:  # seen at two looks in a row: at the first it may have just ended
            over = " was given up, and" if owner is not None and owner.over else ""
            raise UsageError(
                f"{_named(task)}{over} has blocked the event loop for {now - due:.0f} s, {loop.place()}: no other can "
                "go on. Await what it waits for (asyncio.to_thread for what has no await), or use processes, "
                "whose workers can be killed"
            )
        # a task counts as running from one look to the next: at a single look it may have just begun
        return 0.0 if ran and self._ran else self._stuck - before

    def thread(self) -> int | None:
        """Return the ident of the loop's thread while it runs a task of this worker; else None."""
        task = None if self.pending is None else self._loop.running()
        return None if task is None or task.owner is not self else self._loop.thread.ident


class _Begun(asyncio.Task[Any]):
    """A task that no other task has begun. Tasks of other owners cannot cancel it."""

    def cancel(self, msg: Any = None) -> bool:
        asks: Any = asyncio.current_task(self.get_loop())
        return (asks is None or asks.owner is self.owner) and super().cancel(msg)  # type: ignore[attr-defined]


def _named(task: Any) -> str:
    if task is None:
        return "a callback of the event loop's"
    name = getattr(task.get_coro(), "__qualname__", "a coroutine")
    return f"{name} of {task.owner.name}" if task.owner else name


class Loop:
    """An event loop in a thread of its own.

    Each task has an `owner`: the worker that began it or began the task that it comes from; None: no worker did.

    Attributes:
        due: when the next tick is due (monotonic seconds). A time in the past means that the loop is blocked.
        ignoring: the names of tasks that went on after they were cancelled.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(self._task)
        self.due, self._late = inf, 0.0
        self.ignoring: list[str] = []
        self._over, self._ended = False, threading.Semaphore(0)
        self._stopped: Any = None  # the task that was running when SystemExit was raised in the loop's thread
        self.thread = threading.Thread(target=self._run, name="treadle-event-loop", daemon=True)
        self.thread.start()

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Schedule a coroutine on the loop, in the caller's context. Returns its future."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BaseException:  # an interrupt
            with suppress(ValueError):  # ValueError: it runs already
                coroutine.close()
            raise

    def given_up(self, owner: Owner) -> None:
        """Close, after `CLEAN_UP` seconds, each task of an owner that was given up and that has not ended by then."""

        def end() -> None:
            for task in tasks:
                if not task.done():
                    self._leave(task)
                    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # else asyncio logs it
                    task.cancel()

        def look() -> None:
            tasks.extend(task for task in asyncio.all_tasks(self.loop) if task.owner is owner)  # type: ignore[attr-defined]
            self.loop.call_later(CLEAN_UP, end)

        tasks: list[asyncio.Task[Any]] = []
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(look)

    def stuck(self, now: float) -> float:
        """Return the seconds so far in which the loop was blocked, as far as its ticks show."""
        return self._late + max(0.0, now - self.due)

    def running(self) -> Any:
        """Return the task that runs now; None: none does."""
        return asyncio.current_task(self.loop)

    def place(self) -> str:
        """Return the line of code that the loop's thread is at, or its callback where that is not Python code."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        if frame is None:
            return "whose thread has ended"
        if frame.f_code is asyncio.Handle._run.__code__:
            return f"in {frame.f_locals['self']!r}"
        return f"at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"

    def end(self) -> None:
        """Cancel all tasks, and make the loop's thread end."""
        contextvars.Context().run(asyncio.run_coroutine_threadsafe, self._finish(), self.loop)

    def join(self) -> None:
        """Wait for the end of the loop's thread. A thread that is stuck in C code is left behind, as a daemon.

        Thread.join is not used: it would list the calling thread, which may be an interrupt's.
        """
        blocked = monotonic() - self.due > LAST_SECONDS
        if not self._ended.acquire(timeout=0.0 if blocked else 1.5 * LAST_SECONDS):
            self._stopped = self.running()
            self.ignoring.append(_named(self._stopped))  # Python code that awaits nothing must not compute on
            exit = ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread.ident or 0), exit)
            if not self._ended.acquire(timeout=LAST_SECONDS / 2):
                text = "closing: %s blocks the event loop, %s; its thread is left behind"
                log.warning(text, self.ignoring[-1], self.place())

    def _task(self, loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        within: Any = self.running()
        task: Any = (_Begun if within is None else asyncio.Task)(coroutine, loop=loop, **options)
        context = options.get("context") or contextvars.copy_context()
        task.owner = context.get(_owner) if within is None else within.owner
        if self.due == inf:
            self._tick()
        return task  # type: ignore[no-any-return]

    def _tick(self) -> None:
        late, self.due = monotonic() - self.due, inf
        self._late += max(0.0, late)
        if asyncio.all_tasks(self.loop):
            self.due = monotonic() + TICK
            self.loop.call_later(TICK, self._tick)

    async def _finish(self) -> None:
        await _cancel_all()
        self._over = True
        self.loop.stop()

    def _leave(self, task: asyncio.Task[Any]) -> None:
        """Close a task's coroutine. One that does not end is kept for ever: once collected it would be closed again."""
        self.ignoring.append(_named(task))
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is logged in `_run`
        coroutine: Any = task.get_coro()
        with suppress(BaseException):  # the task is over: no caller is left to get the exception
            coroutine.close()
        if coroutine.cr_frame is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(coroutine))

    def _run(self) -> None:
        while not self._over:  # an environment may have stopped it
            with suppress(SystemExit, KeyboardInterrupt):  # tasks raise these, too, after their waiters have got them
                self.loop.run_forever()
        asyncio._set_running_loop(self.loop)  # else each await raises at once, and a coroutine that catches that spins
        for task in asyncio.all_tasks(self.loop):
            self._leave(task)
        if self._stopped is not None and self._stopped.done() and not self._stopped.cancelled():
            self._stopped.exception()  # the exit is ours: Python would log it as an exception that was never retrieved
        self.loop.close()
        if self.ignoring:
            names = ", ".join(dict.fromkeys(self.ignoring))
            log.warning("coroutines that did not end when they were cancelled have been stopped: %s", names)
        self._ended.release()


class Settled:
    """Runs coroutines to their ends: called with a value, it returns it, or awaits it where it is a coroutine.

    From its first coroutine on it holds a share of the process's event loop, which runs as long as any share is held.
    """

    _lock = threading.RLock()
    _shares = 0
    _pid = 0
    _shared: Loop
    _ending: Loop | None = None
    _open = False

    def __call__(self, value: Any) -> Any:
        if not asyncio.iscoroutine(value):
            return value
        future, owner = self._begun(value), Owner.mine()
        if owner is not None:
            return owner.wait(future, Settled._shared)
        try:
            return future.result()
        except BaseException:  # an exception that interrupts the wait cancels the coroutine
            future.cancel()
            raise

    def begin(self, value: Any) -> None:
        """Begin a coroutine without waiting for it; any other value is ignored."""
        if asyncio.iscoroutine(value):
            self._begun(value)

    def _begun(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        if not self._open:
            with Later():
                self._take()
        return Settled._shared.begin(coroutine)

    def close(self) -> None:
        """Give the share back. The last share's return cancels the tasks that still run."""
        if self._open:
            self._open = False
            if Settled._pid == os.getpid():
                with Later():
                    self._give_back()

    def _take(self) -> None:
        kind, self._open = Settled, True
        with kind._lock:
            if kind._shares == 0 or kind._pid != os.getpid():  # the loop's thread does not exist in a fork
                kind.join()
                kind._shared, kind._shares, kind._pid, kind._ending = Loop(), 0, os.getpid(), None
            kind._shares += 1

    def _give_back(self) -> None:
        kind = Settled
        with kind._lock:
            kind._shares -= 1
            if not kind._shares:
                kind._ending = kind._shared
                kind._shared.end()
        if Owner.mine() is None:  # waiting would make a worker late that is no more to blame than others
            kind.join()

    @classmethod
    def join(cls) -> None:
        """Wait for the end of a loop whose last share a worker has given back."""
        if cls._ending is not None and cls._pid == os.getpid():
            with Later(), cls._lock:
                if cls._ending is not None:
                    cls._ending.join()
                    cls._ending = None


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=LAST_SECONDS / 2)
        for task in late:
            asyncio.Task.cancel(task)  # whichever task began it
        if late:
            await asyncio.wait(late, timeout=LAST_SECONDS / 2)
