"""Protection against interrupts (Ctrl-C), which Python raises at any line of the main thread.

Python cannot deliver an interrupt in the callback of a weak reference or in a `__del__`, which the garbage collector
runs at any time. It reports the interrupt to `sys.unraisablehook` and drops it: the user must press the key again.

The functions of this module protect three kinds of code:

- `undisturbed` makes an object in another thread. An interrupt between a system call that makes a process or a
  descriptor and its record would leak the object. Between taking and releasing a lock (`threading.Semaphore` and
  `Event` do this in Python), it would leave the lock taken.
- `Later` delays an interrupt during a message. Between its halves, an interrupt would lose the first, and the rest
  would be misread.
- `owned` protects the moment between the making of a descriptor and of the object that closes it.

All this is about SIGINT. The handler of another signal may raise in code that is only protected from Ctrl-C.
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
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
PATIENCE = 0.1  # seconds that Ctrl-C waits for the thread that it has cut short
_SIGINT = int(signal.SIGINT)


class Closes:
    """The base of objects that the end of their `with` block closes, whatever has ended it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""


class Later:
    """A block that delays Ctrl-C until its end, for short operations such as sending or reading one message.

    It delays only SIGINT, if its handler is Python's or a user's function, and only in the main thread, as other
    threads get no interrupts. It costs about 1.5 us. (`signal`'s own functions would cost 5 more, as they make enums of
    their results.)
    """

    _waits: _Waits | None = None

    def __enter__(self) -> None:
        if threading.get_ident() == threading.main_thread().ident:
            handler, block = _signal.getsignal(_SIGINT), sys._getframe(1)
            if isinstance(handler, _Waits):
                if handler.around(block):
                    return  # within another block
                handler = handler.before
            if callable(handler):
                self._waits = _Waits(handler, block, weakref.ref(self))
                _signal.signal(_SIGINT, self._waits)

    def __exit__(self, *_: object) -> None:
        if self._waits is not None:
            _signal.signal(_SIGINT, self._waits.before)
            for number in self._waits.came:
                # with the block's frame: keeping the frames of the signals, perhaps this one, would make a cycle
                self._waits.before(number, sys._getframe(1))


def owned(make: Callable[[], int], mode: str = "r") -> io.FileIO:
    """Return the descriptor that `make` makes in an object that closes it. Raises what `make` raises."""
    with Later():
        return io.FileIO(make(), mode)


class _Waits:
    """The handler of signals during a block.

    Another signal's exception may cut the block short at its beginning or end, and leave this handler installed. It
    then detects that the block is over, and restores the handler before it.
    """

    def __init__(self, before: Callable[[int, Any], Any], block: FrameType, later: weakref.ref[Later]) -> None:
        self.before = before
        self.came: list[int] = []
        self._later = later  # lives as long as its block; afterwards another frame may have the same id
        self._block = id(block), block.f_code  # not the frame, which would keep its variables alive

    def around(self, frame: FrameType | None) -> bool:
        """Return True if this frame is the block's, or is called from it."""
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
    """Return the result of `make`, which runs in a thread, where interrupts cannot cut it short.

    An interrupt during the wait is raised once `discard` has been called with the result of `make`. If that takes
    longer than `PATIENCE`, the interrupt is raised then, and the thread calls `discard` later. `make` and `discard`
    must be fit for another thread.
    """
    # (`threading.current_thread()` would add an unknown thread, such as ours, to the list of threads, where it stays
    # when it has ended.)
    if threading.get_ident() != threading.main_thread().ident:
        return make()
    work = _Work(make, discard)
    try:
        # Not a threading.Thread: an interrupt in its `start` leaves the locks of that module locked.
        try:
            _thread.start_new_thread(work.run, ())
        except RuntimeError:  # no more threads can start: at the interpreter's end, or at the system's limit
            work.run()
        work.wait()
        return work.result()
    except BaseException:
        work.leave()
        raise


class _Work(Generic[T]):
    """An object that is made in a thread. If the caller gives it up, the later one of the two sides discards it."""

    def __init__(self, make: Callable[[], T], discard: Callable[[T], object]) -> None:
        self._make, self._discard = make, discard
        self._lock = threading.Lock()
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._begun = threading.Lock()  # taken by the thread that makes it, or by `leave` before the thread begins
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
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        finally:
            for _ in range(2):  # one for the wait, one for `leave`: an interrupt may come right after the wait
                self.ended.put(None)

    def wait(self) -> None:
        """Wait for the end of `run`, in slices: Python hears a signal that came just before a slice only after it."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self.ended.get(timeout=PATIENCE)

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
