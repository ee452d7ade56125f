"""Ctrl-C in the middle of a step, and then carry on with the right data."""

import contextlib
import gc
import itertools
import os
import queue
import signal
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from kit import ACTIONS, Pool, show, until, warm, with_fault
from scripts import Script

from conftest import ITS_OWN_ALARM
from injector import Injector, Interrupt
from treadle.errors import UsageError
from treadle.interrupts import Later, undisturbed
from zoo.faults import Sound


class Waits(Sound):
    """From its `at`-th reset on, each waits until somebody has opened the named pipe for writing."""

    def __init__(self, pipe: str) -> None:
        super().__init__(at=1)
        self.pipe = pipe

    def at_reset(self) -> None:
        self.at += 1
        os.close(os.open(self.pipe, os.O_RDONLY))


@pytest.mark.usefixtures("every_interrupt_is_heard")
def test_resets_that_are_interrupted_in_a_row_leave_one_to_wait_for(tmp_path: Path) -> None:
    """However often, and wherever: the worker is not sent another one while it is at the first."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    with Pool(with_fault(Waits, pipe=pipe), workers=2) as pool:
        pool.reset(seeds=range(pool.n))
        seeds = range(7, 7 + pool.n)

        def owing() -> int:
            return max(len(worker.owed) for worker in pool.workers)

        class AsSoonAsSent(Injector):
            def strike(self, frame: FrameType) -> None:
                self._left += 1  # the next point, unless
                if owing():
                    raise Interrupt

        injector = AsSoonAsSent()
        injector.run(lambda: pool.reset(seeds=seeds), 1)
        assert owing() == 1
        for _ in range(3):
            soon = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                soon.start()
                pool.reset(seeds=seeds)
            soon.join()
            assert owing() == 1, injector.moment
        gate = os.open(pipe, os.O_RDWR)
        try:
            check_together(pool.reset(seeds=seeds))
        finally:
            os.close(gate)


@pytest.mark.parametrize("inline", [0, 2])
@pytest.mark.usefixtures("every_interrupt_is_heard")
def test_a_step_that_settles_an_interrupted_one_may_be_interrupted_too(inline: int) -> None:
    """At whatever point: the step after it says that all slots must be reset."""
    with Pool(with_fault(Sound, n=4), workers=2, inline=inline) as pool:
        pool.reset(seeds=range(7, 7 + pool.n))

        class WhilePosting(Injector):
            def strike(self, frame: FrameType) -> None:
                self._left += 1  # the next point, unless
                if any(line.posted > line.taken for line in lines):
                    raise Interrupt

        def refused() -> bool:
            try:
                pool.step(ACTIONS)
            except UsageError as error:
                return str(error).startswith("slots [0, 1, 2, 3] moved on")
            return False

        lines = [worker.line for worker in pool.workers if not worker.inline]
        injector, said = Injector(), True
        for point in itertools.count(1):
            check_together(pool.reset(seeds=range(7, 7 + pool.n)))
            check_together(pool.step(ACTIONS))  # the next one takes the fast lane
            WhilePosting().run(lambda: pool.step(ACTIONS), 1)
            injector.moment = None
            injector.run(refused, point)
            if injector.moment is None:
                break
            said = refused()
            assert said, injector.moment
    assert point > 50


def test_an_interrupt_in_the_middle_of_a_step(tmp_path: Path) -> None:
    """A real SIGINT. The step is dropped, the next one says that a reset comes first, and then the data is right."""
    gate = tmp_path / "gate"
    body = """
        class Tells(Sound):
            def at_step(self, sound):
                say(slow=True)
                while not os.path.exists(gate):
                    time.sleep(0.005)
        gate = sys.argv[1]  # which a worker has not
        pool = Pool([gym_env(Sound)] * 3 + [gym_env(Tells, kwargs=dict(at=3))], workers=2)
        pool.reset(seeds=range(4))
        for _ in range(2):
            pool.step([0, 1, 2, 3])
        try:
            pool.step([0, 1, 2, 3])
            say(interrupted=False)
        except KeyboardInterrupt:
            say(interrupted=True)
        for _ in range(2):
            try:
                pool.step([0, 1, 2, 3])
            except UsageError as error:
                say(refused=str(error))
        pool.reset(seeds=range(4))
        for _ in range(3):
            batch = pool.step([3, 2, 1, 0])
            say(rows=batch.observations.tolist(), rewards=batch.rewards.tolist())
        pool.close()
    """
    script = Script(body, str(gate))
    assert script.hear() == {"slow": True}
    script.process.send_signal(signal.SIGINT)
    assert script.hear() == {"interrupted": True}
    gate.touch()
    for _ in range(2):
        told = script.hear()["refused"]
        assert told.startswith("slots [0, 1, 2, 3] moved on in a step that failed, timed out or was interrupted"), told
    for t in (1, 2, 3):
        expected = [[slot, 0, t, 3 - slot] for slot in range(4)]
        assert script.hear() == {"rows": expected, "rewards": [t] * 4}
    assert script.end() == (0, "")


@ITS_OWN_ALARM
@pytest.mark.parametrize("inline", [0, 2])
@pytest.mark.usefixtures("every_interrupt_is_heard")
def test_interrupts_at_random_moments(inline: int) -> None:
    """All slots have taken a step or none has, or the next step says that they must be reset."""
    steps = interrupts = 0
    refused: list[str] = []
    with Pool(with_fault(Sound, n=4), workers=2, inline=inline) as pool:
        warm(pool, 0)
        took = []
        for _ in range(200):
            began = time.perf_counter()
            pool.step(ACTIONS)
            took.append(time.perf_counter() - began)
        longest = 15 * float(np.median(took))  # on each machine: an alarm may cut one of ten steps short, or none
        check_together(pool.reset(seeds=range(7, 7 + pool.n)))
        previous = signal.signal(signal.SIGALRM, raise_interrupt)
        try:
            rng = np.random.default_rng(0)
            for tries in itertools.count():
                if tries >= 1500 and interrupts > 500 and len(refused) > 200 and steps > 100:
                    break
                known = len(refused)
                try:  # the alarm goes off once, in a step or after all of them
                    armed.append(True)
                    signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-6, longest)))
                    try:
                        for _ in range(10):
                            check_together(pool.step(ACTIONS))
                            steps += 1
                    except UsageError as error:
                        refused.append(str(error))
                    while signal.getitimer(signal.ITIMER_REAL)[0]:
                        time.sleep(0.0005)
                    armed.clear()
                except Interrupt:
                    interrupts += 1
                if len(refused) > known:
                    check_together(pool.reset(seeds=range(7, 7 + pool.n)))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        check_together(pool.reset(seeds=range(7, 7 + pool.n)))
        assert pool.step(ACTIONS).rewards.tolist() == [1] * 4
    assert all(told.startswith("slots [0, 1, 2, 3] moved on") for told in refused)


@pytest.mark.parametrize(
    ("setup", "tries"),
    [
        ({"backend": "thread"}, 60),
        ({"backend": "process"}, 60),
        ({"backend": "process", "inline": 1}, 40),
        ({"backend": "process", "start_method": "spawn"}, 5),
        pytest.param({"backend": "thread"}, 500, marks=pytest.mark.slow),
        pytest.param({"backend": "process"}, 250, marks=pytest.mark.slow),
        pytest.param({"backend": "process", "inline": 1}, 150, marks=pytest.mark.slow),
    ],
    ids=show,
)
@pytest.mark.timeout(300)
def test_interrupts_at_every_moment_of_a_pools_life(setup: dict[str, Any], tries: int) -> None:
    """No descriptor, thread or process is left behind (the fixture looks as well)."""

    injector, slots = Injector(), with_fault(Sound)  # their making pickles all that Gymnasium has registered

    def live() -> None:
        pool = Pool(slots, workers=2, close_timeout=2.0, **setup)
        pool.reset()
        pool.step(ACTIONS)
        injector.stop()
        pool.close()

    def gone() -> bool:  # collected each time: a thread that made something for the pool may hold it a while longer
        return held() <= before or (gc.collect() >= 0 and held() <= before)

    live()  # what is there once and for all
    points = injector.count(live)
    gc.collect()
    gc.freeze()  # what is collected below need not go through the whole session's heap
    before = held()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a pool that nobody has got yet closes itself, and says so
        for point in range(1, points + 1, max(1, points // tries)):
            injector.run(live, point)
            until(gone, what=f"everything of it is gone after {injector.moment}: {held()}")
    live()
    assert points > 100


@pytest.mark.parametrize(
    ("setup", "every"),
    [
        ({"backend": "thread"}, 7),
        ({"backend": "process"}, 7),
        ({"backend": "process", "inline": 1}, 7),
        pytest.param({"backend": "thread"}, 1, marks=pytest.mark.slow),
        pytest.param({"backend": "process"}, 1, marks=pytest.mark.slow),
        pytest.param({"backend": "process", "inline": 1}, 1, marks=pytest.mark.slow),
    ],
    ids=show,
)
def test_interrupts_at_every_moment_of_resets_and_steps(setup: dict[str, Any], every: int) -> None:
    """After each the next reset brings every slot back, and the data is right."""
    with Pool(with_fault(Sound), workers=2, **setup) as pool:

        def work() -> None:
            for seed in (7, 7):
                pool.reset(seeds=range(seed, seed + pool.n))
                pool.step(ACTIONS)

        injector = Injector()
        work()
        points = injector.count(work)
        for point in range(1, points + 1, every):
            injector.run(work, point)
            check_together(pool.reset(seeds=range(7, 7 + pool.n)))
            for t in (1, 2):
                batch = pool.step(ACTIONS)
                check_together(batch)
                assert batch.rewards.tolist() == [t] * pool.n, injector.moment
    assert points > 100


@ITS_OWN_ALARM
@pytest.mark.usefixtures("every_interrupt_is_heard")
def test_ctrl_c_never_parts_a_request_from_its_payload() -> None:
    """Every reset sends seeds of its own. Were one left behind, each reset after it would get those of another."""
    rng = np.random.default_rng(0)
    interrupts = 0
    with Pool(with_fault(Sound), workers=2) as pool:
        pool.reset(seeds=range(pool.n))
        previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        try:
            for i in range(1000):
                try:
                    signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-6, 1e-3)))
                    for k in range(3):
                        seeds = [100 * i + 10 * k + slot for slot in range(pool.n)]
                        batch = pool.reset(seeds=seeds)
                        assert batch.observations[:, 0].tolist() == seeds
                    while signal.getitimer(signal.ITIMER_REAL)[0]:
                        time.sleep(0.0005)
                except KeyboardInterrupt:
                    interrupts += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
    assert interrupts > 300


def test_ctrl_c_waits_for_the_end_of_a_block() -> None:
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt), Later():
        with Later():
            signal.raise_signal(signal.SIGINT)
            said.append("inner")
        said.append("outer")
    assert said == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def cut_short() -> None:
        Later().__enter__()  # and no end: an exception came in between

    cut_short()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    cut_short()
    with Later():
        said.append("healed")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def held() -> Counter[str]:
    """The kinds of descriptors that this process holds, and its threads.

    Without records of threads that are over: a thread that frees a pool as its last act asks who it is once more, and
    Python keeps what it makes to answer that.
    """
    threads = [each for each in threading.enumerate() if not isinstance(each, threading._DummyThread)]
    found = Counter(thread.name for thread in threads)
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            found[os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]] += 1
    return found


armed: list[bool] = []  # empty: an alarm that went off at the very end is answered too late, and means nothing


def raise_interrupt(*_: Any) -> None:
    if armed:
        armed.clear()
        raise Interrupt


def check_together(batch: Any) -> None:
    assert len(set(batch.observations[:, 2].tolist())) == 1, batch.observations
    assert batch.observations[:, 0].tolist() == [7, 8, 9, 10]


@pytest.mark.parametrize("how", [signal.SIG_UNBLOCK, signal.SIG_BLOCK])
def test_ctrl_c_is_heard_while_something_takes_long_to_be_made(how: int) -> None:
    """What it makes is discarded when it is there, by the thread that makes it.

    SIG_BLOCK: another thread gets the signal, and the wait goes on, as with one that comes just before the wait.
    """
    go, begun, discarded = threading.Event(), threading.Event(), queue.SimpleQueue[int]()

    def make() -> int:
        begun.set()
        return 3 if go.wait(20) else 4

    def press() -> None:
        begun.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    before = signal.pthread_sigmask(how, {signal.SIGINT})
    try:
        with pytest.raises(KeyboardInterrupt):
            undisturbed(make, discarded.put)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    pressing.join()
    assert discarded.empty()
    go.set()
    assert discarded.get(timeout=20) == 3


def test_what_cannot_be_made_in_a_thread_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the interpreter's end (Python 3.12), and beyond the system's limit, no thread can be started."""

    def refused(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refused)
    discarded: list[int] = []
    assert undisturbed(lambda: 3, discarded.append) == 3
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: 1 // 0, discarded.append)
    assert discarded == []
