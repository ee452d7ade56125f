"""A dead worker and its successor: the same place, a clean line, as often as it takes."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from kit import Pool, until, within

from treadle.errors import StartupFailed, TaskRaised, UsageError, WorkerDied
from treadle.pool import failure
from treadle.pool.events import Done, Lost, Ready
from treadle.pool.failure import Verdict
from treadle.program.base import Program
from treadle.wire.messages import Op, signal_name
from treadle.worker import life
from treadle.worker.life import RestartPolicy, State


class Counter(Program):
    """Streams 0, 1, 2, ... until it has sent `order` numbers or is stopped. An order of -1 ends the process."""

    def stream(self, order: int, control: Any) -> Iterator[Any]:
        if order < 0:
            os._exit(9)
        for i in range(order):
            if control.stopped():
                return
            yield i

    def pid(self) -> int:
        return os.getpid()


def heard(pool: Pool, timeout: float) -> list[Any]:
    """What has happened."""
    found: list[Any] = []
    pool.calls.poll(timeout, found.append)
    return found


def events(pool: Pool, kind: type, count: int = 1) -> list[Any]:
    """The next `count` events of a kind; others are dropped."""
    found: list[Any] = []

    def enough() -> bool:
        found.extend(event for event in heard(pool, 0.05) if isinstance(event, kind))
        return len(found) >= count

    until(enough)
    return found


def asked(pool: Pool, worker: Any, count: int) -> None:
    """Ask for a stream of so many numbers, under this number as its tag."""
    pool.calls.submit(worker, Op.STREAM, {worker.slots[0]: count}, worker.slots, count)


def numbers(pool: Pool, worker: Any, count: int) -> list[int]:
    """Everything that a stream of so many says."""
    asked(pool, worker, count)
    found: list[int] = []
    while True:
        for event in heard(pool, 5.0):
            assert isinstance(event, Done), event
            assert event.tag == count
            if event.reply.last:
                return found
            found += event.reply.extras.infos.values()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_streaming_worker_is_replaced(method: str) -> None:
    with Pool(
        [Counter] * 2, workers=2, rows=False, on_failure="restart", max_restarts=None, start_method=method
    ) as pool:
        first, second = pool.workers
        for _ in range(2 if method == "spawn" else 10):
            was = first.pid
            asked(pool, first, 10**9)
            events(pool, Done, 50)  # in the middle of it, with answers in the ring
            os.kill(was, signal.SIGKILL)
            (failed,) = events(pool, Lost)
            assert failed.worker is first
            assert isinstance(failed.error, WorkerDied)
            assert (failed.tags, failed.calls[0].op, failed.verdict) == ([10**9], Op.STREAM, RestartPolicy.RESTART)
            assert first.state is State.DEAD
            with pytest.raises(UsageError, match="dead"):
                asked(pool, first, 1)
            (started,) = events(pool, Ready)
            assert started.worker is first
            assert first.pid != was
            assert numbers(pool, first, 300) == list(range(300)), "more than the ring is deep"
        assert numbers(pool, second, 30) == list(range(30)), "the other worker never noticed"
        assert pool.group.restarts == len(first.restarts)


def test_a_worker_that_dies_at_its_first_request_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "BACKOFF", 0.01)
    with Pool([Counter], workers=1, rows=False, on_failure="restart", max_restarts=5) as pool:
        (worker,) = pool.workers
        for _ in range(5):
            asked(pool, worker, -1)
            (failed,) = events(pool, Lost)
            assert failed.error.exit_code == 9
            events(pool, Ready)
        assert numbers(pool, worker, 3) == [0, 1, 2]


def test_a_restart_can_be_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "BACKOFF", 2.0)
    with Pool([Counter], workers=1, rows=False, on_failure="restart") as pool:
        (worker,) = pool.workers
        for delay in (0.0, failure.BACKOFF):
            os.kill(worker.pid, signal.SIGKILL)
            until(worker.ended)
            (lost,) = events(pool, Lost)
            assert lost.delay == delay
            if delay:
                assert heard(pool, 0.0) == []
            assert worker.state is State.DEAD
            events(pool, Ready)


def test_a_constructor_that_fails_the_second_time(tmp_path: Any) -> None:
    marker = tmp_path / "was-here"

    class Once(Counter):
        def __init__(self) -> None:
            if marker.exists():
                raise ValueError("only once")
            marker.touch()

    with Pool([Once], workers=1, rows=False, on_failure="restart") as pool:
        (worker,) = pool.workers
        os.kill(worker.pid, signal.SIGKILL)
        events(pool, Lost)
        (failed,) = events(pool, Lost)
        assert failed.verdict is RestartPolicy.RAISE, "another one would fail in the same way"
        assert isinstance(failed.error, TaskRaised)
        assert isinstance(failed.error, ValueError)
        assert failed.error.where.phase == "init"
        marker.unlink()
        pool.calls.restart(worker)
        events(pool, Ready)


def test_a_constructor_that_hangs_the_second_time(tmp_path: Any) -> None:
    """start_timeout holds for a restart, too."""
    marker = tmp_path / "was-here"

    class Once(Counter):
        def __init__(self) -> None:
            if marker.exists():
                signal.pause()
            marker.touch()

    with Pool([Once], workers=1, rows=False, on_failure="restart") as pool:
        (worker,) = pool.workers
        pool.group.start_timeout = 0.5  # of the one that hangs, not of the first
        os.kill(worker.pid, signal.SIGKILL)
        events(pool, Lost)
        with within(10.0):
            (failed,) = events(pool, Lost)
        assert failed.error.where.phase == "init"


def test_a_dropped_member_stays_gone() -> None:
    with Pool([Counter] * 2, workers=2, rows=False, on_failure="drop") as pool:
        first, second = pool.workers
        os.kill(first.pid, signal.SIGKILL)
        events(pool, Lost)
        assert first.state is State.GONE
        with pytest.raises(UsageError, match="gone"):
            asked(pool, first, 1)
        assert numbers(pool, second, 3) == [0, 1, 2]


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_a_stream_is_stopped(backend: str) -> None:
    with Pool([Counter], workers=1, rows=False, backend=backend) as pool:
        (worker,) = pool.workers
        asked(pool, worker, 10**9)
        events(pool, Done, 3)
        pool.calls.stop()

        def last() -> bool:
            return any(event.reply.last for event in heard(pool, 0.05))

        until(last)
        assert numbers(pool, worker, 2) == [0, 1]


def test_too_many_requests_at_once_are_refused() -> None:
    """The ring is never overrun."""
    with Pool([Counter], workers=1, rows=False) as pool:
        (worker,) = pool.workers
        ids: list[int] = []
        with pytest.raises(UsageError, match="take them first"):
            while True:
                pool.calls.submit(worker, Op.CALL, {0: ("pid", (), {})}, (0,), len(ids))
                ids.append(len(ids))
        got: list[int] = []
        while len(got) < len(ids):
            got += [event.tag for event in heard(pool, 5.0)]
        assert got == ids
        assert len(ids) >= 10


def test_a_pool_that_cannot_step_says_so() -> None:
    with Pool([Counter], workers=1, rows=False) as pool, pytest.raises(UsageError, match="rows=False"):
        pool.reset()
    with pytest.raises(StartupFailed):
        Pool([lambda: 1 / 0], workers=1, rows=False)


# -- decisions, without processes -------------------------------------------------------------------------------------


def test_what_a_death_leads_to() -> None:
    assert failure.on_death(RestartPolicy.RAISE, [], 0.0, 3) == Verdict(RestartPolicy.RAISE)
    assert failure.on_death(RestartPolicy.DROP, [], 0.0, 3) == Verdict(RestartPolicy.DROP)
    assert failure.on_death(RestartPolicy.RESTART, [], 5.0, 3) == Verdict(RestartPolicy.RESTART, 0.0)
    assert failure.on_death(RestartPolicy.RESTART, [1.0], 5.0, 3) == Verdict(RestartPolicy.RESTART, 0.5)
    assert failure.on_death(RestartPolicy.RESTART, [1.0, 2.0], 5.0, 3) == Verdict(RestartPolicy.RESTART, 1.0)
    assert failure.on_death(RestartPolicy.RESTART, [1.0, 2.0, 3.0], 5.0, 3) == Verdict(RestartPolicy.RAISE)
    assert failure.on_death(RestartPolicy.RESTART, [1.0, 2.0, 3.0], 603.5, 3) == Verdict(RestartPolicy.RESTART, 0.0)
    assert failure.on_death(RestartPolicy.RESTART, [1.0], 5.0, 0) == Verdict(RestartPolicy.RAISE)


def test_backoff_and_grace() -> None:
    assert [failure.backoff(k) for k in range(9)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert failure.grace(0.1) == failure.LEAST_GRACE
    assert failure.grace(60.0) == 60.0


def test_signals_have_names() -> None:
    assert signal_name(signal.SIGSEGV) == "SIGSEGV"
    assert signal_name(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"


def test_only_the_living_take_requests() -> None:
    assert {State.IDLE, State.BUSY, State.LATE} == life.ALIVE
