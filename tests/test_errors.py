"""Errors keep their fields wherever they go, and are what they say they are."""

import copy
import pickle
from typing import Any

import pytest

import treadle
from treadle import errors
from treadle.errors import RemoteTraceback, TaskRaised, TreadleError, Where, WorkerDied, WorkerTimeout, task_raised

WHERE = Where(slot=7, worker=2, pid=4711, phase="step", step=312, episode=4, seed=5, last_action=[1.0])
KINDS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TreadleError)]
FIELDS: dict[str, Any] = {
    "where": WHERE,
    "remote_traceback": "Traceback: ...",
    "partial": {"rewards": [1.0, 2.0]},
    "exit_code": 3,
    "signal": "SIGSEGV",
    "elapsed": 1.5,
    "custom": "kept too",
}


def test_the_front_door_has_kinds_and_their_parents() -> None:
    """What it does not have is caught by a parent that it has."""
    listed = {name for name, home in treadle._FRONT.items() if home == "errors"}
    assert listed <= {kind.__name__ for kind in KINDS}
    assert all({each.__name__ for each in kind.__mro__} & listed for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "twin", [copy.copy, copy.deepcopy, *(lambda e, p=p: pickle.loads(pickle.dumps(e, p)) for p in range(2, 6))]
)
def test_every_error_copies_and_pickles_with_its_fields(kind: type[TreadleError], twin: Any) -> None:
    error = kind("what happened", **FIELDS)
    error.add_note("a note")
    other = twin(error)
    assert type(other) is kind
    assert str(other) == "what happened"
    for name, value in FIELDS.items():
        assert getattr(other, name) == value
    assert other.__notes__ == ["a note"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_can_be_made_without_fields(kind: type[TreadleError]) -> None:
    assert str(kind("words")) == "words"
    assert str(kind()) == ""
    assert kind.__doc__


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.UsageError, ValueError),
        (errors.ClosedPool, errors.UsageError),
        (errors.MissingExtra, ImportError),
        (errors.BadAction, ValueError),
        (errors.NoBatch, errors.BadAction),
        (errors.NoBatch, TypeError),
        (errors.BadObservation, errors.WorkerError),
        (errors.BadObservation, errors.SpaceError),
        (errors.StartupRefused, errors.StartupFailed),
        (errors.StartupRefused, errors.UsageError),
        (errors.WorkerDied, EOFError),
        (errors.BrokenPool, EOFError),
        (errors.WorkerTimeout, TimeoutError),
        (errors.ArenaError, MemoryError),
    ],
)
def test_errors_are_what_people_already_catch(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


def test_where_says_it_in_words() -> None:
    assert str(WHERE) == "slot 7 (worker 2, pid 4711) in step 312 of episode 4"
    assert str(Where(slot=1, phase="reset")) == "slot 1 (in the caller) in reset"
    assert str(Where(worker=0, pid=5)) == "worker 0, pid 5"


# -- errors that are the original's class as well ---------------------------------------------------------------------


class Plain(Exception):
    pass


class TwoArguments(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)


class OurOwn(TaskRaised):
    """A user's, of ours."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


class Fussy(Exception):
    """Refuses in every way that a class can."""

    def __new__(cls, code: int, reason: str) -> "Fussy":
        return super().__new__(cls, code, reason)

    def __str__(self) -> str:
        raise RuntimeError


class Hidden(Exception):
    @property
    def where(self) -> str:
        return "not ours"


class Meta(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("not like this")


class Guarded(Exception, metaclass=Meta):
    pass


@pytest.mark.parametrize(
    "original",
    [
        *(ValueError, KeyError, OSError, ImportError, UnicodeDecodeError, StopIteration, SyntaxError, ExceptionGroup),
        *(Plain, TwoArguments, Hidden, errors.UsageError, errors.MissingExtra, errors.ArenaError, OurOwn),
    ],
)
def test_task_raised_is_both(original: type[Exception]) -> None:
    members = [ValueError("a member")] if original is ExceptionGroup else []
    error = task_raised(original, "it broke", members, where=WHERE, remote_traceback="tb")
    assert isinstance(error, TaskRaised)
    assert isinstance(error, original)
    assert type(task_raised(original, "again", members)) is type(error), "made once a class"
    assert original.__name__ in type(error).__name__
    assert repr(error) == f"{type(error).__name__}('it broke')"
    if isinstance(error, ExceptionGroup):
        assert [type(member) for member in error.exceptions] == [ValueError]
    for twin in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert isinstance(twin, TaskRaised)
        assert type(twin) is type(error)
        assert str(twin) == "it broke"
        assert twin.where == WHERE
        assert twin.remote_traceback == "tb"


@pytest.mark.parametrize(
    "original", [None, Exception, BaseException, SystemExit, KeyboardInterrupt, Fussy, Guarded, ExceptionGroup, 3]
)
def test_what_cannot_be_joined_is_plainly_task_raised(original: Any) -> None:
    error = task_raised(original, "it broke", where=WHERE)
    assert type(error) is TaskRaised
    assert error.where == WHERE


class FussyKey(KeyError):
    def __new__(cls, code: int, reason: str) -> "FussyKey":
        return super().__new__(cls, code, reason)


class Below(FussyKey):
    pass


@pytest.mark.parametrize(
    ("original", "base"),
    [
        (FussyKey, KeyError),
        (Below, KeyError),
        (WorkerDied, EOFError),
        (WorkerTimeout, TimeoutError),
        (errors.StartupRefused, errors.UsageError),
        (errors.BadObservation, errors.SpaceError),
    ],
)
def test_the_nearest_base_takes_its_place(original: type[Exception], base: type[Exception]) -> None:
    """Of another pool's trouble, too: it is not this one's."""
    error = task_raised(original, "it broke", where=WHERE)
    assert isinstance(error, TaskRaised)
    assert isinstance(error, base)
    assert not isinstance(error, original)
    assert type(pickle.loads(pickle.dumps(error))) is type(error)


def test_an_error_of_an_inner_pool_keeps_its_class() -> None:
    inner = task_raised(ValueError, "inner", where=Where(slot=1))
    outer = task_raised(type(inner), "outer", where=Where(slot=5))
    assert type(outer) is type(inner)
    assert (str(outer), outer.where.slot) == ("outer", 5)


def test_a_remote_traceback_shows_its_text() -> None:
    assert str(RemoteTraceback("File x, line 1")) == "\nFile x, line 1"
    assert str(pickle.loads(pickle.dumps(RemoteTraceback("text")))) == "\ntext"
