"""The errors of Treadle.

Every error of a worker has its place (`Where`) and the remote traceback as text. Its fields are attributes, so that a
program can act on them. All errors pickle and copy with their fields.
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
    """The place of a failure. None means unknown, or not applicable.

    Attributes:
        slot: number of the environment's slot in the pool, 0-based.
        worker: the worker that ran the slot; None for the caller's own slots.
        pid: the worker's process id.
        phase: init | reset | step | call | state | stream | policy | write | unpickle | close; for samplers also
            update | rollout.
        step: number of steps in the slot's current episode, the failing one included.
        episode: number of the episode, 0-based. In vectors it is counted for the slot. In collections, and in sampling
            by index, it is the index in the run. In other sampling it is counted for the worker; with several
            environments in a worker, for the one that failed.
        seed: the seed of the slot's last seeded reset.
        last_action: the action of the failing step.
        item: the item of a batch that planning stepped, 0-based.
        node: the address of the worker's machine, if workers run on several machines.
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
    """Base of all errors that this package raises on purpose. Keyword arguments become attributes."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        Exception.__init__(self, message)
        self.__dict__.update(fields)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __repr__(self) -> str:
        return Exception.__repr__(self)  # not the __repr__ of a class that it is joined with, see `task_raised`


class UsageError(TreadleError, ValueError):
    """An argument is wrong, or a call is not allowed now; nothing was sent to a worker."""


class LayoutsDiffer(UsageError):
    """Slots of one pool have spaces of different layouts (keys, shapes or dtypes)."""


class ClosedPool(UsageError):
    """An object was used after close()."""


class MissingExtra(UsageError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


@contextmanager
def needed(why: str, extra: str) -> Iterator[None]:
    """Run a block that imports packages of an extra. Raises MissingExtra if one cannot be imported."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{why} ({error}): pip install 'treadle[{extra}]'") from error


class SpaceError(TreadleError, ValueError):
    """A value does not fit its space. Attributes: where, path (of the leaf), expected, got."""

    where: Where = Where()
    path: tuple[Any, ...] = ()
    expected: str = ""
    got: str = ""


class BadAction(SpaceError):
    """An action does not fit its space; environments were not stepped.

    `where.slot` is the first bad row; None if the number of actions is wrong.
    """


class NoBatch(BadAction, TypeError):
    """Actions are not a batch, but a single number, for example."""


class WorkerError(TreadleError):
    """Base of failures in a worker.

    Attributes:
        where: the place.
        remote_traceback: text of the traceback in the worker; "" without a traceback.
        partial: the other slots' results when this was raised; None if the interface has none.
        repro: the `Repro` that `treadle.replay` plays and `repro.save(path)` keeps; None: nothing was recorded.
        trail: a log of the slot's work until the failure, as the repro has it; None: nothing was recorded.
    """

    where: Where = Where()
    remote_traceback: str = ""
    partial: Any = None
    repro: Any = None
    trail: Any = None


class BadObservation(SpaceError, WorkerError):
    """The environment returned an observation that does not fit its declared layout (shape, dtype, keys)."""


class TaskRaised(WorkerError):
    """The environment or task raised; the worker goes on.

    This error is also an instance of the original's class if the original could be pickled, unpickled and shown. Then
    `__cause__` is the original with its notes and causes, and its attributes are also attributes of this error, unless
    the name is taken. Otherwise the error is of the nearest built-in class, and `__cause__` is a `RemoteTraceback`. An
    error in the caller's own process keeps its frames in the cause's `__traceback__`.

    Attributes:
        error_type: the name of the original's class.
        error_message: its text.
    """

    error_type: str = ""
    error_message: str = ""


class WorkerDied(WorkerError, EOFError):
    """A worker process ended unexpectedly.

    Attributes:
        exit_code: its exit status; None if a signal ended it.
        signal: the signal's name such as "SIGSEGV"; None without a signal.
        stderr: the last lines that the worker wrote to its stderr.
        stack: the Python stack at the moment of death; "" if it could not be recorded (SIGKILL).
        out_of_memory: True if it was killed while the kernel counted an out-of-memory kill, in its control group or on
            the machine. The kernel may have counted another process.
    """

    exit_code: int | None = None
    signal: str | None = None
    stderr: tuple[str, ...] = ()
    stack: str = ""
    out_of_memory: bool = False


class WorkerTimeout(WorkerError, TimeoutError):
    """A worker missed its deadline. Attributes: elapsed and limit (seconds), stack (of the worker at that moment)."""

    elapsed: float = 0.0
    limit: float = 0.0
    stack: str = ""


class StartupFailed(WorkerError):
    """One or more workers could not start; all workers were ended. `failures` holds one WorkerError each."""

    failures: tuple[WorkerError, ...] = ()


class StartupRefused(StartupFailed, UsageError):
    """Workers could not start because of a wrong argument.

    Examples are an unknown environment, a package that is not installed, and an object that is not a policy. The text
    is that of the UsageError in the worker, with the place.
    """


class BrokenPool(WorkerError, EOFError):
    """A worker died earlier with on_failure="raise": the pool can only be closed. `__cause__` is the first failure."""


class ArenaError(TreadleError, MemoryError):
    """Shared memory could not be allocated. Attributes: asked and available (bytes)."""

    asked: int = 0
    available: int | None = None


class TooManyFiles(TreadleError, OSError):
    """This process, or (errno ENFILE) the machine, cannot open more files. Raise the limit, or use fewer workers.

    Attributes:
        limit: the number of files that this process may open, including sockets, pipes and mapped files (`ulimit -n`).
    """

    errno: int = EMFILE  # a class attribute, as OSError's constructor does not run
    limit: int = 0


class StateError(UsageError):
    """A state cannot be captured, or is not a state of the environment that should take it."""


class StateDiffers(TreadleError):
    """The same state and actions did not give the same trajectory: the state is incomplete.

    Attributes:
        step: the step that differs, from 0 after the state was put back.
        field: the field that differs, such as "observation" or "info['lives']".
        first, again: the field's values.
    """

    step: int = -1
    field: str = ""
    first: Any = None
    again: Any = None


class RemoteTraceback(Exception):
    """Stands in for an exception that could not be rebuilt here; its text is the remote traceback."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0]) if self.args else ""


# members that run implicitly when an instance is made, read, written, copied or deleted
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
    """Make a TaskRaised that is an `original` as well, so that `except ValueError` still catches an env's ValueError.

    If the two cannot be joined without running code of the original's class (see `runs_unasked`), its nearest base that
    can be joined takes its place. Only subclasses of Exception are joined. Another pool's WorkerError (WorkerDied,
    WorkerTimeout, ...) is not a failure of this pool's workers: its nearest base that is not a WorkerError is joined.

    Args:
        original: the class; None: unknown.
        message: the text.
        members: the exceptions in an `original` that is an ExceptionGroup.
        **fields: attributes.
    """
    bases = type.mro(original) if isinstance(original, type) and issubclass(original, Exception) else ()
    for base in map(original_of, bases):
        if issubclass(TaskRaised, base) or (issubclass(base, WorkerError) and not issubclass(base, TaskRaised)):
            continue
        try:
            cls = _joined.get(base) or _join(base)
            error = without_init(cls, *((message, members) if issubclass(cls, BaseExceptionGroup) else ()))
        except (TypeError, ValueError):  # they cannot be joined, or `__new__` needs more arguments: try the next base
            continue
        _joined[base] = cls
        TreadleError.__init__(error, message, **fields)
        return error
    return TaskRaised(message, **fields)


def original_of(cls: type) -> type:
    """Return the class that `cls` was joined with to make a TaskRaised; any other class unchanged."""
    return next((original for original, joined in _joined.items() if joined is cls), cls)


def attributes_of(error: BaseException) -> dict[str, Any]:
    """Return the exception's own `__dict__`, without its class's methods for reading and writing attributes."""
    attributes: dict[str, Any] = vars(BaseException)["__dict__"].__get__(error)
    return attributes


def without_init(cls: type[T], *args: Any) -> T:
    """Make an instance by the `__new__` of the nearest built-in base. Raises TypeError or ValueError."""
    base: Any = cls
    while vars(builtins).get(base.__name__) is not base:
        base = base.__base__
    made: T = base.__new__(cls, *args)
    return made


def runs_unasked(cls: type) -> bool:
    """Return True if this exception class, or one of its bases, has its own code in a member of `_UNASKED`."""
    for base in type.mro(cls):
        if type(base) is not type:
            return True
        if vars(builtins).get(base.__name__) is base:
            continue
        for name in _UNASKED & vars(base).keys():
            # a `__dict__` of type GetSetDescriptorType is Python's own
            if name != "__dict__" or type(vars(base)[name]) is not GetSetDescriptorType:
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
