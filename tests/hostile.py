"""Exceptions that do what they can to hurt whoever takes them apart, and what a caller is promised of each.

Each class notes in `RAN` when a method of its own runs; in a caller whose workers are processes none ever does.
"""

import abc
import errno
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.errors import StoreFull, TaskRaised, UsageError, Where, WorkerDied
from treadle.pool.original import SPEECHLESS
from treadle.testing.faults import Outcome, Sound

RAN: list[str] = []  # code of the exceptions' own that has run in this process


def own(name: str, then: Callable[..., Any] = lambda *args, **kwargs: None) -> Any:
    """A method that notes that it ran."""

    def method(*args: Any, **kwargs: Any) -> Any:
        RAN.append(name)
        return then(*args, **kwargs)

    return method


def leave(*_: Any, **__: Any) -> Any:
    sys.exit(3)


class Meta(type):
    """A metaclass that has a say in everything."""

    __call__ = own("__call__", type.__call__)
    __instancecheck__ = own("__instancecheck__", lambda cls, other: False)
    __getattribute__ = own("meta.__getattribute__", type.__getattribute__)
    __setattr__ = own("meta.__setattr__", type.__setattr__)


class OfMeta(ValueError, metaclass=Meta):
    pass


class Abstract(ValueError, abc.ABC):
    pass


class ReduceExits(ValueError):
    __reduce__ = own("__reduce__", lambda self: (os._exit, (3,)))


class ReduceExLeaves(ValueError):
    __reduce_ex__ = own("__reduce_ex__", leave)


class SetState(ValueError):
    __setstate__ = own("__setstate__", leave)


class OwnNew(ValueError):
    __new__ = own("__new__", lambda cls, *args: ValueError.__new__(cls, *args))


class BelowOwnNew(OwnNew):
    pass


class InitSubclass(ValueError):
    __init_subclass__ = own("__init_subclass__", leave)


class TwoArguments(ValueError):
    def __init__(self, code: int, reason: str) -> None:
        RAN.append("__init__")
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.engine = threading.Lock()
        self.path = "a name that ours have, too"


class Reads(ValueError):
    __getattribute__ = own("__getattribute__", leave)


class Missing(ValueError):
    __getattr__ = own("__getattr__", leave)


class Writes(ValueError):
    __setattr__ = own("__setattr__", leave)


class Let(ValueError):
    __del__ = own("__del__")


class Properties(ValueError):
    """Of the names under which exceptions are read."""

    args = property(own("args", leave))
    __cause__ = property(own("__cause__", leave))  # type: ignore[assignment]
    __notes__ = property(own("__notes__", leave))  # type: ignore[assignment]
    __dict__ = property(own("__dict__", leave))  # type: ignore[assignment]


class SaysItIsAnother(ValueError):
    __class__ = property(own("__class__", lambda self: KeyError))  # type: ignore[assignment]


class Empty(ValueError):
    """False, and of length 0."""

    __bool__ = own("__bool__", lambda self: False)
    __len__ = own("__len__", lambda self: 0)


class SpeechLeaves(ValueError):
    __str__ = __repr__ = own("__str__", leave)


class SpeechIsNoText(ValueError):
    __str__ = own("__str__", lambda self: 3)  # type: ignore[assignment]


class Text(str):
    __slots__ = ()
    __str__ = __reduce__ = own("Text", leave)


class SpeechIsOwnText(ValueError):
    __str__ = own("__str__", lambda self: Text("boom"))  # type: ignore[assignment]


class Arg:
    __reduce__ = own("Arg.__reduce__", leave)


class SpeechlessArg(Arg):
    __repr__ = own("Arg.__repr__", leave)


class Died(WorkerDied):
    """A user's, of ours."""

    def __init__(self, code: int, reason: str) -> None:
        RAN.append("__init__")
        super().__init__(f"{reason} ({code})", exit_code=code, where=Where(slot=77))


class Ours(TaskRaised):
    """The same."""

    def __init__(self, code: int, reason: str) -> None:
        RAN.append("__init__")
        super().__init__(f"{reason} ({code})", code=code)


class Group(ExceptionGroup[Exception]):
    derive = own("derive", leave)


class Beyond(BaseException):
    pass


def with_itself() -> Exception:
    held: list[Any] = []
    held.append(held)
    return ValueError("boom", held)


def with_own_arguments() -> Exception:
    error = ValueError("boom", Arg(), threading.Lock(), np.ones(3), Where(slot=4), b"\x00" * 10_000_000)
    error.kept, error.lost, error.deep = {"a": [1, (2.5, None)]}, Arg(), with_itself()  # type: ignore[attr-defined]
    error.add_note("a note")
    return error


def in_a_circle() -> Exception:
    first, second = ValueError("boom"), KeyError("boom")
    first.__cause__, second.__cause__ = second, first
    second.__context__ = first
    return first


def with_odd_notes() -> Exception:
    error = ValueError("boom")
    error.__notes__ = 3  # type: ignore[assignment]
    return error


def without_a_name_here() -> Exception:
    class Inside(KeyError):
        pass

    return Inside("boom")


def elsewhere() -> Exception:
    """Of a class whose module says that it is one that nobody has loaded."""
    return type("Elsewhere", (LookupError,), {"__module__": "this.is_not_loaded"})("boom")


def decoding() -> Exception:
    try:
        json.loads('{"a": boom}')
    except ValueError as error:
        return error
    raise AssertionError


def group() -> Exception:
    inner = ExceptionGroup("boom", [OwnNew("boom"), FileNotFoundError(errno.ENOENT, "no boom", "here")])
    return ExceptionGroup("boom", [ValueError("boom"), inner, ReduceExits("boom")])


def many() -> Exception:
    found: Exception = ValueError("boom")
    for _ in range(400):
        found = ExceptionGroup("boom", [found])
    return found


@dataclass(frozen=True)
class Case:
    """Attributes:
    make: makes the exception.
    kind: what it is caught by; not, when it is None.
    rebuilt: is the `__cause__` of its own class? None: where the class is known.
    says: its text.
    """

    make: Callable[[], BaseException]
    kind: type[BaseException] | None = ValueError
    rebuilt: bool | None = False
    says: str = "boom"


ZOO: dict[str, Case] = {
    "metaclass": Case(lambda: OfMeta("boom")),
    "abstract": Case(lambda: Abstract("boom")),
    "reduce exits": Case(lambda: ReduceExits("boom"), ReduceExits),
    "reduce_ex leaves": Case(lambda: ReduceExLeaves("boom"), ReduceExLeaves),
    "setstate": Case(lambda: SetState("boom"), SetState),
    "new": Case(lambda: OwnNew("boom")),
    "below new": Case(lambda: BelowOwnNew("boom")),
    "init_subclass": Case(lambda: InitSubclass("boom")),
    "two arguments": Case(lambda: TwoArguments(7, "boom"), TwoArguments, True),
    "getattribute": Case(lambda: Reads("boom")),
    "getattr": Case(lambda: Missing("boom")),
    "setattr": Case(lambda: Writes("boom")),
    "del": Case(lambda: Let("boom")),
    "properties": Case(lambda: Properties("boom")),
    "another class": Case(lambda: SaysItIsAnother("boom")),
    "empty": Case(lambda: Empty("boom")),
    "speech leaves": Case(lambda: SpeechLeaves("boom"), SpeechLeaves, False, SPEECHLESS),
    "speech is no text": Case(lambda: SpeechIsNoText("boom"), SpeechIsNoText, False, SPEECHLESS),
    "speechless argument": Case(lambda: ValueError("boom", SpeechlessArg()), ValueError, False, SPEECHLESS),
    "speech is own text": Case(lambda: SpeechIsOwnText("boom"), SpeechIsOwnText, True, "boom"),
    "long speech": Case(lambda: ValueError("boom" * 1_000_000), ValueError, True),
    "itself": Case(with_itself, ValueError, True),
    "own arguments": Case(with_own_arguments, ValueError, True),
    "circle": Case(in_a_circle, ValueError, True),
    "odd notes": Case(with_odd_notes, ValueError, True),
    "local class": Case(without_a_name_here, KeyError, None),
    "elsewhere": Case(elsewhere, LookupError, None),
    "json": Case(decoding, json.JSONDecodeError, False, "Expecting value"),
    "unicode": Case(lambda: UnicodeDecodeError("utf-8", b"boom", 1, 2, "no"), UnicodeDecodeError, True, "can't decode"),
    "errno": Case(lambda: OSError(errno.ENOENT, "boom", "a file"), FileNotFoundError, True),
    "import": Case(lambda: ImportError("boom", name="gone"), ImportError, True),
    "stop": Case(lambda: StopIteration("boom"), StopIteration, True),
    "group": Case(group, ExceptionGroup, True),
    "own group": Case(lambda: Group("boom", [ValueError("boom")]), Group, True),
    "many groups": Case(many, ExceptionGroup, True),
    "our death": Case(lambda: Died(7, "boom"), EOFError, True),
    "our task": Case(lambda: Ours(7, "boom"), Ours, True),
    "our memory": Case(lambda: StoreFull("boom", rows=7), StoreFull, True),
    "our usage": Case(lambda: UsageError("boom", code=7), UsageError, True),
    "leaves": Case(lambda: SystemExit(3), None, True, "3"),
    "generator": Case(lambda: GeneratorExit("boom"), None, True),
}
BEYOND = {  # in the caller's own thread they mean the caller
    "group of all": Case(lambda: BaseExceptionGroup("boom", [SystemExit(3)]), None, True),
    "interrupt": Case(lambda: KeyboardInterrupt("boom"), None, True),
    "beyond": Case(lambda: Beyond("boom"), None, True),
}


class Raises(Sound):
    """Raises the exception of that name: in the constructor, in a reset whose options say {"raise": name}, in the third
    step after one whose options say {"step": name}, or (`always`) after any, in a step whose action it is, and in
    `ask`."""

    def __init__(self, name: str = "", always: str = "") -> None:
        super().__init__(at=3)
        self.name, self.always = "", always
        if name:
            self.ask(name)

    def ask(self, name: str) -> None:
        raise {**ZOO, **BEYOND}[name].make()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options and "raise" in options:
            self.ask(options["raise"])
        self.name = (options or {}).get("step", self.always)
        self.steps = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Outcome:
        if isinstance(action, str):
            self.ask(action)
        return super().step(action)

    def at_step(self, sound: Outcome) -> None:
        if self.name:
            self.ask(self.name)
