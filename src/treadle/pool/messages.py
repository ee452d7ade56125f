"""The only things that travel between a caller and its workers (numbers of fixed shape travel through the arena)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import IntEnum
from types import TracebackType
from typing import Any, NamedTuple

from treadle import pickling
from treadle.errors import Where
from treadle.pool.original import DEEPEST, Original, shown, traceback_of
from treadle.spaces import Mismatch


class Op(IntEnum):
    """What a request asks of a worker's slots."""

    RESET = 1  # payload: {slot: (seed, options)}
    STEP = 2  # actions are in the arena; payload: (slots or None for all, actions by message or None), or nothing
    CALL = 3  # payload: {slot: (method name, args, kwargs)}
    STREAM = 4  # payload: {slot: order}; many replies
    MAP = 5  # payload: {slot: Mapping}, the same for all slots
    CLOSE = 6


CLOSING = 2**62  # the number of the last request: above all others, so that it also stops every stream


@dataclass(frozen=True, slots=True)
class Request:
    """One numbered order to one worker. `block` says which rows the answer goes to; -1: none."""

    id: int
    op: Op
    payload: Any = None
    block: int = -1


class Extras(NamedTuple):
    """What a reply says beyond the arena's rows. Keys are slots; a slot without a word is not in the dict.

    Attributes:
        infos: non-empty info dicts (reset, step; `InfoRows` where they are numbers) or results (call, stream).
        loose: observation leaves without a fixed shape, in layout order.
        finals: (final_info, leaves of the final observation that its row does not tell, by index) of slots that moved
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
    """The traceback of an exception as it was raised, for whoever is in the same process. There it stays: to pickle
    this is to let go of it, as it is to take it, so that frames and what they know are held no longer than needed."""

    __slots__ = ("_traceback",)

    def __init__(self, error: BaseException | None = None) -> None:
        # not by the name, which an exception's class may have given another meaning
        self._traceback = None if error is None else vars(BaseException)["__traceback__"].__get__(error)

    def take(self) -> TracebackType | None:
        """The traceback; None where this has come from elsewhere, or it was taken before."""
        traceback, self._traceback = self._traceback, None
        return traceback

    def __deepcopy__(self, memo: Any) -> Frames:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        self._traceback = None
        return Frames, ()


@dataclass(frozen=True)
class Raised:
    """An exception as text, and as the data of which it can be rebuilt; `original` is None where there was none.
    `frames`: where it was raised, for the caller's own process. `trail`: what the program did until then, for a
    repro (`sample.rollout_slot`)."""

    error_type: str
    message: str
    traceback: str
    phase: str
    step: int | None = None
    episode: int | None = None
    seed: int | None = None
    last_action: Any = None
    original: Original | None = None
    path: tuple[Any, ...] | None = None
    expected: str = ""
    got: str = ""
    trail: Any = None
    frames: Frames = field(default_factory=Frames, repr=False, compare=False)

    @classmethod
    def of(cls, error: BaseException, phase: str, *, catch: Any = BaseException, **where: Any) -> Raised:
        """Raises nothing of the kind `catch`, whatever the exception's own methods do."""
        original = Original.of(error, catch)
        if issubclass(type(error), Mismatch):  # `isinstance` would ask it, too
            misfit: Any = error
            where.update(path=tuple(misfit.path), expected=misfit.expected, got=misfit.got)
        text = traceback_of(error, original, catch)
        return cls(original.name, original.message, text, phase, original=original, frames=Frames(error), **where)


@dataclass(frozen=True)
class WorkerSpec:
    """Which slots a worker runs and how to build them.

    Attributes:
        programs: a pickled list of factories, one a slot.
        descriptors: how many of them follow, in messages of their own; see `carried.py`.
    """

    index: int
    slots: tuple[int, ...]
    programs: bytes
    descriptors: int = 0

    def build(self) -> list[Any]:
        return pickle.loads(self.programs)


@dataclass(frozen=True)
class Hello:
    """A worker's first word: its slots are built. One description a slot (spaces and metadata)."""

    pid: int
    descriptions: tuple[Any, ...] = ()
    failed: tuple[int, Raised] | None = None  # (slot, why) when a constructor raised; the worker then exits


@dataclass(frozen=True)
class ExitReport:
    """How a worker ended. code None and signal None: it is still running, or nobody could tell. `oom`: what says that
    memory ran out, "" when nothing does, None when nobody counts. `at`: what one elsewhere was doing."""

    code: int | None = None
    signal: str | None = None
    stderr: tuple[str, ...] = ()
    stack: str = ""
    forced: bool = False
    oom: str | None = None
    at: Where | None = None


def without_failing(extras: Extras, phase: str, keep: Callable[[Any], Any], catch: Any = BaseException) -> Extras:
    """The same reply, of what `keep` makes of each slot's part (pickles it, copies it: it runs foreign code). A slot
    with which it fails has failed itself instead, the leaf named; with what is of the kind `catch`."""
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
                raised[slot] = Raised(why.error_type, text, why.traceback, phase, original=why.original)
    infos, loose, finals = ({s: v for s, v in table.items() if s not in raised} for table in tables)
    return Extras(infos, loose, finals, raised)


def picklable(value: Any) -> Any:
    """The value itself. Raises what pickling it raises."""
    pickling.dumps(value)
    return value


def unsendable(value: Any, name: str, catch: Any = BaseException) -> TypeError | None:
    """The error that names the leaf of `value` that cannot be pickled; None when it can be."""
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
