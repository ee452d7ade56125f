"""A dead worker and its successor: the same place, a clean line, as often as it takes."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from kit import until, within

from treadle.errors import StartupFailed, TaskRaised, UsageError, WorkerDied
from treadle.pool import failure, life
from treadle.pool.failure import Policy, Verdict
from treadle.pool.life import State
from treadle.pool.member import Answered, Failed, Started
from treadle.pool.messages import Op
from treadle.pool.pool import Pool
from treadle.program.base import Program


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


def events(pool: Pool, kind: type, count: int = 1) -> list[Any]:
    """The next `count` events of a kind; others are dropped."""
    found: list[Any] = []

    def enough() -> bool:
        found.extend(event for event in pool.poll(0.05) if isinstance(event, kind))
        return len(found) >= count

    until(enough)
    return found


def numbers(pool: Pool, id: int) -> list[int]:
    """Everything a stream says."""
    found: list[int] = []
    while True:
        for event in pool.poll(5.0):
            assert isinstance(event, Answered), event
            assert event.reply.id == id
            if event.reply.last:
                return found
            found += event.reply.extras.infos.values()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_streaming_worker_is_replaced(method: str) -> None:
    with Pool([Counter] * 2, workers=2, rows=False, on_failure="restart", start_method=method) as pool:
        first, second = pool.members
        for _ in range(2 if method == "spawn" else 10):
            was = first.worker.pid
            pool.send(first, Op.STREAM, {0: 10**9})
            events(pool, Answered, 50)  # in the middle of it, with answers in the ring
            os.kill(was, signal.SIGKILL)
            (failed,) = events(pool, Failed)
            assert failed.member is first
            assert isinstance(failed.error, WorkerDied)
            assert failed.owed[0].request.op is Op.STREAM
            assert first.state is State.DEAD
            with pytest.raises(UsageError, match="dead"):
                pool.send(first, Op.STREAM, {0: 1})
            pool.calls.restart(first)
            (started,) = events(pool, Started)
            assert started.member is first
            assert first.worker.pid != was
            id = pool.send(first, Op.STREAM, {0: 300})  # more than the ring is deep
            assert numbers(pool, id) == list(range(300))
        id = pool.send(second, Op.STREAM, {1: 30})
        assert numbers(pool, id) == list(range(30)), "the other worker never noticed"
        assert pool.roster.restarts == len(first.restarts)


def test_a_worker_that_dies_at_its_first_request_again_and_again() -> None:
    with Pool([Counter], workers=1, rows=False, on_failure="restart") as pool:
        (member,) = pool.members
        for _ in range(5):
            pool.send(member, Op.STREAM, {0: -1})
            (failed,) = events(pool, Failed)
            assert failed.error.exit_code == 9
            pool.calls.restart(member)
            events(pool, Started)
        assert numbers(pool, pool.send(member, Op.STREAM, {0: 3})) == [0, 1, 2]


def test_a_restart_can_be_delayed() -> None:
    with Pool([Counter], workers=1, rows=False, on_failure="restart") as pool:
        (member,) = pool.members
        os.kill(member.worker.pid, signal.SIGKILL)
        until(member.worker.ended)
        events(pool, Failed)
        pool.calls.restart(member, delay=0.2)
        assert pool.poll(0.0) == []
        assert member.state is State.DEAD
        events(pool, Started)


def test_a_constructor_that_fails_the_second_time(tmp_path: Any) -> None:
    marker = tmp_path / "was-here"

    class Once(Counter):
        def __init__(self) -> None:
            if marker.exists():
                raise ValueError("only once")
            marker.touch()

    with Pool([Once], workers=1, rows=False, on_failure="restart") as pool:
        (member,) = pool.members
        os.kill(member.worker.pid, signal.SIGKILL)
        events(pool, Failed)
        pool.calls.restart(member)
        (failed,) = events(pool, Failed)
        assert isinstance(failed.error, TaskRaised)
        assert isinstance(failed.error, ValueError)
        assert failed.error.where.phase == "init"
        marker.unlink()
        pool.calls.restart(member)
        events(pool, Started)


def test_a_constructor_that_hangs_the_second_time(tmp_path: Any) -> None:
    """start_timeout holds for a restart, too."""
    marker = tmp_path / "was-here"

    class Once(Counter):
        def __init__(self) -> None:
            if marker.exists():
                signal.pause()
            marker.touch()

    with Pool([Once], workers=1, rows=False, on_failure="restart") as pool:
        (member,) = pool.members
        pool.roster.start_timeout = 0.5  # of the one that hangs, not of the first
        os.kill(member.worker.pid, signal.SIGKILL)
        events(pool, Failed)
        pool.calls.restart(member)
        with within(10.0):
            (failed,) = events(pool, Failed)
        assert failed.error.where.phase == "init"


def test_a_dropped_member_stays_gone() -> None:
    with Pool([Counter] * 2, workers=2, rows=False, on_failure="drop") as pool:
        first, second = pool.members
        os.kill(first.worker.pid, signal.SIGKILL)
        events(pool, Failed)
        pool.calls.drop(first)
        assert first.state is State.GONE
        with pytest.raises(UsageError, match="gone"):
            pool.send(first, Op.STREAM, {0: 1})
        assert numbers(pool, pool.send(second, Op.STREAM, {1: 3})) == [0, 1, 2]


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_a_stream_is_stopped(backend: str) -> None:
    with Pool([Counter], workers=1, rows=False, backend=backend) as pool:
        (member,) = pool.members
        id = pool.send(member, Op.STREAM, {0: 10**9})
        events(pool, Answered, 3)
        (member.worker if member.inline else member.worker.line).stop(id)

        def last() -> bool:
            return any(event.reply.last for event in pool.poll(0.05))

        until(last)
        assert numbers(pool, pool.send(member, Op.STREAM, {0: 2})) == [0, 1]


def test_too_many_requests_at_once_are_refused() -> None:
    """The ring is never overrun."""
    with Pool([Counter], workers=1, rows=False) as pool:
        (member,) = pool.members
        ids = []
        with pytest.raises(UsageError, match="take them first"):
            while True:
                ids.append(pool.send(member, Op.CALL, {0: ("pid", (), {})}))
        got: list[int] = []
        while len(got) < len(ids):
            got += [event.reply.id for event in pool.poll(5.0)]
        assert got == ids
        assert len(ids) >= 10


def test_a_pool_that_cannot_step_says_so() -> None:
    with Pool([Counter], workers=1, rows=False) as pool, pytest.raises(UsageError, match="rows=False"):
        pool.reset()
    with pytest.raises(StartupFailed):
        Pool([lambda: 1 / 0], workers=1, rows=False)


# -- decisions, without processes -------------------------------------------------------------------------------------


def test_what_a_death_leads_to() -> None:
    assert failure.on_death(Policy.RAISE, [], 0.0, 3) == Verdict(Policy.RAISE)
    assert failure.on_death(Policy.DROP, [], 0.0, 3) == Verdict(Policy.DROP)
    assert failure.on_death(Policy.RESTART, [], 5.0, 3) == Verdict(Policy.RESTART, 0.0)
    assert failure.on_death(Policy.RESTART, [1.0], 5.0, 3) == Verdict(Policy.RESTART, 0.5)
    assert failure.on_death(Policy.RESTART, [1.0, 2.0], 5.0, 3) == Verdict(Policy.RESTART, 1.0)
    assert failure.on_death(Policy.RESTART, [1.0, 2.0, 3.0], 5.0, 3) == Verdict(Policy.RAISE)
    assert failure.on_death(Policy.RESTART, [1.0, 2.0, 3.0], 603.5, 3) == Verdict(Policy.RESTART, 0.0)
    assert failure.on_death(Policy.RESTART, [1.0], 5.0, 0) == Verdict(Policy.RAISE)


def test_backoff_and_grace() -> None:
    assert [failure.backoff(k) for k in range(9)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert failure.grace(0.1) == failure.LEAST_GRACE
    assert failure.grace(60.0) == 60.0


def test_signals_have_names() -> None:
    assert failure.signal_name(signal.SIGSEGV) == "SIGSEGV"
    assert failure.signal_name(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"


def test_only_the_living_take_requests() -> None:
    assert {State.IDLE, State.BUSY, State.LATE} == life.ALIVE
