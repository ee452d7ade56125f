"""The arguments of task vectors, and errors that are also those of AllenAct's vectors or of Python.

The arguments unite two generations of AllenAct's constructors. All after the second are keywords, but older scripts
give more by position. The generations differ in the third argument: a bool is the older one's
`auto_resample_when_done`; any other object is the newer one's callback sensors.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

from treadle.checks import check_seconds, check_whole
from treadle.errors import StartupFailed, UsageError, WorkerDied, WorkerTimeout
from treadle.tasks.core import SensorSuite
from treadle.wire.carried import CannotTravel, why_not
from treadle.worker.options import WorkerOptions

Init = TypeVar("Init", bound=Callable[..., None])
START_METHODS = ("forkserver", "spawn", "fork")


class Default(str):
    """The default of an argument; its identity shows that the argument was not given."""


DEFAULT_METHOD = Default("forkserver")

OLDER = (
    "auto_resample_when_done",
    "multiprocessing_start_method",
    "mp_ctx",
    "metrics_out_queue",
    "should_log",
    "max_processes",
)
NEWER = (
    "callback_sensors",
    "auto_resample_when_done",
    "multiprocessing_start_method",
    "mp_ctx",
    "should_log",
    "max_processes",
    "read_timeout",
)
OLDER_SINGLE = ("auto_resample_when_done", "should_log", "metrics_out_queue")
NEWER_SINGLE = ("callback_sensor_suite", "auto_resample_when_done", "should_log")


def in_either_order(older: tuple[str, ...], newer: tuple[str, ...]) -> Callable[[Init], Init]:
    """Return a decorator of constructors that also accept the arguments after the second by position.

    Args:
        older: their names if the third argument is a bool.
        newer: their names otherwise.

    The constructor raises TooManyArguments for too many arguments by position.
    """

    def door(init: Init) -> Init:
        @wraps(init)
        def called(self: Any, *values: Any, **given: Any) -> None:
            names = older if len(values) > 2 and isinstance(values[2], bool) else newer
            if len(values) > len(names) + 2:
                raise TooManyArguments(f"{len(values)} arguments by position, at most {len(names) + 2} are known")
            init(self, *values[:2], **{**given, **dict(zip(names, values[2:]))})

        return cast(Init, called)

    return door


class TooManyArguments(UsageError, TypeError):
    """A constructor was given too many arguments by position."""


def sampler_args(args: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return a copy of the samplers' dicts of keyword arguments.

    Raises UsageError unless `args` is a sequence of dicts with at least one dict.
    """
    if isinstance(args, dict):
        keys = ", ".join(map(repr, args))
        raise UsageError(
            f"the samplers' arguments are a list with one dict for each sampler, got one dict with {keys}. Put it into "
            "a list for one sampler, or [dict(...) for slot in range(n)] for n"
        )
    if args is not None and (isinstance(args, str) or not isinstance(args, Sequence)):
        raise UsageError(f"the samplers' arguments are a list with one dict for each sampler, got {args!r}")
    if args is None or len(args) == 0:
        raise UsageError("number of processes to be created should be greater than 0: give one dict for each sampler")
    for i, each in enumerate(args):
        if not isinstance(each, dict):
            raise UsageError(f"sampler {i}: its arguments must be a dict, got {type(each).__name__}")
    return [dict(each) for each in args]


@dataclass(frozen=True)
class Starting:
    """The way to start worker processes.

    Attributes:
        context: the multiprocessing context, for `vector.mp_ctx`; the pool starts its workers itself.
        method: "forkserver", "spawn" or "fork".
    """

    context: Any
    method: str


def starting(method: str | None, context: Any) -> Starting:
    """Make a `Starting` of `multiprocessing_start_method` and `mp_ctx`.

    Raises UsageError unless exactly one is given, and for an unknown method.
    """
    if context is not None and method is DEFAULT_METHOD:
        method = None
    if context is not None and not hasattr(context, "get_start_method"):
        raise UsageError(f"mp_ctx is a context of multiprocessing, got {context!r}")
    if (context is None) == (method is None):
        told = (
            "" if context is None else f" (mp_ctx starts by {context.get_start_method()!r}, and {method!r} was given)"
        )
        raise UsageError(f"Exactly one of `multiprocessing_start_method`, and `mp_ctx` must be not None{told}.")
    if method is None:
        return Starting(context, context.get_start_method())
    if method not in START_METHODS:
        text = f"multiprocessing_start_method must be one of {', '.join(START_METHODS)}"
        raise UsageError(f"{text}: cannot find context for {method!r}")
    return Starting(multiprocessing.get_context(method), str(method))


def worker_count(max_processes: int | None, n: int) -> int:
    """Return the number of workers for n samplers. Raises UsageError for `max_processes` below 1."""
    check_whole(max_processes=max_processes)
    return n if max_processes is None else min(max_processes, n)


def start_limit(start_timeout: float | None, read_timeout: float | None) -> float:
    """Return the seconds in which all samplers must be made. Raises UsageError for an invalid `read_timeout`."""
    check_seconds("read_timeout", read_timeout, none=True)
    most = WorkerOptions.start_timeout if start_timeout is None else start_timeout
    return most if read_timeout is None else max(most, 5 * read_timeout)


def callback_suite(sensors: Any) -> SensorSuite[Any] | None:
    """Return a suite of callback sensors, None without sensors. AllenAct's own suites are used as they are."""
    if sensors is None or hasattr(sensors, "get_observations"):
        return sensors
    suite: SensorSuite[Any] = SensorSuite(sensors)
    return suite if suite.sensors else None


class NoSuchSlot(UsageError, IndexError):
    """An index beyond the slots that are not paused."""


class NotSupported(UsageError, NotImplementedError):
    """An operation that AllenAct's vectors refuse with NotImplementedError.

    Examples are unequal observation spaces, an unknown command and an unknown render mode.
    """


class FirstTaskFailed(StartupFailed, RuntimeError):
    """A sampler raised RuntimeError while it was made, most likely because it has no first task."""


class StartTimedOut(StartupFailed, TimeoutError):
    """Samplers were not ready within the time limit."""


class StartDied(StartupFailed, EOFError):
    """A worker died while it made its samplers."""


def listed(name: str, given: Any, what: str) -> list[Any]:
    """Return the values for every slot as a list. Raises UsageError for a string or an object without iteration."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"{name}: {what} must be a sequence, got {type(given).__name__}. Nothing was sent")
    return list(given)


def start_error(error: StartupFailed) -> StartupFailed:
    """Return the failure as the subclass for its first cause, or unchanged if no subclass fits."""
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
    """Return the error with the name of the sampler's argument that caused it, if one did."""
    for name, value in args.items():
        reason = why_not(value, start_method)
        if reason is not None:
            return CannotTravel(error.slot, reason, f"the argument {name!r} of its sampler")
    return error
