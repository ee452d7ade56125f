"""Errors of the Gymnasium face: each is ours and Gymnasium's at once, so that `except` clauses of either kind work."""

from __future__ import annotations

import multiprocessing
from typing import Any

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

from treadle.errors import ClosedPool, TreadleError, UsageError


class ClosedVector(ClosedPool, ClosedEnvironmentError):
    """Used after close()."""


class AlreadyPending(UsageError, AlreadyPendingCallError):
    """A call was begun while another is still to be waited for (`name`: reset, step or call), or while one of another
    thread is under way."""

    def __init__(self, message: str = "", name: str = "", **fields: Any) -> None:
        UsageError.__init__(self, message, name=name, **fields)


class NothingPending(UsageError, NoAsyncCallError):
    """A wait without the call it belongs to. `name`: reset, step or call."""

    __init__ = AlreadyPending.__init__  # type: ignore[assignment]


class WaitTimeout(TreadleError, multiprocessing.TimeoutError, TimeoutError):
    """The caller's patience ran out; nothing is lost: the call is still pending, and the next wait returns its result.

    Attributes:
        limit: seconds waited.
    """

    limit: float = 0.0


class SpacesDiffer(UsageError, RuntimeError, TypeError):
    """Environments of one vector have spaces that cannot be batched. Gymnasium raises one of these, by the mode."""


class WrongType(UsageError, TypeError):
    """An argument of a wrong type."""
