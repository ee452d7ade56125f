"""A worker dies, comes too late, or never gets started: what the caller is told, and what is left to it."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from kit import (
    ACTIONS,
    EVERYWHERE,
    FAULTY,
    LOCAL,
    PROCESS,
    Gated,
    Pool,
    answered,
    check_where,
    show,
    sound_rows,
    start_ends_with,
    until,
    warm,
    with_fault,
    within,
)
from scripts import state

from treadle.errors import (
    BrokenPool,
    StartupFailed,
    TaskRaised,
    UsageError,
    WorkerDied,
    WorkerTimeout,
)
from treadle.lockstep import recover
from treadle.pool import failure
from treadle.pool.calls import Calls
from treadle.worker.forkserver import wait_readable
from treadle.worker.life import State
from treadle.worker.process import ProcessWorker
from zoo import faults
from zoo.faults import DEADLY, STUCK, Sound
from zoo.programs import gym_env


@pytest.mark.parametrize("setup", [*EVERYWHERE, PROCESS[1]], ids=show)
@pytest.mark.parametrize("fault", [faults.InitRaises, faults.InitExits], ids=lambda kind: kind.__name__)
def test_a_constructor_fails(fault: type[Sound], setup: dict[str, Any]) -> None:
    with pytest.raises(StartupFailed) as caught:
        Pool(with_fault(fault), **setup)
    (only,) = caught.value.failures
    assert isinstance(only, TaskRaised)
    assert (only.where.slot, only.where.phase) == (FAULTY, "init")
    assert isinstance(only, ValueError) == (fault is faults.InitRaises)
    assert "slot 1" in str(caught.value)
    assert "__init__" in caught.value.remote_traceback


@pytest.mark.parametrize("kind", [ImportError, FileNotFoundError])
def test_spaces_that_cannot_be_had_here(kind: type[Exception]) -> None:
    with within(5.0), pytest.raises(StartupFailed, match=r"slot 1 .*only in the worker") as caught:
        Pool([gym_env(Sound), gym_env(Foreign, kwargs={"home": os.getpid(), "kind": kind})], workers=2)
    assert isinstance(caught.value.failures[0], TaskRaised)


class Foreign(Sound):
    """Its observation space can be unpickled everywhere but in process `home`."""

    def __init__(self, home: int, kind: type[Exception]) -> None:
        super().__init__()
        self.observation_space = ForeignBox(home, kind)


class ForeignBox(gym.spaces.Box):
    def __init__(self, home: int, kind: type[Exception]) -> None:
        super().__init__(-np.inf, np.inf, (4,), np.float32)
        self.home, self.kind = home, kind

    def __reduce__(self) -> Any:
        return foreign_box, (self.home, self.kind)


def foreign_box(home: int, kind: type[Exception]) -> ForeignBox:
    if os.getpid() == home:
        raise kind("known only in the worker")
    return ForeignBox(home, kind)


def test_every_failed_worker_is_listed() -> None:
    kinds = [Sound, faults.InitRaises, faults.InitOsExits, Sound]
    with pytest.raises(StartupFailed) as caught:
        Pool([gym_env(kind) for kind in kinds], workers=4)
    by_slot = {error.where.slot: error for error in caught.value.failures}
    assert set(by_slot) == {1, 2}
    assert isinstance(by_slot[1], ValueError)
    died = by_slot[2]
    assert isinstance(died, WorkerDied)
    assert died.exit_code == 6
    assert died.stderr[-1] == "no licence found"
    assert died.where.phase == "init"


def test_what_a_worker_says_just_before_it_ends_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at in the moment in which its last words and its end have both come."""
    ended = ProcessWorker.ended

    def at_its_end(worker: ProcessWorker) -> bool:
        wait_readable([worker._child.pidfd], 30.0)
        return ended(worker)

    monkeypatch.setattr(ProcessWorker, "ended", at_its_end)
    with pytest.raises(StartupFailed) as caught:
        Pool([gym_env(faults.InitRaises)], workers=1)
    assert isinstance(caught.value.failures[0], ValueError)


class Begins(faults.HangsInInit):
    """Makes the file `begun` before it hangs."""

    begun = ""

    def at_init(self) -> None:
        Path(self.begun).touch()
        super().at_init()


def test_a_constructor_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_ends_with(begun := tmp_path / "begun", monkeypatch)
    with pytest.raises(StartupFailed) as caught:
        Pool([gym_env(Sound), gym_env(Begins, kwargs={"begun": str(begun)})], workers=2, start_timeout=60.0)
    late = caught.value.failures[-1]  # a busy machine may be too slow for the other one, too
    assert isinstance(late, WorkerTimeout)
    assert late.where.slot == 1
    assert "in __init__" in late.stack


def test_slots_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match="slot 1 has the observation_space"):
        Pool([gym_env(Sound), gym_env(faults.MissingKey)], workers=2)


HOW = {
    faults.OsExits: (3, None, "exited with code 3"),
    faults.Segfaults: (None, "SIGSEGV", "was ended by SIGSEGV"),
    faults.KillsItself: (None, "SIGKILL", "ended by SIGKILL"),
}


@pytest.mark.parametrize("setup", PROCESS, ids=show)
@pytest.mark.parametrize("fault", DEADLY, ids=lambda kind: kind.__name__)
def test_a_worker_dies(fault: type[Sound], setup: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "LAST_CALL", 30.0)  # it ends when the other worker has answered
    with Pool(with_fault(fault), **setup) as pool:
        warm(pool, 2)
        with within(5.0), pytest.raises(WorkerDied) as caught:
            pool.step(ACTIONS)
        error = caught.value
        code, name, said = HOW[fault]
        check_where(error, "step", process=True)
        assert (error.exit_code, error.signal) == (code, name)
        assert said in str(error)
        assert isinstance(error, EOFError)
        if fault is faults.OsExits:
            assert error.stderr == ("about to exit",)
        if fault is faults.Segfaults:
            assert "faults.py" in error.stack
        # what the other worker did is there
        assert pool.lockstep.valid.tolist() == [False, False, True, True]
        assert error.partial.observations[2:].tobytes() == sound_rows([2, 3], [3, 3]).tobytes()
        assert not error.partial.observations[:2].any()
        # the pool is broken, for the first cause, whatever is asked
        for ask in (lambda: pool.step(ACTIONS), pool.reset, lambda: pool.lockstep.call("steps")):
            with pytest.raises(BrokenPool, match=f"broken by: slot 1 .*{said}") as broken:
                ask()
            assert broken.value.__cause__ is error
            assert broken.value.where == error.where
        with within(2.0):
            pool.close()


def test_a_worker_dies_in_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "LAST_CALL", 30.0)
    with Pool(with_fault(faults.ResetOsExits), workers=4) as pool:
        with pytest.raises(WorkerDied, match=r"in reset.* exited with code 7") as caught:
            pool.reset(seeds=[7, 8, 9, 10])
        assert (caught.value.where.slot, caught.value.where.seed) == (FAULTY, 8)
        assert pool.lockstep.valid.tolist() == [False] * 4
        assert caught.value.partial.observations[2:].tobytes() == sound_rows([2, 3], [0, 0]).tobytes()


class Exits(Sound):
    """Ends its process where and in the slot that it is told."""

    def __init__(self, slot: int = 0, at: str = "") -> None:
        super().__init__()
        self.slot = slot
        if at == f"init {slot}":
            os._exit(8)

    def leave(self, slots: list[int]) -> int:
        if self.slot in slots:
            os._exit(8)
        return self.slot

    def give(self) -> Any:
        return Bomb() if self.slot == 2 else 0


class Bomb:
    def __reduce__(self) -> Any:
        os._exit(8)


def exits(at: str = "") -> list[Any]:
    return [gym_env(Exits, kwargs={"slot": slot, "at": at}) for slot in range(4)]


@pytest.mark.parametrize("guilty", [0, 2, 3])
def test_a_death_in_a_call_names_the_slot_that_was_at_work(guilty: int) -> None:
    with Pool(exits(), workers=1) as pool:
        pool.reset()
        assert pool.lockstep.call("leave", []) == [0, 1, 2, 3]
        with pytest.raises(WorkerDied, match=rf"slot {guilty} .*in call: .*code 8") as caught:
            pool.lockstep.call("leave", [guilty, 3])
        assert (caught.value.where.slot, caught.value.where.phase) == (guilty, "call")


def test_a_death_in_a_call_of_some_slots() -> None:
    with Pool(exits(), workers=1) as pool:
        pool.reset()
        with pytest.raises(WorkerDied, match="slot 3 "):
            pool.lockstep.call("leave", [0, 3], slots=[1, 3])


def test_a_death_when_all_slots_are_done_blames_none() -> None:
    """It came while their results were packed."""
    with Pool(exits(), workers=1) as pool:
        pool.reset()
        with pytest.raises(WorkerDied, match=r"^worker 0, pid \d+ in call: ") as caught:
            pool.lockstep.call("give")
        assert caught.value.where.slot is None


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_death_in_a_constructor_names_its_slot(start_method: str) -> None:
    with pytest.raises(StartupFailed, match=r"slot 2 .* in init: .*code 8") as caught:
        Pool(exits("init 2"), workers=2, start_method=start_method)
    assert [error.where.slot for error in caught.value.failures] == [2]


@pytest.mark.parametrize("setup", [{"backend": "thread"}, {"backend": "process"}], ids=show)
def test_a_constructor_that_hangs_is_named(
    setup: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_ends_with(begun := tmp_path / "begun", monkeypatch)
    kind = Begins if setup["backend"] == "process" else Slow
    with pytest.raises(StartupFailed) as caught:
        Pool([gym_env(Sound), gym_env(kind, kwargs={"begun": str(begun)})], workers=1, start_timeout=60.0, **setup)
    (late,) = caught.value.failures
    assert isinstance(late, WorkerTimeout)
    assert late.where.slot == 1
    LET_GO.set()


LET_GO = threading.Event()


class Slow(Begins):
    def at_init(self) -> None:
        Path(self.begun).touch()
        LET_GO.wait()


@pytest.mark.parametrize("setup", [LOCAL[1], PROCESS[0]], ids=show)
def test_an_interrupt_in_a_constructor_is_its_own(setup: dict[str, Any]) -> None:
    """In a worker there is no keyboard: it is what the constructor raised, and no death."""
    with pytest.raises(StartupFailed, match=r"slot 1 .* in init: KeyboardInterrupt") as caught:
        Pool([gym_env(Sound), gym_env(Interrupts), gym_env(Sound)], **setup)
    assert isinstance(caught.value.failures[0], TaskRaised)


class Interrupts(Sound):
    def __init__(self) -> None:
        super().__init__()
        raise KeyboardInterrupt


class Early(Sound):
    """Fails in its first step, and takes one before the first reset."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def step(self, action: Any) -> Any:
        if self.how == "exit":
            os._exit(8)
        raise ValueError("too early")


@pytest.mark.parametrize("how", ["exit", "raise"])
def test_before_the_first_episode_there_is_no_number_of_one(how: str) -> None:
    with Pool([gym_env(Early, kwargs={"how": how})], workers=1) as pool:
        with pytest.raises((WorkerDied, TaskRaised), match=r"slot 0 \(worker 0, pid \d+\) in step 1: ") as caught:
            pool.step([0])
        assert (caught.value.where.step, caught.value.where.episode) == (1, None)


def test_a_worker_dies_while_nobody_asks_anything() -> None:
    with Pool(with_fault(Sound), workers=2) as pool:
        warm(pool, 2)
        victim = pool.workers[0]
        os.kill(victim.pid, signal.SIGKILL)
        until(victim.ended)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            pool.step(ACTIONS)


def test_the_step_is_counted_from_the_episode_begin() -> None:
    """Over resets of single slots, calls and ends of episodes."""
    with Pool(with_fault(faults.OsExits, at=28), workers=2) as pool:
        warm(pool, 4)
        pool.lockstep.call("steps")
        pool.reset(slots=[0])
        for _ in range(23):
            pool.step(ACTIONS)
        with pytest.raises(WorkerDied) as caught:
            pool.step(ACTIONS)
        assert (caught.value.where.slot, caught.value.where.episode) == (FAULTY, 1)
        assert caught.value.where.step == 8


@pytest.mark.parametrize("fault", DEADLY, ids=lambda kind: kind.__name__)
def test_a_forked_worker_dies_like_any_other(fault: type[Sound]) -> None:
    with Pool(with_fault(fault), workers=2, start_method="fork") as pool:
        warm(pool, 2)
        with pytest.raises(WorkerDied) as caught:
            pool.step(ACTIONS)
        assert (caught.value.exit_code, caught.value.signal) == HOW[fault][:2]


@pytest.fixture
def grace(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    return lambda seconds: monkeypatch.setattr(failure, "LEAST_GRACE", seconds)


@pytest.mark.parametrize("fault", STUCK, ids=lambda kind: kind.__name__)
def test_a_worker_hangs(fault: type[Sound], grace: Callable[[float], None]) -> None:
    grace(600.0)
    with Pool(with_fault(fault), workers=2, close_timeout=0.3) as pool:
        warm(pool, 2)
        with pytest.raises(WorkerTimeout) as caught:
            pool.step_without(0, limit=0.3)
        error = caught.value
        check_where(error, "step", process=True)
        assert isinstance(error, TimeoutError)
        assert error.limit == 0.3
        assert error.elapsed >= 0.3
        if fault is not faults.StopsItself:
            assert "faults.py" in error.stack
        assert pool.lockstep.valid.tolist() == [False, False, True, True]
        assert error.partial.observations[2:].tobytes() == sound_rows([2, 3], [3, 3]).tobytes()
        with pytest.raises(UsageError, match=r"\[0, 1\]"):
            pool.step(ACTIONS)
        # the other worker is as good as ever; the late one is killed when its grace is over
        pool.reset(slots=[2, 3], seeds=[1, 2])
        grace(0.3)
        with within(3.0), pytest.raises(WorkerDied, match="SIGKILL"):
            pool.reset(slots=[0, 1])
        with pytest.raises(BrokenPool):
            pool.reset()
        with within(2.5):
            pool.close()


def test_close_after_a_hang_keeps_its_deadline() -> None:
    pool = Pool(with_fault(faults.DeafToTerm), workers=2, close_timeout=0.3)
    warm(pool, 2)
    with pytest.raises(WorkerTimeout):
        pool.step_without(0, limit=0.2)
    with within(0.3 + 1.0 + 0.3):
        pool.close()


def test_a_late_reply_is_never_taken_for_a_later_one(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Pool(with_fault(Gated, gate=str(gate)), workers=2) as pool:
        warm(pool, 2)
        with pytest.raises(WorkerTimeout) as caught:
            pool.step_without(0, limit=2.0)
        partial = caught.value.partial
        before = partial.observations.tobytes()
        pool.calls.step_timeout = 2.0  # the late step has taken as long: the reset behind it has a clock of its own
        pool.lockstep.post_reset(slots=[0, 1], seeds=[70, 80])
        gate.touch()
        batch = pool.lockstep.wait()
        pool.calls.step_timeout = None
        assert batch.observations[:2].tobytes() == np.array([[70, 0, 0, 0], [80, 0, 0, 0]], np.float32).tobytes()
        assert batch.observations[2:].tobytes() == sound_rows([2, 3], [3, 3]).tobytes()
        for t in range(1, 15):
            batch = pool.step(ACTIONS)
            assert batch.observations[:, 2].tolist() == [t, t, 3 + t, 3 + t]
            assert batch.rewards.tolist() == [t, t, 3 + t, 3 + t]
        assert partial.observations.tobytes() == before, "a row that was handed out has been written again"
        assert pool.workers[0].state is State.IDLE
        assert not pool.workers[0].late


def test_a_late_reply_never_writes_in_rows_that_were_handed_out(tmp_path: Path, grace: Callable[[float], None]) -> None:
    """While the late worker is at work, a batch of the others is handed out; its rows stay what they were."""
    grace(600.0)
    gate = tmp_path / "gate"
    with Pool(with_fault(Gated, gate=str(gate)), workers=2) as pool:
        warm(pool, 2)
        with pytest.raises(WorkerTimeout):
            pool.step_without(0, limit=0.2)
        held = [pool.reset(slots=[2, 3], seeds=[s, s]) for s in range(8)]
        before = [batch.observations.tobytes() for batch in held]
        pool.lockstep.post_reset(slots=[0, 1])
        gate.touch()
        pool.lockstep.wait()
        assert [batch.observations.tobytes() for batch in held] == before


@pytest.mark.parametrize("setup", [LOCAL[0], {"backend": "process", "workers": 1, "inline": 2}], ids=show)
def test_in_the_caller_a_deadline_is_measured(setup: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """It cannot be enforced there: the results come, with one warning and a count."""
    with (
        caplog.at_level(logging.WARNING, "treadle"),
        # so long that nothing else is late on a busy machine, the worker beside the caller's slots least of all
        Pool(with_fault(faults.SlowOnce, seconds=4.0), step_timeout=3.0, **setup) as pool,
    ):
        warm(pool, 2)
        assert pool.step(ACTIONS).rewards.tolist() == [3] * 4
        assert pool.step(ACTIONS).rewards.tolist() == [4] * 4
        assert pool.calls.overruns == 1
    assert sum("the limit is 3 s" in record.message for record in caplog.records) == 1


def test_without_a_limit_one_warning_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate, overdue, looks = tmp_path / "gate", Calls._overdue, 0

    def counted(calls: Calls, worker: Any, now: float) -> Any:
        nonlocal looks
        found = overdue(calls, worker, now)
        looks += bool(caplog.messages)
        if looks == 5:  # the warning's own, and four that could give another
            gate.touch()
        return found

    with Pool(with_fault(Gated, gate=str(gate)), workers=2) as pool:
        warm(pool, 2)
        with caplog.at_level(logging.WARNING, "treadle"):
            pool.lockstep.post_step(ACTIONS)
            until(lambda: answered(pool.workers[1]))
            monkeypatch.setattr("treadle.pool.calls.STILL_WAITING", 0.2)  # the other worker has answered
            monkeypatch.setattr(Calls, "_overdue", counted)
            assert pool.lockstep.wait().rewards.tolist() == [3] * 4
    (record,) = [r for r in caplog.records if r.name == "treadle"]
    assert "slot 1" in record.message
    assert "kit.py" in record.message


def test_the_number_of_a_dead_worker_is_its_own_until_it_is_buried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group can be signalled without hitting a stranger that got the number; afterwards nobody signals it."""
    with Pool([gym_env(Sound)] * 2, workers=2) as pool:
        warm(pool, 1)
        worker = pool.workers[0]
        os.kill(worker.pid, signal.SIGKILL)
        until(worker.ended)
        with Pool([gym_env(Sound)], workers=1):  # the fork server has been busy meanwhile
            assert state(worker.pid) == "Z"
        with pytest.raises(WorkerDied):
            pool.step([0, 1])
        assert not os.path.exists(f"/proc/{worker.pid}")
        signalled: list[Any] = []
        monkeypatch.setattr(os, "killpg", lambda *call: signalled.append(call))
        monkeypatch.setattr(os, "kill", lambda *call: signalled.append(call))
        worker.kill(signal.SIGKILL)
        assert not signalled
        monkeypatch.undo()
