"""The pools that are open in this process: closed at its exit, and out of use in its forks."""

from __future__ import annotations

import atexit
import os
import weakref
from functools import cache
from typing import Protocol


class Closable(Protocol):
    """What a pool must know."""

    def close(self) -> None: ...

    def disown(self) -> None:
        """This process is a fork of the one that the pool belongs to."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def note(pool: Closable) -> None:
    """It is open from now on."""
    _watch_this_process()
    _open.add(pool)


def forget(pool: Closable) -> None:
    """It is closed."""
    _open.discard(pool)


@cache
def _watch_this_process() -> None:
    atexit.register(_at_exit)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_fork)


def _at_exit() -> None:
    for pool in list(_open):
        pool.close()
    from treadle.pool import forkserver

    forkserver.stop()


def _in_fork() -> None:
    for pool in list(_open):
        pool.disown()


__all__ = ["forget", "note"]
