"""Exceptions that do what they can to hurt whoever takes them apart, and what a caller is promised of each."""

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

from treadle.errors import ArenaError, TaskRaised, UsageError, Where, WorkerDied
from treadle.wire.messages import SPEECHLESS
from zoo.faults import Outcome, Sound


def leave(*_: Any, **__: Any) -> Any:
    sys.exit(3)


def own(then: Callable[..., Any] = lambda *args, **kwargs: None) -> Any:
    """A method of Python's."""

    def method(*args: Any, **kwargs: Any) -> Any:
        return then(*args, **kwargs)

    return method


class Meta(type):
    """A metaclass that has a say in everything."""

    __call__ = own(type.__call__)
    __instancecheck__ = own(lambda cls, other: False)
    __getattribute__ = own(type.__getattribute__)
    __setattr__ = own(type.__setattr__)


class OfMeta(ValueError, metaclass=Meta):
    pass


class Abstract(ValueError, abc.ABC):
    pass


class ReduceExits(ValueError):
    __reduce__ = own(lambda self: (os._exit, (3,)))


class ReduceExLeaves(ValueError):
    __reduce_ex__ = own(leave)


class SetState(ValueError):
    __setstate__ = own(leave)


class OwnNew(ValueError):
    __new__ = own(lambda cls, *args: ValueError.__new__(cls, *args))


class BelowOwnNew(OwnNew):
    pass


class InitSubclass(ValueError):
    __init_subclass__ = own(leave)


class TwoArguments(ValueError):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


class Reads(ValueError):
    __getattribute__ = own(leave)


class Missing(ValueError):
    __getattr__ = own(leave)


class Writes(ValueError):
    __setattr__ = own(leave)


class Let(ValueError):
    __del__ = own()


class Properties(ValueError):
    """Of the names under which exceptions are read."""

    args = property(own(leave))
    __cause__ = property(own(leave))  # type: ignore[assignment]
    __notes__ = property(own(leave))  # type: ignore[assignment]
    __dict__ = property(own(leave))  # type: ignore[assignment]


class SaysItIsAnother(ValueError):
    __class__ = property(own(lambda self: KeyError))  # type: ignore[assignment]


class Empty(ValueError):
    """False, and of length 0."""

    __bool__ = own(lambda self: False)
    __len__ = own(lambda self: 0)


class SpeechLeaves(ValueError):
    __str__ = __repr__ = own(leave)


class SpeechIsNoText(ValueError):
    __str__ = own(lambda self: 3)  # type: ignore[assignment]


class Text(str):
    __slots__ = ()
    __str__ = __reduce__ = own(leave)


class SpeechIsOwnText(ValueError):
    __str__ = own(lambda self: Text("boom"))  # type: ignore[assignment]


class Arg:
    __reduce__ = own(leave)


class SpeechlessArg(Arg):
    __repr__ = own(leave)


class Died(WorkerDied):
    """A user's, of ours."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, exit_code=7, where=Where(slot=77))


class Ours(TaskRaised):
    """The same."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, code=7)


class Group(ExceptionGroup[Exception]):
    derive = own(leave)


class Beyond(BaseException):
    pass


def with_itself() -> Exception:
    held: list[Any] = []
    held.append(held)
    return ValueError("boom", held)


def with_own_arguments() -> Exception:
    return ValueError("boom", Arg(), threading.Lock(), b"\x00" * 10_000_000)


def with_a_cause() -> Exception:
    error = ValueError("boom", np.ones(3), Where(slot=4))
    error.kept = {"a": [1, (2.5, None)]}  # type: ignore[attr-defined]
    error.add_note("a note")
    error.__cause__ = KeyError("why")
    error.__cause__.__cause__ = ReduceExits("why not")
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
    "metaclass": Case(lambda: OfMeta("boom"), rebuilt=True),
    "abstract": Case(lambda: Abstract("boom"), rebuilt=True),
    "reduce exits": Case(lambda: ReduceExits("boom")),
    "reduce_ex leaves": Case(lambda: ReduceExLeaves("boom")),
    "setstate": Case(lambda: SetState("boom")),
    "new": Case(lambda: OwnNew("boom"), rebuilt=True),
    "below new": Case(lambda: BelowOwnNew("boom"), rebuilt=True),
    "init_subclass": Case(lambda: InitSubclass("boom"), rebuilt=True),
    "two arguments": Case(lambda: TwoArguments(7, "boom")),
    "getattribute": Case(lambda: Reads("boom")),
    "getattr": Case(lambda: Missing("boom")),
    "setattr": Case(lambda: Writes("boom"), rebuilt=True),
    "del": Case(lambda: Let("boom"), rebuilt=True),
    "properties": Case(lambda: Properties("boom")),
    "another class": Case(lambda: SaysItIsAnother("boom"), rebuilt=True),
    "empty": Case(lambda: Empty("boom"), rebuilt=True),
    "speech leaves": Case(lambda: SpeechLeaves("boom"), ValueError, False, SPEECHLESS),
    "speech is no text": Case(lambda: SpeechIsNoText("boom"), ValueError, False, SPEECHLESS),
    "speechless argument": Case(lambda: ValueError("boom", SpeechlessArg()), ValueError, False, SPEECHLESS),
    "speech is own text": Case(lambda: SpeechIsOwnText("boom"), SpeechIsOwnText, True, "boom"),
    "long speech": Case(lambda: ValueError("boom" * 1_000_000), ValueError, True),
    "itself": Case(with_itself, ValueError, True),
    "own arguments": Case(with_own_arguments),
    "cause": Case(with_a_cause, ValueError, True),
    "circle": Case(in_a_circle, ValueError, True),
    "odd notes": Case(with_odd_notes, ValueError, True),
    "local class": Case(without_a_name_here, KeyError, None),
    "elsewhere": Case(elsewhere, LookupError, None),
    "json": Case(decoding, json.JSONDecodeError, True, "Expecting value"),
    "unicode": Case(lambda: UnicodeDecodeError("utf-8", b"boom", 1, 2, "no"), UnicodeDecodeError, True, "can't decode"),
    "errno": Case(lambda: OSError(errno.ENOENT, "boom", "a file"), FileNotFoundError, True),
    "import": Case(lambda: ImportError("boom", name="gone"), ImportError, True),
    "stop": Case(lambda: StopIteration("boom"), StopIteration, True),
    "group": Case(group, ExceptionGroup),
    "own group": Case(lambda: Group("boom", [ValueError("boom")]), Group, True),
    "many groups": Case(many, ExceptionGroup),
    "our death": Case(lambda: Died("boom"), EOFError, True),
    "our task": Case(lambda: Ours("boom"), Ours, True),
    "our memory": Case(lambda: ArenaError("boom", asked=7), ArenaError, True),
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
