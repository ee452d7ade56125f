"""Interrupts (Ctrl-C) that come at a bad moment: Python raises them wherever the main thread happens to be.

In the callback of a weak reference or a `__del__` (the garbage collector runs them at any time) Python only reports it
to `sys.unraisablehook` and forgets it, here as anywhere: the key is to be pressed again.

Between a system call that has made something (a process, a descriptor) and the note of it, that is lost and stays
behind for ever; between a lock's taking and its giving back (`threading.Semaphore` and `Event` do this in Python), the
lock stays taken. So what is made is made elsewhere: `undisturbed`.

Between the halves of a message (what is read and not yet noted is lost, and all that comes after is taken for something
else): `Later`. Between a single descriptor and the object that closes it: `owned`.

All this is about SIGINT. A handler of another signal's that raises may cut short what only waits for Ctrl-C.
"""

from __future__ import annotations

import _signal
import _thread
import contextlib
import io
import queue
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, TypeVar

T = TypeVar("T")
PATIENCE = 0.1  # seconds that Ctrl-C waits for the end of what it has cut short
_SIGINT = int(signal.SIGINT)


class Later:
    """Within it Ctrl-C waits for the end: for what must be whole and takes no time, a message sent or taken, and noted.

    Only SIGINT, whose handler is Python's or a function of the user's, and only in the main thread: elsewhere there are
    no interrupts. Costs about 1.5 us (5 more with `signal`'s own functions, which make enums of their results).
    """

    _waits: _Waits | None = None

    def __enter__(self) -> None:
        if threading.get_ident() == threading.main_thread().ident:
            handler, block = _signal.getsignal(_SIGINT), sys._getframe(1)
            if isinstance(handler, _Waits):
                if handler.around(block):
                    return  # within another
                handler = handler.before
            if callable(handler):
                self._waits = _Waits(handler, block, weakref.ref(self))
                _signal.signal(_SIGINT, self._waits)

    def __exit__(self, *_: object) -> None:
        if self._waits is not None:
            _signal.signal(_SIGINT, self._waits.before)
            for number in self._waits.came:
                # with the block's frame: to keep those that it came in, which may be this one, would be a cycle
                self._waits.before(number, sys._getframe(1))


def owned(make: Callable[[], int], mode: str = "r") -> io.FileIO:
    """The descriptor that `make` makes, held by an object, which closes it. Raises what `make` raises."""
    with Later():
        return io.FileIO(make(), mode)


class _Waits:
    """A handler of signals that come within a block. An exception out of nowhere (another signal's) may cut the block
    short where it begins or ends, and leave this in force: then it finds that the block is over, and makes way."""

    def __init__(self, before: Callable[[int, Any], Any], block: FrameType, later: weakref.ref[Later]) -> None:
        self.before = before
        self.came: list[int] = []
        self._later = later  # it lives as long as its block; by then another frame may have the same id
        self._block = id(block), block.f_code  # not the frame, which would keep all that it knows

    def around(self, frame: FrameType | None) -> bool:
        """Is this frame the block's, or called from it?"""
        if self._later() is None:
            return False
        while frame is not None and (id(frame), frame.f_code) != self._block:
            frame = frame.f_back
        return frame is not None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.around(frame):
            self.came.append(number)
        else:
            signal.signal(number, self.before)
            self.before(number, frame)


def undisturbed(make: Callable[[], T], discard: Callable[[T], object]) -> T:
    """What `make` makes, in a thread, where no interrupt comes in its middle.

    One that comes meanwhile is raised here when what `make` made has been given to `discard`. Where that takes longer
    than `PATIENCE` the thread does it by itself. Both must be fit for another thread.
    """
    # (`threading.current_thread()` would put a thread that it does not know, such as ours, into the list of threads, in
    # which it stays when it has ended.)
    if threading.get_ident() != threading.main_thread().ident:
        return make()
    work = _Work(make, discard)
    try:
        # Not a threading.Thread: an interrupt in the middle of its `start` leaves the locks of that module locked.
        try:
            _thread.start_new_thread(work.run, ())
        except RuntimeError:  # there can be no more threads: at the interpreter's end, or beyond the system's limit
            work.run()
        work.ended.get()
        return work.result()
    except BaseException:
        work.leave()
        raise


class _Work(Generic[T]):
    """Something that is made in a thread, and discarded by whichever side is last when nobody wants it any more."""

    def __init__(self, make: Callable[[], T], discard: Callable[[T], object]) -> None:
        self._make, self._discard = make, discard
        self._lock = threading.Lock()
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._begun = threading.Lock()  # taken by the thread that makes it, or by whoever keeps it from that
        self._left = False
        self.ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            thing = self._make()
            with self._lock:
                self._made.append(thing)
            if self._left:
                self._discard_it()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            self._error = error
        finally:
            for _ in range(2):  # one for the wait, one for `leave`: an interrupt may come when the first is over
                self.ended.put(None)

    def leave(self) -> None:
        self._left = True
        if self._begun.acquire(blocking=False):
            return
        self._discard_it()
        with contextlib.suppress(queue.Empty):
            self.ended.get(timeout=PATIENCE)

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._made[0]

    def _discard_it(self) -> None:
        with self._lock:
            made, self._made = self._made, []
        for thing in made:
            self._discard(thing)
