"""Interrupts (Ctrl-C) that would be missed while the caller waits for something that may take minutes.

Python raises KeyboardInterrupt wherever the main thread happens to be. In the callback of a weak reference or a
`__del__` (the garbage collector runs them at any time) it is only reported to `sys.unraisablehook` and forgotten, and
the wait goes on as if nobody had pressed a key.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Self


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


__all__ = ["Missed"]
