"""Errors of task vectors: each is ours and one that users of AllenAct's vectors catch, or Python's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treadle.errors import StartupFailed, UsageError, WorkerDied, WorkerTimeout
from treadle.wire.carried import CannotTravel, why_not


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


def listed(name: str, given: Any, what: str) -> list[Any]:
    """What was given for every slot, as a list. Raises UsageError for what is no sequence of values."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"{name}: {what} must be a sequence, got {type(given).__name__}. Nothing was sent")
    return list(given)


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


def cannot_travel(error: CannotTravel, args: dict[str, Any], start_method: str | None) -> CannotTravel:
    """The same, naming the argument of the sampler's that is the cause, if it is one."""
    for name, value in args.items():
        reason = why_not(value, start_method)
        if reason is not None:
            return CannotTravel(error.slot, reason, f"the argument {name!r} of its sampler")
    return error
