"""Errors of task vectors: each is ours and one that users of AllenAct's vectors catch, or Python's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.errors import StartupFailed, UsageError, WorkerDied, WorkerTimeout


class NoSuchSlot(UsageError, IndexError):
    """An index beyond the slots that are not paused."""


class NotSupported(UsageError, NotImplementedError):
    """Something that AllenAct's vectors refuse with NotImplementedError: unequal observation spaces, an unknown command
    or render mode."""


class FirstTaskFailed(StartupFailed, RuntimeError):
    """A sampler raised RuntimeError while it was made; most likely it has no first task."""


class StartTimedOut(StartupFailed, TimeoutError):
    """Samplers were not ready in time."""


class StartDied(StartupFailed, EOFError):
    """A worker died while it made its samplers."""


def start_error(error: StartupFailed) -> StartupFailed:
    """The same failure, as a subclass that says what kind it is, where there is one."""
    first = error.failures[0] if error.failures else None
    kinds: Sequence[tuple[type, type[StartupFailed]]] = (
        (WorkerTimeout, StartTimedOut),
        (WorkerDied, StartDied),
        (RuntimeError, FirstTaskFailed),
    )
    for kind, ours in kinds:
        if isinstance(first, kind):
            fields: dict[str, Any] = dict(error.__dict__)
            return ours(str(error), **fields)
    return error


__all__ = ["FirstTaskFailed", "NoSuchSlot", "NotSupported", "StartDied", "StartTimedOut", "start_error"]
