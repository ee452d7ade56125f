"""What is left of an exception on its way to the caller: names of classes, and plain values.

An exception is foreign code. Its class may have a constructor that wants arguments, a way of its own to be pickled, a
metaclass, an attribute that runs something when it is read. In the worker that code runs where it must (`__str__`),
under guard; in the caller none of it does. There the class is looked up, never imported, and an instance is made by the
`__new__` of the built-in exception below it, without `__init__`, and given its plain arguments and attributes. What is
no plain value is told as text (arguments), or left out (attributes).
"""

from __future__ import annotations

import builtins
import contextlib
import reprlib
import sys
import traceback
from dataclasses import dataclass, field, fields
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

import numpy as np
from cloudpickle import cloudpickle

from treadle.errors import TaskRaised, Where, original_of, runs_unasked, task_raised, without_init

MOST = 65536  # bytes that the values of one exception may take, and characters that its text may
DEEPEST = 16  # containers in one another
MEMBERS, GENERATIONS = 64, 4  # exceptions of a group that travel, and groups in one another

SPEECHLESS = "<its __str__ failed>"

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 400
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 20

_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))
_NUMBERS = frozenset(np.sctypeDict.values()) - {np.object_, np.void}
_PLACING = "treadle_"  # attributes that say where an exception happened begin so: see `Server._raised`


class _NotPlain(Exception):
    pass


@dataclass(frozen=True)
class ClassName:
    """Where a class can be found. `tracked`: under which number among those that cloudpickle sends by value."""

    module: str
    qualname: str
    tracked: str | None


@dataclass(frozen=True)
class Original:
    """
    Attributes:
        name, message: its class, and its text.
        classes: its class and the bases of it, as far as the first built-in one.
        args: its arguments; what is not plain as text.
        attributes: those of its own attributes that are plain.
        builtin: those of the built-in class, such as `errno`.
        members: of an exception group.
        joined: was it a TaskRaised of another pool, and of the first of `classes` as well?
    """

    name: str
    message: str
    classes: tuple[ClassName, ...] = ()
    args: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    builtin: dict[str, Any] = field(default_factory=dict)
    members: tuple[Original, ...] = ()
    joined: bool = False

    @classmethod
    def of(cls, error: BaseException, catch: Any = BaseException, generation: int = 0) -> Original:
        """Raises nothing of the kind `catch`."""
        kind = type(error)
        joined, kind = kind, original_of(kind)
        members: tuple[Original, ...] = ()
        if issubclass(kind, BaseExceptionGroup) and generation < GENERATIONS:
            inner = BaseExceptionGroup.exceptions.__get__(error)[:MEMBERS]  # type: ignore[attr-defined]
            members = tuple(cls.of(member, catch, generation + 1) for member in inner)
        budget = [MOST]
        return cls(
            name_of(kind),
            _said(error, catch),
            tuple(_name(base) for base in _up_to_builtin(kind)),
            () if members else tuple(_plain_or_text(value, budget, catch) for value in _args_of(error)),
            _plain_items(attributes_of(error), budget),
            _plain_items(_builtin_values(error), budget),
            members,
            joined is not kind,
        )

    def kind(self) -> type | None:
        """The exception's class, or the nearest base of it that is known here."""
        return next((found for name in self.classes if (found := _find(name)) is not None), None)

    def rebuilt(self) -> BaseException | None:
        """The exception; None where its class is not known here, has its own way to make or pickle its instances, or
        has failed to say its text."""
        kind: Any = _find(self.classes[0]) if self.classes else None
        if kind is None or self.message == SPEECHLESS or runs_unasked(kind, pickled=True):
            return None
        error: Any
        try:
            if self.joined:
                error = task_raised(kind, self.message)
            elif issubclass(kind, BaseExceptionGroup):
                error = without_init(kind, str(self.builtin.get("message", self.message)), self.rebuilt_members())
            else:
                error = without_init(kind)
                vars(BaseException)["args"].__set__(error, self.args)
        except (TypeError, ValueError):  # a group whose members were too deep within others, say
            return None
        error.__dict__.update(self.attributes)
        self._set_builtin(error)
        return error

    def rebuilt_members(self) -> list[BaseException]:
        """Of a group; in the place of those that cannot be rebuilt, the nearest that can be had."""
        return [
            rebuilt
            if (rebuilt := member.rebuilt()) is not None
            else task_raised(
                member.kind(), member.message, member.rebuilt_members(), error_type=member.name,
                error_message=member.message,
            )
            for member in self.members
        ]  # fmt: skip

    def lend_fields(self, error: TaskRaised) -> None:
        """Give the attributes to an error that stands for it, where it has none of that name."""
        for name, value in self.attributes.items():
            if name not in error.__dict__ and not hasattr(TaskRaised, name) and name != "__notes__":
                error.__dict__[name] = value
        self._set_builtin(error)

    def _set_builtin(self, error: BaseException) -> None:
        for base in type.mro(type(error)):
            if _is_builtin(base) and base is not BaseException:
                for name in self.builtin.keys() & vars(base).keys():
                    with contextlib.suppress(AttributeError, TypeError):  # read-only, or another thing of that name
                        vars(base)[name].__set__(error, self.builtin[name])


def name_of(cls: type) -> str:
    """The name of a class, whatever its metaclass says."""
    return str.__str__(vars(type)["__qualname__"].__get__(cls))


def attributes_of(error: BaseException) -> dict[str, Any]:
    """What is kept in the exception itself, to be read and written whatever its class makes of that."""
    attributes: dict[str, Any] = vars(BaseException)["__dict__"].__get__(error)
    return attributes


def traceback_of(error: BaseException, original: Original, catch: Any = BaseException) -> str:
    """The text of its traceback, those of its causes included. Raises nothing of the kind `catch`."""
    try:
        text = "".join(traceback.format_exception(error))
    except catch:  # causes that are none, say
        frames = vars(BaseException)["__traceback__"].__get__(error)
        text = "".join(traceback.format_tb(frames)) + f"{original.name}: {original.message}\n"
    return _cut(text, 4 * MOST)


def _said(error: BaseException, catch: Any) -> str:
    try:
        return _cut(str.__str__(str(error)), MOST)  # `__str__` may return a kind of str with ways of its own
    except catch:
        return SPEECHLESS


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def shown(value: Any, catch: Any = Exception) -> str:
    """A short repr of anything. Raises nothing of the kind `catch`."""
    try:
        return _cut(str.__str__(_SHORT.repr(value)), 1000)
    except catch:
        return f"<{name_of(type(value))}>"


# -- classes ----------------------------------------------------------------------------------------------------------


def _is_builtin(cls: type) -> bool:
    return vars(builtins).get(name_of(cls)) is cls


def _up_to_builtin(cls: type) -> list[type]:
    found: list[type] = []
    for base in type.mro(cls):
        if not issubclass(base, BaseException):
            continue
        found.append(base)
        if _is_builtin(base):
            break
    return found


def _name(cls: type) -> ClassName:
    module = vars(type)["__module__"].__get__(cls)
    name = ClassName(module if type(module) is str else "", name_of(cls), None)
    if _in_module(name) is cls:
        return name
    return ClassName(name.module, name.qualname, cloudpickle._get_or_create_tracker_id(cls))


def _find(name: ClassName) -> type | None:
    """The class of that name here. Imports nothing, and runs no module's or class's own way of looking things up."""
    found = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(name.tracked) if name.tracked else None
    found = _in_module(name) if found is None else found
    return found if type(found) is type and issubclass(found, BaseException) else None


def _in_module(name: ClassName) -> Any:
    found: Any = sys.modules.get(name.module)
    for part in name.qualname.split("."):
        getter = vars(type)["__dict__"] if issubclass(type(found), type) else vars(type(sys))["__dict__"]
        try:
            found = getter.__get__(found)[part]
        except (KeyError, TypeError):
            return None
    return found


# -- values -----------------------------------------------------------------------------------------------------------


def _args_of(error: BaseException) -> tuple[Any, ...]:
    return tuple(vars(BaseException)["args"].__get__(error))


def _builtin_values(error: BaseException) -> dict[str, Any]:
    """What the built-in class keeps outside of the attributes: `errno`, `filename`, `name`, `value`, ..."""
    values: dict[str, Any] = {}
    for base in type.mro(type(error)):
        if not _is_builtin(base) or base in (BaseException, Exception, object):
            continue
        for name, descriptor in vars(base).items():
            if type(descriptor) in (MemberDescriptorType, GetSetDescriptorType) and not name.startswith("__"):
                with contextlib.suppress(AttributeError, TypeError):  # it is not set, or its state is not whole
                    values[name] = descriptor.__get__(error)
    return {name: value for name, value in values.items() if value is not None}


def _plain_items(values: dict[Any, Any], budget: list[int]) -> dict[str, Any]:
    found = {}
    for name, value in list(values.items()):
        if type(name) is str and not name.startswith(_PLACING):
            with contextlib.suppress(_NotPlain):
                found[name] = _plain(value, budget)
    return found


def _plain_or_text(value: Any, budget: list[int], catch: Any) -> Any:
    try:
        return _plain(value, budget)
    except _NotPlain:
        return shown(value, catch)


def _plain(value: Any, budget: list[int], depth: int = 0) -> Any:
    """A copy of a value that is made of nothing but numbers, text, arrays, and Python's own containers. Raises
    _NotPlain; also when it is too large, or holds itself."""
    kind = type(value)
    if kind in _ATOMS:
        _spend(budget, len(value) if kind in (str, bytes) else value.bit_length() // 8 if kind is int else 8)
        return value
    if kind in _NUMBERS:
        _spend(budget, value.nbytes)
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        _spend(budget, value.nbytes)
        return value.copy()
    _spend(budget, 64)
    if depth >= DEEPEST:
        raise _NotPlain
    if kind in (tuple, list, set, frozenset):
        return kind([_plain(item, budget, depth + 1) for item in value])
    if kind is dict:
        pairs = list(value.items())
        return {_plain(key, budget, depth + 1): _plain(item, budget, depth + 1) for key, item in pairs}
    if kind is Where:
        return Where(*(_plain(getattr(value, part.name), budget, depth + 1) for part in fields(Where)))
    raise _NotPlain


def _spend(budget: list[int], nbytes: int) -> None:
    if nbytes > budget[0]:
        raise _NotPlain
    budget[0] -= nbytes
