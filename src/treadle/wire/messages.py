"""The only things that travel between a caller and its workers (numbers of fixed shape travel through the arena).

This file also copies the values that environments return, as environments may change their arrays later.
"""

from __future__ import annotations

import builtins
import copy
import pickle
import reprlib
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from enum import IntEnum
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from treadle import pickling
from treadle.errors import Where, attributes_of, original_of
from treadle.spaces import Mismatch
from treadle.wire.info_rows import NUMBERS

_FINAL = (type(None), bool, int, float, str, bytes, np.generic)


def portable(action: Any) -> Any:
    """Return the action itself when it is small and plain, else its repr."""
    if isinstance(action, _FINAL):
        return action
    if isinstance(action, np.ndarray) and action.nbytes <= 4096 and not action.dtype.hasobject:
        return action.copy()
    return shown(action)


def checked_info(info: Any) -> Any:
    """Return an info as the environment returned it, not empty.

    Raises TypeError for a value that is not a dict, and ValueError for a dict that holds itself: it has no columns.
    """
    if type(info) is not dict and not isinstance(info, Mapping):
        raise TypeError(f"an info must be a dict, got {type(info).__name__}")
    for value in info.values():
        if isinstance(value, dict):
            _check_nested(info, set(), set())
            break
    return info


def _check_nested(info: Any, above: set[int], sound: set[int]) -> None:
    """Raise ValueError for a dict that holds itself. `above`: dicts that hold this one; `sound`: those checked."""
    if id(info) in above:
        raise ValueError("an info must not hold itself")
    above.add(id(info))
    for value in info.values():
        if isinstance(value, dict) and id(value) not in sound:
            _check_nested(value, above, sound)
    above.remove(id(info))
    sound.add(id(info))


def snapshot(value: Any) -> Any:
    """Return a copy that later steps of the environment cannot change, as pickling makes between processes."""
    try:
        return copied(value)
    except RecursionError:  # it holds itself
        return _deeply_copied(value)


def numbers_copied(infos: Mapping[int, Any]) -> dict[int, Any] | None:
    """Return copies of infos that are dicts of numbers; None where one has other values."""
    copies, are_numbers = {}, NUMBERS.issuperset
    for i, info in infos.items():
        if type(info) is not dict or not are_numbers(map(type, info.values())):
            return None
        copies[i] = info.copy()
    return copies


def copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: item if type(item) in _FINAL else copied(item) for key, item in value.items()}
    if isinstance(value, _FINAL):
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.copy()
    return _deeply_copied(value)


def _deeply_copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except (Exception, SystemExit):  # noqa: BLE001 - a foreign __deepcopy__; between processes it would be pickled
        return pickle.loads(pickling.dumps(value))


MOST = 65536  # characters that the text of an exception may have
DEEPEST = 16  # containers in one another
MEMBERS, GENERATIONS = 64, 4  # exceptions of a group that travel on their own, and groups in one another
CAUSES = 8  # causes that travel with an exception

SPEECHLESS = "<its __str__ failed>"

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 400
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 20

_PLACING = "treadle_"  # prefix of attributes that hold where an exception happened: see `Server._raised`


class Op(IntEnum):
    """The operation that a request asks of a worker's slots."""

    RESET = 1  # payload: {slot: (seed, options)}
    STEP = 2  # actions are in the arena; payload: (slots or None for all, actions by message or None), or nothing
    CALL = 3  # payload: {slot: (method name, args, kwargs)}
    STREAM = 4  # payload: {slot: order}; many replies
    CLOSE = 5
    TRACE = 6  # payload: (directory, worker) to record into from now on, or (None, worker)


CLOSING = 2**62  # the number of the last request: above all others, so that it also stops every stream


@dataclass(frozen=True, slots=True)
class Request:
    """One numbered order to one worker. `block`: the rows that the answer goes to; -1: none."""

    id: int
    op: Op
    payload: Any = None
    block: int = -1


class Extras(NamedTuple):
    """The parts of a reply beyond the arena's rows. Keys are slots; a slot without such a part is not in the dict.

    Attributes:
        infos: non-empty info dicts (reset, step; `InfoRows` where they are numbers) or results (call, stream).
        loose: observation leaves without a fixed shape, in layout order.
        finals: (final_info, leaves of the final observation that its row does not hold, by index) of slots that moved
            on within this step.
        raised: failures, one slot each; the other slots' results are good.
    """

    infos: Mapping[int, Any]
    loose: dict[int, list[Any]]
    finals: Mapping[int, tuple[dict[str, Any], dict[int, Any] | None]]
    raised: dict[int, Raised]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to request `id`. Streams answer many times; only the last has `last`."""

    id: int
    extras: Extras | None = None
    last: bool = True


class Frames:
    """The traceback of an exception as it was raised, for code in the same process.

    Pickling or taking it drops it here, so that frames and their objects are held no longer than needed.
    """

    __slots__ = ("_traceback",)

    def __init__(self, error: BaseException | None = None) -> None:
        # not by its name, which an exception's class may have given another meaning
        self._traceback = None if error is None else vars(BaseException)["__traceback__"].__get__(error)

    def take(self) -> TracebackType | None:
        """Return the traceback; None where this has come from another process, or it was taken before."""
        traceback, self._traceback = self._traceback, None
        return traceback

    def __deepcopy__(self, memo: Any) -> Frames:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        self._traceback = None
        return Frames, ()


@dataclass(frozen=True)
class Raised:
    """An exception as text, and as a pickle where it can be rebuilt from one.

    Attributes:
        frames: where it was raised, for the caller's own process.
        trail: what the program did until then, for a repro (`play.player`).
        builtin: the name of the nearest built-in class; "": no exception was raised.
        pickled: it, and its causes: see `_pickled`.
        members: of an exception group.
    """

    error_type: str
    message: str
    traceback: str
    phase: str
    step: int | None = None
    episode: int | None = None
    seed: int | None = None
    last_action: Any = None
    path: tuple[Any, ...] | None = None
    expected: str = ""
    got: str = ""
    trail: Any = None
    frames: Frames = field(default_factory=Frames, repr=False, compare=False)
    builtin: str = ""
    pickled: bytes | None = None
    members: tuple[Raised, ...] = ()

    @classmethod
    def of(
        cls, error: BaseException, phase: str, *, catch: Any = BaseException, generation: int = 0, **where: Any
    ) -> Raised:
        """Make it of an exception. Raises nothing of the kind `catch`, whatever the exception's own methods do."""
        kind, held = type(error), attributes_of(error)
        for name in [name for name in held if type(name) is str and name.startswith(_PLACING)]:
            del held[name]
        if issubclass(kind, Mismatch):  # `isinstance` would also read the exception's `__class__`
            misfit: Any = error
            where.update(path=tuple(misfit.path), expected=misfit.expected, got=misfit.got)
        inner: tuple[BaseException, ...] = ()
        if issubclass(kind, BaseExceptionGroup) and generation < GENERATIONS:
            inner = BaseExceptionGroup.exceptions.__get__(error)[:MEMBERS]  # type: ignore[attr-defined]
        return cls(
            (name := name_of(original_of(kind))),
            (message := _said(error, catch)),
            _traceback_of(error, f"{name}: {message}", catch),
            phase,
            frames=Frames(error),
            builtin=next(base.__name__ for base in type.mro(kind) if vars(builtins).get(name_of(base)) is base),
            pickled=_pickled(error, catch),
            members=tuple(cls.of(each, phase, catch=catch, generation=generation + 1) for each in inner),
            **where,
        )

    def rebuilt(self) -> BaseException | None:
        """Return the exception; None where it cannot be unpickled here."""
        try:
            return None if self.pickled is None else _unpickled(self.pickled)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - foreign code, which may lack its modules or fail in any way
            return None


def _pickled(error: BaseException, catch: Any) -> bytes | None:
    """Return the exception pickled with as many causes as can be; None if it cannot be pickled, unpickled, shown."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) <= CAUSES and not any(cause is each for each in chain):
        chain.append(cause)
        cause = vars(BaseException)["__cause__"].__get__(cause)
    while chain:
        try:
            data = pickling.dumps([(each, attributes_of(each).get("__notes__")) for each in chain])
            twin = _unpickled(data)
            if type(twin) is type(error) and f"{twin}{twin!r}" and traceback.format_exception(twin):
                return data
        except catch:  # whatever its own methods raise
            pass
        chain.pop()
    return None


def _unpickled(data: bytes) -> BaseException:
    chain = pickling.known(data)
    above: BaseException | None = None
    for error, notes in chain:
        held = attributes_of(error)  # raises TypeError for what is not an exception
        if notes is not None:
            held["__notes__"] = notes  # a `__reduce__` may have left them out
        if above is not None:
            vars(BaseException)["__cause__"].__set__(above, error)
        above = error
    found: BaseException = chain[0][0]
    return found


def name_of(cls: type) -> str:
    """Return the name of a class, whatever its metaclass does."""
    return str.__str__(vars(type)["__qualname__"].__get__(cls))


def _traceback_of(error: BaseException, said: str, catch: Any) -> str:
    """Return the text of its traceback, with those of its causes. Raises nothing of the kind `catch`."""
    try:
        text = "".join(traceback.format_exception(error))
    except catch:  # causes that are not exceptions, for example
        frames = vars(BaseException)["__traceback__"].__get__(error)
        text = "".join(traceback.format_tb(frames)) + f"{said}\n"
    return _cut(text, 4 * MOST)


def _said(error: BaseException, catch: Any) -> str:
    try:
        return _cut(str.__str__(str(error)), MOST)  # `__str__` may return a subclass of str with methods of its own
    except catch:
        return SPEECHLESS


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def shown(value: Any, catch: Any = Exception) -> str:
    """Return a short repr of any object. Raises nothing of the kind `catch`."""
    try:
        return _cut(str.__str__(_SHORT.repr(value)), 1000)
    except catch:
        return f"<{name_of(type(value))}>"


@dataclass(frozen=True)
class WorkerSpec:
    """Which slots a worker runs and how to build them.

    Attributes:
        programs: a pickled list of factories, one a slot.
        descriptors: how many descriptors follow, in messages of their own; see `carried.py`.
        trace: the directory that its events are written into; None: it records none. See `recorder.py`.
    """

    index: int
    slots: tuple[int, ...]
    programs: bytes
    descriptors: int = 0
    trace: str | None = None

    def build(self) -> list[Any]:
        return pickle.loads(self.programs)


@dataclass(frozen=True)
class Hello:
    """A worker's first message: its slots are built. One description a slot (spaces and metadata)."""

    pid: int
    descriptions: tuple[Any, ...] = ()
    failed: tuple[int, Raised] | None = None  # (slot, why) when a constructor raised; the worker then exits


@dataclass(frozen=True)
class ExitReport:
    """How a worker ended.

    `code` and `signal` are both None while it is still running, or when its end is unknown. `oom`: the evidence that
    memory ran out, "" when there is none, None when the kernel does not count. `at`: where a worker on another machine
    was. `lines`: how many it wrote, of which `stderr` has the last.
    """

    code: int | None = None
    signal: str | None = None
    stderr: tuple[str, ...] = ()
    stack: str = ""
    forced: bool = False
    oom: str | None = None
    at: Where | None = None
    lines: int = 0


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def without_failing(extras: Extras, phase: str, keep: Callable[[Any], Any], catch: Any = BaseException) -> Extras:
    """Return the same reply with each slot's part as `keep` makes it (pickles it, copies it: it runs foreign code).

    A slot for which `keep` raises something of the kind `catch` has failed itself instead, with the leaf named.
    """
    raised = dict(extras.raised)
    tables: list[dict[int, Any]] = [{}, {}, {}]
    given: Any = zip(tables, extras[:3], ("info", "observation", "final_info"), strict=True)
    for made, table, what in given:
        for slot, value in table.items():
            try:
                made[slot] = keep(value)
            except catch as error:
                name = what if phase != "call" else "result"
                found = _unpicklable(value, name, catch, set())
                path, why = found or (name, Raised.of(error, phase, catch=catch))
                text = f"{path} cannot be sent to the caller: {why.message}"
                raised[slot] = replace(why, message=text, phase=phase, path=None, frames=Frames())
    infos, loose, finals = ({s: v for s, v in table.items() if s not in raised} for table in tables)
    return Extras(infos, loose, finals, raised)


def picklable(value: Any) -> Any:
    """Return the value itself. Raises what pickling it raises."""
    pickling.dumps(value)
    return value


def unsendable(value: Any, name: str, catch: Any = BaseException) -> TypeError | None:
    """Return the error that names the leaf of `value` that cannot be pickled; None when it can be."""
    found = _unpicklable(value, name, catch, set())
    return None if found is None else TypeError(f"{found[0]} cannot be sent to the caller: {found[1].message}")


def _unpicklable(value: Any, path: str, catch: Any, seen: set[int], depth: int = 0) -> tuple[str, Raised] | None:
    try:
        pickling.dumps(value)
    except catch as error:  # whatever a foreign __reduce__ raises
        items: Any = ()
        if id(value) in seen or depth > DEEPEST:
            return path, Raised.of(error, "", catch=catch)
        seen.add(id(value))
        if isinstance(value, dict):
            items = [(f"{path}[{shown(key, catch)}]", item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            items = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        elif is_dataclass(value):
            items = [(f"{path}.{name}", item) for name, item in vars(value).items()]
        for inner, item in items:
            if id(item) not in seen and (found := _unpicklable(item, inner, catch, seen, depth + 1)) is not None:
                return found
        return path, Raised.of(error, "", catch=catch)
    return None
