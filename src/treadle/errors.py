"""What can go wrong, by name.

Every error that comes out of a worker says where it happened (`Where`), carries the remote traceback as text, and
keeps its fields as attributes, so that a program can act on them. All of them pickle and copy with their fields.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EMFILE
from types import GetSetDescriptorType
from typing import Any, TypeVar


@dataclass(frozen=True)
class Where:
    """The place of a failure. None means: not known, or does not apply.

    Attributes:
        slot: which stream of experience, 0-based.
        worker: which worker ran it; None for the caller's own share.
        pid: the worker's process id.
        phase: init | reset | step | call | state | stream | close; of samplers update | rollout.
        step: steps taken in the slot's current episode, this one included.
        episode: which episode of the slot (lockstep), of the run (collecting, by index) or of the worker (sampling;
            with several environments: of the one that failed), 0-based.
        seed: what the slot's last seeded reset was given.
        last_action: the action of the failing step.
        item: of a batch that planning stepped, 0-based.
        node: the address of the machine that it ran on, where workers run on several.
    """

    slot: int | None = None
    worker: int | None = None
    pid: int | None = None
    phase: str | None = None
    step: int | None = None
    episode: int | None = None
    seed: int | None = None
    last_action: Any = None
    item: int | None = None
    node: str | None = None

    def __str__(self) -> str:
        runner = [f"worker {self.worker}"] if self.worker is not None else ["in the caller"]
        if self.pid is not None:
            runner.append(f"pid {self.pid}")
        if self.node is not None:
            runner.append(f"node {self.node}")
        who = f"slot {self.slot} ({', '.join(runner)})" if self.slot is not None else ", ".join(runner)
        if self.phase is None:
            return who
        doing = f"{self.phase} {self.step}" if self.phase == "step" and self.step is not None else self.phase
        if self.phase == "rollout" and self.step is not None:
            doing = f"step {self.step} of a rollout"
        if self.item is not None:
            doing = f"item {self.item} of a batch"
        if self.episode is not None:
            doing += f" of episode {self.episode}"
        return f"{who} in {doing}"


class TreadleError(Exception):
    """Base of everything this package raises on purpose. Keyword arguments become attributes."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        Exception.__init__(self, message)
        self.__dict__.update(fields)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __repr__(self) -> str:
        return Exception.__repr__(self)  # not that of a class it is joined with, see `task_raised`


class UsageError(TreadleError, ValueError):
    """The caller broke the protocol; nothing was sent to any worker."""


class LayoutsDiffer(UsageError):
    """Slots of one pool have spaces of different layouts (keys, shapes or dtypes)."""


class ClosedPool(UsageError):
    """Used after close()."""


class MissingExtra(UsageError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


@contextmanager
def needed(why: str, extra: str) -> Iterator[None]:
    """In the block packages are imported that an extra brings. Raises MissingExtra where one cannot be."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{why} ({error}): pip install 'treadle[{extra}]'") from error


class SpaceError(TreadleError, ValueError):
    """A value does not fit its space. Fields: where, path (of the leaf), expected, got."""

    where: Where = Where()
    path: tuple[Any, ...] = ()
    expected: str = ""
    got: str = ""


class BadAction(SpaceError):
    """Found before sending: no environment has moved. `where.slot` is the first bad row, None if the count is off."""


class NoBatch(BadAction, TypeError):
    """Actions that are no batch at all, but one number, say."""


class WorkerError(TreadleError):
    """Something went wrong in a worker.

    Attributes:
        where: the place.
        remote_traceback: text of the traceback in the worker, "" where there is none.
        partial: what the other slots had delivered when this was raised; None where the face has nothing to give.
        repro: what `treadle.replay` shows it again from, and `repro.save(path)` keeps; None: nothing was recorded.
        trail: what the program recorded of itself until then, as a repro has it; None: nothing.
    """

    where: Where = Where()
    remote_traceback: str = ""
    partial: Any = None
    repro: Any = None
    trail: Any = None


class BadObservation(SpaceError, WorkerError):
    """The environment returned an observation that is not in its declared layout (shape, dtype, keys)."""


class TaskRaised(WorkerError):
    """The environment or task raised; the worker lives on.

    It is of the original's class as well where that could be pickled, unpickled and shown, else of the nearest built-in
    class. In the first case `__cause__` is the original with its notes and causes, and attributes of it are this one's,
    too, where ours have not that name; else `__cause__` is a `RemoteTraceback`. What was raised in the caller's own
    process keeps its frames: they are the cause's `__traceback__`.

    Attributes:
        error_type: the name of the original's class.
        error_message: its text.
    """

    error_type: str = ""
    error_message: str = ""


class WorkerDied(WorkerError, EOFError):
    """A worker process ended by itself.

    Attributes:
        exit_code: its exit status, None when a signal ended it.
        signal: the signal's name such as "SIGSEGV", None otherwise.
        stderr: the last lines that the worker wrote to its stderr.
        stack: the Python stack at the moment of death, "" where none could be taken (SIGKILL).
        out_of_memory: was it killed when the kernel counted a kill for want of memory, its control group's or the
            machine's? The victim that was counted may have been another.
    """

    exit_code: int | None = None
    signal: str | None = None
    stderr: tuple[str, ...] = ()
    stack: str = ""
    out_of_memory: bool = False


class WorkerTimeout(WorkerError, TimeoutError):
    """A worker missed its deadline. Fields: elapsed and limit (seconds), stack (of the worker at that moment)."""

    elapsed: float = 0.0
    limit: float = 0.0
    stack: str = ""


class StartupFailed(WorkerError):
    """One or more workers could not start; all were stopped again. `failures` holds one WorkerError each."""

    failures: tuple[WorkerError, ...] = ()


class StartupRefused(StartupFailed, UsageError):
    """Workers could not start because of what was asked for: an environment that nobody knows, a package that is not
    installed, what is no policy. The text is that of the UsageError in the worker, and the place."""


class BrokenPool(WorkerError, EOFError):
    """A worker died earlier and on_failure="raise": the pool can only be closed. `__cause__` is the first failure."""


class ArenaError(TreadleError, MemoryError):
    """Shared memory could not be had. Fields: asked and available (bytes)."""

    asked: int = 0
    available: int | None = None


class TooManyFiles(TreadleError, OSError):
    """This process, or (errno ENFILE) the machine, may have no more files open. Raise the limit, or use fewer workers.

    Attributes:
        limit: how many this process may have open, sockets, pipes and mapped files included (`ulimit -n`).
    """

    errno: int = EMFILE  # not that of OSError, which its constructor sets
    limit: int = 0


class StateError(UsageError):
    """A state cannot be captured, or is no state of the environment that it was given to."""


class StateDiffers(TreadleError):
    """The same state and actions did not give the same trajectory: the state is incomplete.

    Attributes:
        step: at which step after the state was put back, from 0.
        field: in which field, such as "observation" or "info['lives']".
        first, again: its values.
    """

    step: int = -1
    field: str = ""
    first: Any = None
    again: Any = None


class RemoteTraceback(Exception):
    """Stands in for an exception that could not be rebuilt here; its text is the remote traceback."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0]) if self.args else ""


# what runs unasked when an instance is made, read, written, copied about or let go
_UNASKED = frozenset(
    (
        *("__new__", "__init_subclass__", "__class__", "__dict__", "__del__", "__bool__", "__len__"),
        *("__getattribute__", "__getattr__", "__setattr__", "__delattr__", "args", "with_traceback", "add_note"),
        *("__cause__", "__context__", "__suppress_context__", "__traceback__", "__notes__"),
    )
)
T = TypeVar("T", bound=BaseException)
_joined: dict[type, type[TaskRaised]] = {}


def task_raised(
    original: type | None, message: str, members: Sequence[BaseException] = (), **fields: Any
) -> TaskRaised:
    """A TaskRaised that is an `original` as well, so that `except ValueError` still catches an env's ValueError.

    Where the two cannot be joined without running code of the original's (see `runs_unasked`), the nearest of its bases
    with which that can be done takes its place; only subclasses of Exception do. Another pool's trouble (WorkerDied,
    WorkerTimeout, ...) is not this one's: of those, too, it is the nearest base that is something else.

    Args:
        original: the class; None: unknown.
        message: the text.
        members: what an `original` that is an ExceptionGroup holds.
        **fields: attributes.
    """
    bases = type.mro(original) if isinstance(original, type) and issubclass(original, Exception) else ()
    for base in map(original_of, bases):
        if issubclass(TaskRaised, base) or (issubclass(base, WorkerError) and not issubclass(base, TaskRaised)):
            continue
        try:
            cls = _joined.get(base) or _join(base)
            error = without_init(cls, *((message, members) if issubclass(cls, BaseExceptionGroup) else ()))
        except (TypeError, ValueError):  # they cannot be joined, or its `__new__` wants more: perhaps a base can be
            continue
        _joined[base] = cls
        TreadleError.__init__(error, message, **fields)
        return error
    return TaskRaised(message, **fields)


def original_of(cls: type) -> type:
    """The class that `cls` was joined with to be a TaskRaised too; any other class itself."""
    return next((original for original, joined in _joined.items() if joined is cls), cls)


def attributes_of(error: BaseException) -> dict[str, Any]:
    """What is kept in the exception itself, to be read and written whatever its class makes of that."""
    attributes: dict[str, Any] = vars(BaseException)["__dict__"].__get__(error)
    return attributes


def without_init(cls: type[T], *args: Any) -> T:
    """An instance as the built-in class makes it that it is laid out like. Raises TypeError or ValueError."""
    base: Any = cls
    while vars(builtins).get(base.__name__) is not base:
        base = base.__base__
    made: T = base.__new__(cls, *args)
    return made


def runs_unasked(cls: type) -> bool:
    """Does this class of exceptions, or a base of it, have code of its own that runs unasked?"""
    for base in type.mro(cls):
        if type(base) is not type:
            return True
        if vars(builtins).get(base.__name__) is base:
            continue
        for name in _UNASKED & vars(base).keys():
            if name != "__dict__" or type(vars(base)[name]) is not GetSetDescriptorType:  # the latter: Python's own
                return True
    return False


def _join(original: type[Any]) -> type[TaskRaised]:
    if runs_unasked(original):
        raise TypeError(f"{original} runs code of its own")

    def reduce(self: TaskRaised, protocol: int = 2) -> tuple[Any, ...]:
        members = getattr(self, "exceptions", ()) if isinstance(self, BaseExceptionGroup) else ()
        return _rebuild, (original, str(self), tuple(members), self.__dict__)

    body = {
        "__module__": __name__,
        "__doc__": f"A {original.__name__} that an environment raised.",
        "__init__": TreadleError.__init__,
        "__str__": TreadleError.__str__,
        "__repr__": TreadleError.__repr__,
        "__reduce__": reduce,
        "__reduce_ex__": reduce,
    }
    bases = (original,) if issubclass(original, TaskRaised) else (TaskRaised, original)
    return type(f"TaskRaised[{original.__name__}]", bases, body)


def _rebuild(
    original: type[Exception], message: str, members: tuple[BaseException, ...], fields: dict[str, Any]
) -> TaskRaised:
    return task_raised(original, message, members, **fields)
