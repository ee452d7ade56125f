"""Bells: they count, they wake, and a pool runs on any of them."""

import os
import threading
from typing import Any

import pytest
from kit import (
    show,
    warm,
    with_fault,
    within,
)

from treadle.pool import bell as bells
from treadle.pool.arena import Arena
from treadle.pool.bell import CELL, PipeBell, arena_bell, await_bell, init_cell, local_bell, spins
from treadle.pool.pool import Pool
from treadle.testing.faults import SlowOnce


@pytest.fixture(params=["arena", "pipe", "local"])
def a_bell(request: pytest.FixtureRequest) -> Any:
    if request.param == "local":
        yield local_bell()
        return
    if request.param == "pipe":
        pipe = PipeBell.new()
        yield pipe
        pipe.close()
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
        assert not await_bell(a_bell, 10, 0.05)
    a_bell.release()
    assert await_bell(a_bell, 0, 10.0)


def test_a_bell_wakes_a_sleeper(a_bell: Any) -> None:
    woken: list[bool] = []
    sleeper = threading.Thread(target=lambda: woken.append(await_bell(a_bell, 0, 10.0)))
    sleeper.start()
    a_bell.release()
    with within(5.0):
        sleeper.join()
    assert woken == [True]


def test_a_full_pipe_is_rung_all_the_same() -> None:
    pipe = PipeBell.new()
    for _ in range(70_000):
        pipe.release()
    assert pipe.acquire(False)
    pipe.close()


def test_who_tries_and_who_sleeps() -> None:
    on = bells.SPIN_TRIES
    assert spins(1, 0, 2) == (on, on)  # a core each
    assert spins(2, 0, 2) == (0, on)  # as many workers as cores: the caller sleeps
    assert spins(3, 0, 2) == (0, 0)
    assert spins(1, 4, 2) == (on, on)  # the caller's own share is one more that runs
    assert spins(2, 4, 2) == (0, 0)
    assert spins(8, 0, 1) == (0, 0)


def test_cores_follow_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert bells.cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("setup", [{"workers": 1}, {"workers": 2}, {"workers": 2, "inline": 1}], ids=show)
def test_a_pool_on_pipe_bells(setup: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where semaphores do not work in shared memory, everything else does."""
    monkeypatch.setattr(bells, "arena_bells_work", lambda: False)
    with Pool(with_fault(SlowOnce, seconds=0.2), **setup) as pool:
        assert isinstance(pool.grounding.pool_bell, PipeBell)
        warm(pool, 0)
        for t in range(1, 20):
            batch = pool.step([0, 1, 2, 3])
            assert batch.rewards.tolist() == [t] * 4
