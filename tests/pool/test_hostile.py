"""Exceptions that do harm when they are made, read or unpickled: the caller lives, and has what it was promised."""

import copy
import errno
import sys
import traceback
from typing import Any

import cloudpickle
import pytest
from kit import ACTIONS, EVERYWHERE, FAULTY, LOCAL, PROCESS, Pool, is_remote, show, warm, with_fault

import hostile
from hostile import BEYOND, ZOO, Case, Raises
from treadle.errors import RemoteTraceback, StartupFailed, TaskRaised, Where, WorkerDied, WorkerError
from zoo.programs import gym_env

EACH = {**ZOO, **BEYOND}


def cases(setup: dict[str, Any]) -> dict[str, Case]:
    """Those that a slot of this setup may raise without meaning the caller's own thread."""
    return EACH if is_remote(setup) or setup["backend"] == "thread" else ZOO


def check(error: WorkerError, name: str, phase: str) -> None:
    case = EACH[name]
    assert isinstance(error, TaskRaised), name
    assert error.where.phase == phase, name
    assert case.says in str(error), name
    assert error.error_message.startswith(case.says) or case.says in error.error_message, name
    assert len(str(error)) < 100_000, name
    if case.kind is not None:
        assert isinstance(error, case.kind), name
    if case.rebuilt is not None:
        kind = case.kind if case.rebuilt and case.kind is not None else None
        assert (type(error.__cause__) is RemoteTraceback) is not case.rebuilt, name
        if kind is not None and name not in ("our death",):
            assert isinstance(error.__cause__, kind), name
    assert error.error_type in error.remote_traceback, name
    # it can be shown, copied and sent on
    assert repr(error)
    assert "".join(traceback.format_exception(error))
    for twin in (copy.copy(error), cloudpickle.loads(cloudpickle.dumps(error))):
        assert type(twin) is type(error), name
        assert twin.where == error.where, name


@pytest.mark.parametrize("setup", [*EVERYWHERE, PROCESS[1]], ids=show)
def test_a_pool_lives_through_all_of_them(setup: dict[str, Any]) -> None:
    factories = with_fault(hostile.Sound)
    factories[FAULTY] = gym_env(Raises)
    with Pool(factories, **setup) as pool:
        warm(pool, 1)
        for name in cases(setup):
            for phase in ("reset", "call"):
                with pytest.raises(WorkerError) as caught:
                    if phase == "reset":
                        pool.reset(slots=[FAULTY], options=[{"raise": name}])
                    else:
                        pool.lockstep.call("ask", name, slots=[FAULTY])
                check(caught.value, name, phase)
                assert caught.value.where.slot == FAULTY
            pool.reset(slots=[FAULTY])
        assert pool.step(ACTIONS).rewards[[0, 2, 3]].tolist() == [2, 2, 2]


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
def test_the_rows_of_the_others_stand(setup: dict[str, Any]) -> None:
    with Pool(with_fault(Raises), **setup) as pool:
        for name in cases(setup):
            pool.reset(options=[{"step": name}] * 4)
            pool.step(ACTIONS)
            pool.step(ACTIONS)
            with pytest.raises(WorkerError) as caught:
                pool.step(ACTIONS)
            check(caught.value, name, "step")
            assert caught.value.partial.rewards.tolist() == [3, 0, 3, 3]
            assert pool.lockstep.valid.tolist() == [True, False, True, True]


@pytest.mark.parametrize("setup", [LOCAL[0], LOCAL[1], PROCESS[0]], ids=show)
def test_constructors_may_raise_them(setup: dict[str, Any]) -> None:
    for name in cases(setup).keys() - {"setattr"}:  # constructors are called within Python's contextlib, which writes
        with pytest.raises(StartupFailed) as caught:
            Pool([gym_env(hostile.Sound), gym_env(Raises, kwargs={"name": name})], **setup)
        (only,) = caught.value.failures
        check(only, name, "init")
        assert only.where.slot == 1


def one(setup: dict[str, Any], name: str) -> TaskRaised:
    with Pool([gym_env(Raises)], **{**setup, "workers": 1}) as pool:
        pool.reset()
        with pytest.raises(TaskRaised) as caught:
            pool.lockstep.call("ask", name)
    return caught.value


ALONE = pytest.mark.parametrize("setup", [LOCAL[0], LOCAL[1], PROCESS[0]], ids=show)


@ALONE
def test_arguments_attributes_notes_and_causes_are_kept(setup: dict[str, Any]) -> None:
    """Causes as far as they can be sent."""
    error: Any = one(setup, "cause")
    cause = error.__cause__
    assert type(cause) is ValueError
    said, array, where = cause.args
    assert (said, array.tolist(), where) == ("boom", [1, 1, 1], Where(slot=4))
    assert error.kept == cause.kept == {"a": [1, (2.5, None)]}
    assert cause.__notes__ == ["a note"]
    assert type(cause.__cause__) is KeyError
    assert cause.__cause__.args == ("why",)
    assert cause.__cause__.__cause__ is None
    assert "why not" in error.remote_traceback


@ALONE
def test_what_built_in_classes_keep_is_there(setup: dict[str, Any]) -> None:
    error: Any = one(setup, "errno")
    for each in (error, error.__cause__):
        assert (each.errno, each.strerror, each.filename) == (errno.ENOENT, "boom", "a file")
    error = one(setup, "unicode")
    assert (error.__cause__.start, error.__cause__.object) == (1, b"boom")
    assert str(error.__cause__) == error.error_message
    assert one(setup, "import").name == "gone"  # type: ignore[attr-defined]
    assert one(setup, "stop").value == "boom"  # type: ignore[attr-defined]
    assert one(setup, "json").pos == 6  # type: ignore[attr-defined]


@ALONE
def test_groups_keep_their_members(setup: dict[str, Any]) -> None:
    error = one(setup, "group")
    assert isinstance(error, ExceptionGroup)
    first, inner, last = error.exceptions
    assert type(first) is ValueError
    assert isinstance(last, ValueError)  # of one that cannot be sent
    assert isinstance(last, TaskRaised)
    assert type(inner.exceptions[0]) is hostile.OwnNew
    assert inner.exceptions[1].errno == errno.ENOENT
    told: list[str] = []
    try:
        raise error
    except* FileNotFoundError as found:
        told.append(str(found.exceptions[0].exceptions[0].strerror))  # type: ignore[union-attr]
    except* ValueError:
        told.append("others")
    assert told == ["no boom", "others"]


@ALONE
def test_another_pools_death_is_not_this_ones(setup: dict[str, Any]) -> None:
    error = one(setup, "our death")
    assert not isinstance(error, WorkerDied)
    assert error.where.slot == 0
    cause = error.__cause__
    assert isinstance(cause, hostile.Died)
    assert (cause.exit_code, cause.where) == (7, Where(slot=77))


def test_a_class_is_never_imported_for_an_exception() -> None:
    assert "this.is_not_loaded" not in sys.modules
    for setup in (*LOCAL, PROCESS[0]):
        error = one(setup, "elsewhere")
        assert isinstance(error, LookupError)
        assert error.error_type == "Elsewhere"


class OfAnother(Raises):
    """Raises what only its worker knows."""

    def ask(self, name: str) -> None:
        from plistlib import InvalidFileException

        raise InvalidFileException(name)


def test_a_class_that_is_not_loaded_here_comes_as_the_nearest_built_in_one() -> None:
    loaded = sys.modules.pop("plistlib", None)
    try:
        with (
            Pool([gym_env(OfAnother)], **{**PROCESS[0], "workers": 1}) as pool,
            pytest.raises(ValueError, match="boom") as caught,
        ):
            pool.lockstep.call("ask", "boom")
        assert "plistlib" not in sys.modules
    finally:
        if loaded is not None:
            sys.modules["plistlib"] = loaded
    error: Any = caught.value
    assert error.error_type == "InvalidFileException"
    assert type(error.__cause__) is RemoteTraceback


def test_a_class_of_the_callers_main_module_is_found_again() -> None:
    """And any other that is sent by value: it is the same class."""

    class Here(KeyError):
        def __init__(self, reason: str, code: int = 0) -> None:
            super().__init__(reason)
            self.code = code

    class Env(Raises):
        def ask(self, name: str) -> None:
            raise Here(name, 7)

    for setup in (*LOCAL, PROCESS[0]):
        with Pool([gym_env(Env)], **{**setup, "workers": 1}) as pool:
            with pytest.raises(Here) as caught:
                pool.lockstep.call("ask", "boom")
            assert caught.value.code == 7
            assert type(caught.value.__cause__) is Here
