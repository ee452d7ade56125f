"""An environment raises, or returns what it must not: its slot fails and the others never notice."""

import copy
import logging
import os
import pickle
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from kit import (
    ACTIONS,
    EVERYWHERE,
    FAULTY,
    LOCAL,
    PROCESS,
    Pool,
    check_where,
    is_remote,
    show,
    sound_rows,
    warm,
    with_fault,
)

from treadle.errors import (
    BadObservation,
    TaskRaised,
    UsageError,
    WorkerDied,
)
from treadle.program.base import OnEnd
from treadle.worker.life import State
from zoo import faults
from zoo.faults import MISFITS, RAISING, Outcome, Sound
from zoo.programs import gym_env


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
@pytest.mark.parametrize("fault", [*RAISING, *MISFITS], ids=lambda kind: kind.__name__)
def test_one_slot_fails_and_the_others_never_notice(fault: type[Sound], setup: dict[str, Any]) -> None:
    sound = fault is not faults.MissingKey
    with Pool(with_fault(fault, at=3), **setup) as pool:
        warm(pool, 2)
        with pytest.raises(BadObservation if fault in MISFITS else TaskRaised) as caught:
            pool.step(ACTIONS)
        error = caught.value
        assert error.where.slot == FAULTY
        if fault is not faults.UnpicklableInfo:
            check_where(error, "step", process=is_remote(setup))
            assert "faults.py" in error.remote_traceback or fault in MISFITS
        # the others' results are there, the failed row is nothing
        batch, valid = error.partial, pool.lockstep.valid
        assert valid.tolist() == [True, False, True, True]
        assert batch.rewards.tolist() == [3, 0, 3, 3]
        if sound:
            expected = sound_rows([0, 1, 2, 3], [3] * 4)
            expected[FAULTY] = 0
            assert batch.observations.tobytes() == expected.tobytes()
        # nothing can be done before the slot is reset; then all goes on
        with pytest.raises(UsageError, match=r"\[1\]"):
            pool.step(ACTIONS)
        again = pool.reset(slots=[FAULTY], seeds=[50])
        assert again.rewards.tolist() == [0] * 4
        assert not pool.lockstep.valid.any()
        batch = pool.step(ACTIONS)
        assert pool.lockstep.valid.all()
        if sound:
            expected = sound_rows([0, 1, 2, 3], [4] * 4)
            expected[FAULTY] = [50, 0, 1, 1]
            assert batch.observations.tobytes() == expected.tobytes()
        assert all(worker.state is State.IDLE for worker in pool.workers)


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
def test_a_value_error_is_caught_as_one(setup: dict[str, Any]) -> None:
    with Pool(with_fault(faults.StepRaises), **setup) as pool:
        warm(pool, 2)
        with pytest.raises(ValueError, match="the ball left the field") as caught:
            pool.step(ACTIONS)
        error = caught.value
        assert isinstance(error, TaskRaised)
        assert error.error_type == "ValueError"
        assert type(error.__cause__) is ValueError
        assert error.__cause__.args == ("the ball left the field",)
        for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert isinstance(twin, ValueError)
            assert isinstance(twin, TaskRaised)
            assert twin.where == error.where
            assert str(twin) == str(error)


@pytest.mark.parametrize("setup", [PROCESS[0], LOCAL[1]], ids=show)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (faults.RaisesUnpicklable, faults.SAID),
        (faults.RaisesTwoArguments, f"{faults.SAID} (7)"),
        (faults.RaisesSpeechless, "its __str__ failed"),
    ],
)
def test_exceptions_that_cannot_travel_are_told(fault: type[Sound], said: str, setup: dict[str, Any]) -> None:
    with Pool(with_fault(fault), **setup) as pool:
        warm(pool, 2)
        with pytest.raises(TaskRaised) as caught:
            pool.step(ACTIONS)
        assert said in str(caught.value)
        assert "at_step" in caught.value.remote_traceback
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
def test_the_unpicklable_leaf_is_named(setup: dict[str, Any]) -> None:
    with Pool(with_fault(faults.UnpicklableInfo), **setup) as pool:
        warm(pool, 2)
        with pytest.raises(TaskRaised, match=r"info\['engine'\]\['handles'\]\[1\].*cannot pickle.*lock"):
            pool.step(ACTIONS)


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
def test_an_unpicklable_final_info_and_call_result_are_named(setup: dict[str, Any]) -> None:
    with Pool(with_fault(LockAtTheEnd), **setup) as pool:
        warm(pool, 2)
        with pytest.raises(TaskRaised, match=r"final_info\['lock'\]"):
            pool.step(ACTIONS)
        pool.reset(slots=[FAULTY])
        with pytest.raises(TaskRaised, match=r"slot 1 .* in call.*result\[1\].*lock") as caught:
            pool.lockstep.call("handles", slots=[FAULTY])
        assert not isinstance(caught.value, WorkerDied)
        assert pool.step(ACTIONS).rewards.tolist() == [4, 1, 4, 4]


class LockAtTheEnd(Sound):
    def at_step(self, sound: Any) -> Any:
        return sound[0], sound[1], True, False, {"lock": threading.Lock()}

    def handles(self) -> Any:
        return 0, threading.Lock()


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (faults.WrongShape, ((), "float32[4]", "float32[1]")),
        (faults.WrongDtype, ((), "float32[4]", "int32[4]")),
        (faults.TooPrecise, ((), "float32[4]", "float64[4]")),
    ],
)
@pytest.mark.parametrize("setup", [LOCAL[0], PROCESS[0]], ids=show)
def test_misfits_say_what_was_due(fault: type[Sound], told: tuple[Any, str, str], setup: dict[str, Any]) -> None:
    with Pool(with_fault(fault), **setup) as pool:
        warm(pool, 2)
        with pytest.raises(BadObservation) as caught:
            pool.step(ACTIONS)
        path, expected, got = told
        assert caught.value.path == path
        assert expected in caught.value.expected
        assert got in caught.value.got


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
def test_reset_raises(setup: dict[str, Any]) -> None:
    with Pool(with_fault(faults.ResetRaises), **setup) as pool:
        with pytest.raises(ValueError, match="the level file is gone") as caught:
            pool.reset(seeds=[7, 8, 9, 10])
        assert caught.value.where.phase == "reset"
        assert caught.value.where.slot == FAULTY
        assert caught.value.where.seed == 8
        expected = sound_rows([0, 1, 2, 3], [0] * 4)
        expected[FAULTY] = 0
        assert caught.value.partial.observations.tobytes() == expected.tobytes()
        with pytest.raises(UsageError):
            pool.step(ACTIONS)
        pool.reset(slots=[FAULTY], seeds=[8])
        assert pool.step(ACTIONS).rewards.tolist() == [1] * 4


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
@pytest.mark.parametrize("on_end", [OnEnd.SAME_STEP, OnEnd.NEXT_STEP], ids=lambda mode: mode.value)
def test_the_reset_between_two_episodes_raises(on_end: OnEnd, setup: dict[str, Any]) -> None:
    """It is a failure of the reset, and whichever way the next episode begins, the slot is usable after a reset."""
    factories = [gym_env(Sound, on_end=on_end)] * 4
    factories[FAULTY] = gym_env(faults.ResetRaises, kwargs={"at": 1}, on_end=on_end)
    with Pool(factories, **setup) as pool:
        warm(pool, 19)
        if on_end is OnEnd.NEXT_STEP:
            assert pool.step(ACTIONS).terminated.all()
        with pytest.raises(ValueError, match="the level file is gone") as caught:
            pool.step(ACTIONS)
        assert (caught.value.where.slot, caught.value.where.phase) == (FAULTY, "reset")
        assert pool.lockstep.valid[FAULTY] == np.False_
        pool.reset(slots=[FAULTY], seeds=[8])
        batch = pool.step(ACTIONS)
        assert batch.rewards.tolist() == [1] * 4


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
def test_several_slots_fail_at_once(setup: dict[str, Any]) -> None:
    factories = with_fault(faults.StepRaises)
    factories[2] = gym_env(faults.StepRaises)
    with Pool(factories, **setup) as pool:
        warm(pool, 2)
        with pytest.raises(ValueError) as caught:
            pool.step(ACTIONS)
        assert caught.value.where.slot == FAULTY
        assert any("[2]" in note for note in caught.value.__notes__)
        assert pool.lockstep.valid.tolist() == [True, False, False, True]
        with pytest.raises(UsageError, match=r"\[1, 2\]"):
            pool.step(ACTIONS)
        pool.reset(slots=[1, 2])
        assert pool.step(ACTIONS).rewards.tolist() == [4, 1, 1, 4]


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
def test_close_raises(setup: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """It is told, and close goes on."""
    with caplog.at_level(logging.WARNING, "treadle"):
        pool = Pool(with_fault(faults.CloseRaises), **setup)
        warm(pool, 1)
        pool.close()
    assert any("slot 1" in r.message and "the renderer is gone" in r.message for r in caplog.records)


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
def test_a_call_does_not_disturb_the_next_episode(setup: dict[str, Any]) -> None:
    """NEXT_STEP: what a slot is about to do is not forgotten when something is asked of it in between."""
    with Pool([gym_env(Sound, on_end=OnEnd.NEXT_STEP)] * 4, **setup) as pool:
        assert warm(pool, 20).terminated.all()
        assert pool.lockstep.call("episode") == [0] * 4
        batch = pool.step(ACTIONS)
        assert not pool.lockstep.valid.any()
        assert batch.observations[:, 1].tolist() == [1] * 4


@pytest.mark.parametrize("setup", [LOCAL[0], PROCESS[0]], ids=show)
def test_bad_requests_change_nothing(setup: dict[str, Any]) -> None:
    with Pool(with_fault(Sound), **setup) as pool:
        warm(pool, 1)
        for bad in ([0, 1, 2], [0, 1, 2, 9], [0, 1, 2, 0.5], None):
            with pytest.raises(ValueError):
                pool.step(bad)
        for slots, seeds in (([4], None), ([1, 1], None), ([1], [1, 2])):
            with pytest.raises(UsageError):
                pool.reset(slots=slots, seeds=seeds)
        assert pool.step(ACTIONS).rewards.tolist() == [2] * 4


def test_a_request_that_cannot_be_pickled_is_refused() -> None:
    with Pool(with_fault(Sound), workers=2) as pool:
        warm(pool, 1)
        with pytest.raises(UsageError, match=r"cannot be sent to a worker: .*lock"):
            pool.lockstep.call("observe", threading.Lock())
        assert pool.step(ACTIONS).rewards.tolist() == [2] * 4


def test_what_cannot_be_unpickled_on_either_side_is_a_slots_failure() -> None:
    with Pool(with_fault(Echoes), workers=2) as pool:
        warm(pool, 1)
        with pytest.raises(TaskRaised, match=r"slot [01] .* in call.*only in the caller"):
            pool.lockstep.call("echo", OnlyHere(), slots=[FAULTY])
        with pytest.raises(TaskRaised, match=r"slot [01] .*only in the worker"):
            pool.lockstep.call("echo", OnlyThere(os.getpid()), slots=[FAULTY])
        assert pool.lockstep.call("echo", 5, slots=[FAULTY]) == [5]
        pool.reset()
        assert pool.step(ACTIONS).rewards.tolist() == [1] * 4


class Holding(Sound):
    """Says at its third step what is hard to copy, and may be easy to pickle."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def at_step(self, sound: Outcome) -> Outcome:
        info = sound[4]
        if self.what == "no way back":
            info["x"] = Lost()
        else:
            info.update(itself=info, lock=threading.Lock() if self.what == "cycle with a lock" else None)
        return sound


class Lost:
    def __reduce__(self) -> Any:
        return lose, ()


def lose() -> Any:
    raise ImportError("cannot be rebuilt")


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
@pytest.mark.parametrize(
    ("what", "told"),
    [("no way back", "cannot be rebuilt"), ("cycle with a lock", "hold itself"), ("cycle", "hold itself")],
)
def test_infos_that_cannot_be_copied_are_a_slots_failure(what: str, told: str, setup: dict[str, Any]) -> None:
    """Everywhere alike: without pickling between them, too."""
    with Pool(with_fault(Holding, what=what), **setup) as pool:
        warm(pool, 2)
        with pytest.raises(TaskRaised, match=told):
            pool.step(ACTIONS)
        pool.reset()
        assert pool.step(ACTIONS).rewards.tolist() == [1] * 4


class Echoes(Sound):
    def echo(self, value: Any) -> Any:
        return value


def rebuild(home: int, *, here: bool) -> Any:
    if (os.getpid() == home) != here:
        raise ImportError("known only in the caller" if here else "known only in the worker")
    return OnlyThere(home)


class OnlyHere:
    """Made in the caller; it pickles, and cannot be unpickled in another process."""

    def __reduce__(self) -> Any:
        return partial(rebuild, here=True), (os.getpid(),)


class OnlyThere:
    """Can be unpickled everywhere but in the caller (process `home`)."""

    def __init__(self, home: int) -> None:
        self.home = home

    def __reduce__(self) -> Any:
        return partial(rebuild, here=False), (self.home,)


def test_a_request_after_close_is_refused() -> None:
    pool = Pool(with_fault(Sound), workers=2)
    warm(pool, 1)
    pool.close()
    for ask in (lambda: pool.step(ACTIONS), pool.reset, lambda: pool.calls.poll(0.0, print)):
        with pytest.raises(UsageError, match="closed"):
            ask()


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
@pytest.mark.parametrize("reward", [[1.0, 2.0], None, "x", 1j])
def test_a_reward_that_is_no_number_is_told_as_one(reward: Any, setup: dict[str, Any]) -> None:
    class Odd(Sound):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, reward, *rest

    with Pool(with_fault(Odd), **setup) as pool:
        warm(pool, 0)
        with pytest.raises(TaskRaised, match=r"a reward is one number, got"):
            pool.step(ACTIONS)
