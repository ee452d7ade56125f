"""Bells: they count and they wake."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from pool.kit import (
    Pool,
    show,
    until,
    warm,
    with_fault,
    within,
)
from treadle.memory.arena import Arena
from treadle.wire import bell as bells
from treadle.wire.bell import CELL, LONGEST, SHARED, LocalBell, Waiting, arena_bell, init_cell, who_tries
from zoo.faults import SlowOnce


@pytest.fixture(params=["arena", "local"])
def a_bell(request: pytest.FixtureRequest) -> Any:
    if request.param == "local":
        yield LocalBell()
        return
    arena = Arena()
    plan = arena.plan()
    field = plan.add("u1", (CELL,))
    arena.grow(plan)
    init_cell(arena, field)
    hold = arena.array(field)
    yield arena_bell(arena, field)
    del hold
    arena.forget()


def test_a_bell_counts(a_bell: Any) -> None:
    assert not a_bell.acquire(False)
    for _ in range(3):
        a_bell.release()
    assert [a_bell.acquire(False) for _ in range(4)] == [True, True, True, False]
    with within(1.0):
        assert not Waiting(a_bell, LONGEST).ring(0.05)
    a_bell.release()
    assert Waiting(a_bell).ring(10.0)


def test_a_bell_wakes_a_sleeper(a_bell: Any) -> None:
    woken: list[bool] = []
    sleeper = threading.Thread(target=lambda: woken.append(Waiting(a_bell).ring(10.0)))
    sleeper.start()
    a_bell.release()
    with within(5.0):
        sleeper.join()
    assert woken == [True]


def test_who_tries_and_who_sleeps() -> None:
    assert who_tries(1, 0, 2) == (LONGEST, LONGEST)  # a core each
    assert who_tries(2, 0, 2) == (SHARED, LONGEST)  # as many workers as cores: the caller has none of its own
    assert who_tries(3, 0, 2) == (0, 0)
    assert who_tries(1, 4, 2) == (LONGEST, LONGEST)  # the caller's own share is one more that runs
    assert who_tries(2, 4, 2) == (0, 0)
    assert who_tries(2, 0, 2, lockstep=False) == (0, 0)
    assert who_tries(8, 0, 1) == (0, 0)


@pytest.mark.parametrize("longest", [0, LONGEST], ids=["sleeps", "tries"])
def test_waiting_for_a_word(longest: int, a_bell: Any) -> None:
    """However early or late it comes, with its ring or before it, and after rings that mean nothing."""
    words, waiting = memoryview(bytearray(8 * 4)).cast("q"), Waiting(a_bell, longest)
    with within(1.0):
        assert not waiting.until(words, 1, 1, 0.05)
    for number in range(1, 50):
        for _ in range(number % 3):
            a_bell.release()

        def write(number: int = number) -> None:
            words[1] = number
            a_bell.release()

        other = threading.Timer(0.0005 * (number % 4), write)
        other.start()
        with within(5.0):
            while not waiting.until(words, 1, number, 1.0):
                pass
            other.join()
        assert words[1] == number
    words[1] = 0
    while a_bell.acquire(False):
        pass
    with within(1.0):
        assert not waiting.until(words, 1, 1, 0.05)


@pytest.mark.parametrize("setup", [{"workers": 1}, {"workers": 2}, {"workers": 1, "inline": 2}], ids=show)
def test_an_idle_pool_sleeps(setup: dict[str, Any]) -> None:
    """Workers that have learnt to expect the next step at once stop trying when there is none."""
    with Pool(with_fault(SlowOnce, at=10**6), **setup) as pool:
        warm(pool, 200)
        pids = [worker.pid for worker in pool.workers if not worker.inline]
        readings: list[list[int]] = []

        def nothing_used() -> bool:
            readings.append([cpu_ns(pid) for pid in pids])
            return len(readings) > 20 and readings[-1] == readings[-20]

        until(nothing_used, 10.0)


def cpu_ns(pid: int) -> int:
    """Processor time that a process has taken."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0])


def test_cores_follow_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert bells.cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"cpu.max": "150000 50000\n"}, 3),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "20000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_quota_of_either_version_of_cgroups_is_read(tmp_path: Path, files: dict[str, str], count: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert bells.quota(str(tmp_path)) == count
