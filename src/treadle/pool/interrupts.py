"""Interrupts (Ctrl-C) that come at a bad moment: Python raises them wherever the main thread happens to be.

In the callback of a weak reference or a `__del__` (the garbage collector runs them at any time) it is only reported to
`sys.unraisablehook` and forgotten, and a wait of minutes goes on as if nobody had pressed a key: `Missed`.

Between a system call that has made something (a process, a descriptor) and the note of it, that is lost and stays
behind for ever; a call that takes milliseconds makes this likely: `undisturbed`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Missed:
    """Within it `check` raises a KeyboardInterrupt that could not be raised where it came. For waits in a loop.

    Only in the main thread, where alone there are interrupts; elsewhere it does nothing.
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before, sys.unraisablehook = sys.unraisablehook, self._note
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None and sys.unraisablehook == self._note:  # else somebody has put another in its place
            sys.unraisablehook = self._before

    def check(self) -> None:
        """Raise what was missed."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _note(self, report: Any) -> None:
        if isinstance(report.exc_value, KeyboardInterrupt):
            self._error = report.exc_value.with_traceback(None)
        else:
            self._before(report)


def undisturbed(make: Callable[[], T], discard: Callable[[T], None]) -> T:
    """What `make` makes, in a thread, where no interrupt comes in its middle. One that comes meanwhile is raised here
    at once, and what is made is given to `discard` as soon as it is there."""
    if threading.current_thread() is not threading.main_thread():
        return make()
    lock, made, failed, left = threading.Lock(), list[T](), list[BaseException](), list[bool]()

    def work() -> None:
        try:
            thing = make()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            failed.append(error)
            return
        with lock:
            made.append(thing)
            if not left:
                return
        discard(thing)

    thread = threading.Thread(target=work, name="treadle-launch", daemon=True)
    try:
        thread.start()
        thread.join()
    except BaseException:
        with lock:
            left.append(True)
            late = made[:]
        for thing in late:
            discard(thing)
        raise
    if failed:
        raise failed[0]
    return made[0]


__all__ = ["Missed", "undisturbed"]
