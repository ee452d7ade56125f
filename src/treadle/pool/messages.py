"""The only things that travel between a caller and its workers (numbers of fixed shape travel through the arena)."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass, is_dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from treadle import pickling
from treadle.spaces import Mismatch


class Op(IntEnum):
    """What a request asks of a worker's slots."""

    RESET = 1  # payload: {slot: (seed, options)}
    STEP = 2  # actions are in the arena; payload: (slots or None for all, loose actions or None), or nothing
    CALL = 3  # payload: {slot: (method name, args, kwargs)}
    STREAM = 4  # payload: {slot: order}; many replies
    MAP = 5  # payload: {slot: Mapping}, the same for all slots
    CLOSE = 6


CLOSING = 2**62  # the number of the last request: above all others, so that it also stops every stream


@dataclass(frozen=True, slots=True)
class Request:
    """One numbered order to one worker. `block` says which rows the answer goes to; -1: none. `together`: see
    `Dispatch.together`."""

    id: int
    op: Op
    payload: Any = None
    block: int = -1
    together: bool = False


class Extras(NamedTuple):
    """What a reply says beyond the arena's rows. Keys are slots; a slot without a word is not in the dict.

    Attributes:
        infos: non-empty info dicts (reset, step) or results (call, stream).
        loose: observation leaves without a fixed shape, in layout order.
        finals: (final_info, loose leaves of the final observation) of slots that moved on within this step.
        raised: failures, one slot each; the other slots' results are good.
    """

    infos: dict[int, Any]
    loose: dict[int, list[Any]]
    finals: dict[int, tuple[dict[str, Any], list[Any] | None]]
    raised: dict[int, Raised]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to request `id`. Streams answer many times; only the last has `last`."""

    id: int
    extras: Extras | None = None
    last: bool = True


@dataclass(frozen=True)
class Raised:
    """An exception as text first; `pickled` is the exception itself where it could be pickled, `kind` its class (which
    can be pickled more often: a lock in an instance, or a constructor of two arguments, does no harm to the class)."""

    error_type: str
    message: str
    traceback: str
    phase: str
    step: int | None = None
    episode: int | None = None
    seed: int | None = None
    last_action: Any = None
    pickled: bytes | None = None
    kind: bytes | None = None
    path: tuple[Any, ...] | None = None
    expected: str = ""
    got: str = ""

    @classmethod
    def of(cls, error: BaseException, phase: str, **where: Any) -> Raised:
        """Never raises, whatever the exception's own methods do."""
        try:
            message = str(error)
        except Exception:  # noqa: BLE001 - an exception whose __str__ fails is one of the faults we must survive
            message = "<its __str__ failed>"
        try:
            text = "".join(traceback.format_exception(error))
        except Exception:  # noqa: BLE001 - as above
            text = "".join(traceback.format_tb(error.__traceback__)) + f"{type(error).__qualname__}: {message}\n"
        more: dict[str, Any] = {"pickled": _pickled(error), "kind": _pickled(type(error))}
        if isinstance(error, Mismatch):
            more.update(path=tuple(error.path), expected=error.expected, got=error.got)
        return cls(type(error).__qualname__, message, text, phase, **more, **where)

    def original(self) -> BaseException | None:
        """The exception rebuilt, or None when it cannot be."""
        error = _rebuilt(self.pickled)
        return error if isinstance(error, BaseException) else None

    def original_type(self) -> type | None:
        """The exception's class, or None when it cannot be had here."""
        kind = _rebuilt(self.kind)
        return kind if isinstance(kind, type) else None


def _rebuilt(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return pickle.loads(data)
    except Exception:  # noqa: BLE001 - constructors of foreign exceptions may fail in any way
        return None


def _pickled(value: Any) -> bytes | None:
    try:
        data = pickling.dumps(value)
    except Exception:  # noqa: BLE001 - unpicklable exceptions travel as text
        return None
    return data if len(data) <= 65536 else None


@dataclass(frozen=True)
class WorkerSpec:
    """Which slots a worker runs and how to build them. `programs` is a cloudpickled list of factories, one a slot."""

    index: int
    slots: tuple[int, ...]
    programs: bytes

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
    """How a worker ended. code None and signal None: it is still running, or nobody could tell."""

    code: int | None = None
    signal: str | None = None
    stderr: tuple[str, ...] = ()
    stack: str = ""
    forced: bool = False


def without_unpicklable(extras: Extras, phase: str) -> Extras:
    """The same reply where every slot whose part cannot be pickled has failed instead, the leaf named."""
    bad: dict[int, Raised] = {}
    for table, what in ((extras.infos, "info"), (extras.loose, "observation"), (extras.finals, "final_info")):
        for slot, value in table.items():
            found = _unpicklable(value, what if phase != "call" else "result")
            if found is not None:
                path, error = found
                text = f"{path} cannot be sent to the caller: {error.message}"
                bad[slot] = Raised(error.error_type, text, error.traceback, phase)
    tables: Any = extras[:3]
    infos, loose, finals = ({s: v for s, v in table.items() if s not in bad} for table in tables)
    return Extras(infos, loose, finals, {**extras.raised, **bad})


def unsendable(value: Any, name: str) -> TypeError | None:
    """The error that names the leaf of `value` that cannot be pickled; None when it can be."""
    found = _unpicklable(value, name)
    return None if found is None else TypeError(f"{found[0]} cannot be sent to the caller: {found[1].message}")


def _unpicklable(value: Any, path: str) -> tuple[str, Raised] | None:
    try:
        pickling.dumps(value)
    except Exception as error:  # noqa: BLE001 - whatever a foreign __reduce__ raises
        items: Any = ()
        if isinstance(value, dict):
            items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            items = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        elif is_dataclass(value):
            items = [(f"{path}.{name}", item) for name, item in vars(value).items()]
        for inner, item in items:
            if (found := _unpicklable(item, inner)) is not None:
                return found
        return path, Raised.of(error, "")
    return None
