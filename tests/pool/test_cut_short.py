"""What an interrupt, a deadline or a bad payload cuts short: nothing is lost in silence, and no slot runs ahead."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import ACTIONS, Gated, Pool, until, warm

from conftest import ITS_OWN_ALARM
from treadle.errors import TaskRaised, UsageError, WorkerTimeout
from zoo import faults
from zoo.faults import Sound
from zoo.programs import gym_env


class Interrupts(Sound):
    """In the caller's own process this is what Ctrl-C in the middle of a step looks like."""

    def at_step(self, sound: Any) -> None:
        self.at = -1
        raise KeyboardInterrupt


def together(pool: Pool, t: int) -> None:
    """The next step is step `t` of every slot."""
    batch = pool.step(ACTIONS[: pool.n])
    assert batch.observations[:, 2].tolist() == [t] * pool.n
    assert pool.lockstep.valid.all()


def once(thing: Any, name: str, *, before: bool) -> None:
    """The next call of a method is interrupted: before it does anything, or when it is done."""
    real = getattr(thing, name)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        delattr(thing, name)
        if not before:
            real(*args, **kwargs)
        raise KeyboardInterrupt

    setattr(thing, name, interrupted)


@pytest.mark.parametrize("inline", [2, 4])
def test_an_interrupted_wait_never_hands_out_half_a_step(inline: int) -> None:
    """The caller's own slots cannot be finished: the next wait says so, and has the others' results."""
    kinds = [Sound, Interrupts, Sound, Sound]
    with Pool([gym_env(kind) for kind in kinds], workers=1, inline=inline) as pool:
        warm(pool, 2)
        pool.lockstep.post_step(ACTIONS)
        with pytest.raises(KeyboardInterrupt):
            pool.lockstep.wait()
        with pytest.raises(
            TaskRaised, match=r"slot 0 .* in step: KeyboardInterrupt: an interrupt .* cut it short"
        ) as e:
            pool.lockstep.wait()
        assert pool.lockstep.valid.tolist() == [slot >= inline for slot in range(4)]
        assert e.value.partial.observations[:, 2].tolist() == [0 if slot < inline else 3 for slot in range(4)]
        with pytest.raises(UsageError, match=r"reset them first"):
            pool.step(ACTIONS)
        pool.reset()
        together(pool, 1)


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_beside_the_own_share(before: bool) -> None:
    """Whether it had begun or not is not looked for: every slot must be reset, and each step says so until then."""
    with Pool([gym_env(Sound)] * 4, workers=1, inline=2) as pool:
        warm(pool, 2)
        server = next(m.server for m in pool.workers if m.inline)
        once(server, "step", before=before)
        with pytest.raises(KeyboardInterrupt):
            pool.step(ACTIONS)
        for _ in range(2):
            with pytest.raises(UsageError, match=r"slots \[0, 1, 2, 3\] moved on .* was interrupted"):
                pool.step(ACTIONS)
        assert pool.lockstep.call("steps") is not None  # other requests go on
        pool.reset(slots=[0, 1])
        with pytest.raises(UsageError, match=r"slots \[2, 3\] moved on"):
            pool.step(ACTIONS)
        pool.reset()
        together(pool, 1)


def test_own_slots_that_raised_before_an_interrupt_must_be_reset() -> None:
    kinds = [faults.StepRaises, Interrupts, Sound, Sound]
    with Pool([gym_env(kind) for kind in kinds], workers=1, inline=3) as pool:
        warm(pool, 2)
        with pytest.raises(KeyboardInterrupt):
            pool.step(ACTIONS)
        with pytest.raises(UsageError, match=r"slots \[0, 1, 2, 3\] moved on"):
            pool.step(ACTIONS)


def test_a_worker_that_said_so_before_an_interrupt_must_be_reset() -> None:
    """The first worker's words are taken, and the interrupt comes before anybody has heard them."""
    kinds = [faults.StepRaises, Sound, Sound, Sound]
    with Pool([gym_env(kind) for kind in kinds], workers=2) as pool:
        warm(pool, 2)
        once(pool.workers[0].line, "take", before=False)
        with pytest.raises(KeyboardInterrupt):
            pool.step(ACTIONS)
        with pytest.raises(UsageError, match=r"slots \[0, 1, 2, 3\] moved on"):
            pool.step(ACTIONS)
        pool.reset()
        together(pool, 1)


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_answers_that_were_noted_before_an_interrupt_are_kept(backend: str) -> None:
    """A posted step: what was noted is there when it is waited for again, and of what was not its slots are told."""
    with Pool([gym_env(faults.ReusesItsBuffer)] * 4, workers=2, backend=backend) as pool:
        warm(pool, 2)
        pool.lockstep.post_step(ACTIONS)
        once(pool.workers[0], "take", before=True)
        once(pool.workers[1], "settle", before=False)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                pool.lockstep.wait()
        with pytest.raises(
            TaskRaised, match=r"slot 2 .* in step: KeyboardInterrupt: an interrupt .* cut it short"
        ) as e:
            pool.lockstep.wait()
        assert e.value.partial.rewards.tolist() == [3, 3, 0, 0]
        assert [e.value.partial.infos[slot]["list"] for slot in range(2)] == [[3]] * 2
        with pytest.raises(UsageError, match=r"slots \[2, 3\] moved on"):
            pool.step(ACTIONS)
        pool.reset(slots=[2, 3])
        assert pool.step(ACTIONS).rewards.tolist() == [4, 4, 1, 1]


def test_slots_that_raised_beside_one_that_hangs_must_be_reset() -> None:
    kinds = [faults.StepRaises, Sound, faults.Hangs, Sound]
    with Pool([gym_env(kind) for kind in kinds], workers=2, close_timeout=0.2) as pool:
        warm(pool, 2)
        pool.calls.step_timeout = 3.0  # of the worker that does not hang, too
        with pytest.raises(WorkerTimeout):
            pool.step(ACTIONS)
        with pytest.raises(UsageError, match=r"slots \[0, 2, 3\] moved on"):
            pool.step(ACTIONS)


@ITS_OWN_ALARM
@pytest.mark.usefixtures("every_interrupt_is_heard")
def test_a_deadline_that_an_interrupted_step_misses_is_told_once(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    kinds = [faults.StepRaises, Sound, Gated, Sound]
    makers = [gym_env(kind, kwargs={"gate": str(gate)} if kind is Gated else {}) for kind in kinds]
    with Pool(makers, workers=2) as pool:
        warm(pool, 2)
        pool.calls.step_timeout = 2.0  # of the worker that is not slow, too
        gated = pool.workers[1].line

        def press() -> None:
            until(lambda: gated.posted > gated.taken)
            os.kill(os.getpid(), signal.SIGALRM)

        pressing = threading.Thread(target=press)
        previous = signal.signal(signal.SIGALRM, interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                pressing.start()
                pool.step(ACTIONS)
            pressing.join()
        finally:
            signal.signal(signal.SIGALRM, previous)
        with pytest.raises(WorkerTimeout, match="slot 2"):
            pool.step(ACTIONS)
        with pytest.raises(UsageError, match=r"slots \[0, 1, 2, 3\] moved on"):
            pool.step(ACTIONS)
        pool.calls.step_timeout = None  # the late worker may take its time
        gate.touch()
        pool.reset()
        together(pool, 1)


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_the_count_of_steps_after_an_interrupt() -> None:
    """It begins anew with the reset, also of slots behind the interrupted one."""
    makers = [gym_env(Interrupts, kwargs={"at": 2}), gym_env(faults.StepRaises, kwargs={"at": 4})]
    with Pool(makers, backend="serial") as pool:
        warm(pool, 1)
        with pytest.raises(KeyboardInterrupt):
            pool.step([0, 1])
        pool.reset()
        for _ in range(2):
            pool.step([0, 1])
        with pytest.raises(TaskRaised) as caught:
            pool.step([0, 1])
        assert (caught.value.where.slot, caught.value.where.step) == (1, 3)


def bad_options(pool: Pool) -> None:
    pool.reset(options=[{}, {}, {}, {"lock": threading.Lock()}])


def bad_call(pool: Pool) -> None:
    pool.lockstep.call("steps", threading.Lock())


@pytest.mark.parametrize("ask", [bad_options, bad_call])
@pytest.mark.parametrize("inline", [0, 2])
def test_a_request_that_cannot_be_sent_to_one_is_sent_to_none(ask: Callable[[Pool], None], inline: int) -> None:
    with Pool([gym_env(Sound)] * 4, workers=2, inline=inline) as pool:
        warm(pool, 2)
        asides = [worker.asides for worker in pool.workers]
        with pytest.raises(UsageError, match="cannot be sent"):
            ask(pool)
        assert [worker.asides for worker in pool.workers] == asides
        assert not any(worker.owed for worker in pool.workers)
        together(pool, 3)


def test_an_interrupt_in_the_middle_of_sending() -> None:
    """Some slots were reset and some were not: all that were asked must be reset."""
    with Pool([gym_env(Sound)] * 4, workers=2) as pool:
        warm(pool, 2)
        once(pool.workers[1], "post", before=True)
        with pytest.raises(KeyboardInterrupt):
            pool.reset(slots=[0, 3])
        with pytest.raises(UsageError, match=r"slots \[0, 3\] moved on"):
            pool.step(ACTIONS)
        pool.reset(slots=[0, 3])
        assert pool.step(ACTIONS).rewards.tolist() == [1, 3, 3, 1]
