"""A worker dies in lockstep and is not replaced: what is left goes on, and nobody mistakes the gap for data."""

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pool.kit import Pool, until
from pool.mortal import T, doom, mortals
from treadle.errors import BrokenPool, UsageError, WorkerDied
from treadle.lockstep.batch import News
from treadle.program.base import OnEnd
from treadle.worker.life import State

SEEDS = [70, 71, 72, 73]
ACTIONS = [0, 1, 2, 3]
MODES = list(OnEnd)
NOTE = News.ABORTED | News.DROPPED


def check_nothing(pool: Pool, batch: Any, slots: list[int]) -> None:
    """The slots' rows are zeros and not valid, and nothing is said of them."""
    assert not batch.observations[slots].any()
    assert not batch.rewards[slots].any()
    assert not (batch.truncated | batch.terminated)[slots].any()
    assert not pool.lockstep.valid[slots].any()
    assert not set(slots) & {*batch.infos, *batch.finals, *batch.news}


@pytest.mark.parametrize("on_end", MODES)
def test_a_death_in_a_step(on_end: OnEnd, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mortals(tmp_path, on_end, on_failure="drop") as pool:
        pool.reset(seeds=SEEDS)
        before = pool.step(ACTIONS).observations.copy()
        doom(tmp_path, 0, "step")
        with caplog.at_level(logging.WARNING, "treadle"):
            batch = pool.step(ACTIONS)
        (line,) = [record.getMessage() for record in caplog.records if record.name == "treadle"]
        assert "slot 0 (worker 0, pid " in line
        assert line.endswith("the worker exited with code 9; slots 0 to 1 of worker 0 are dropped")
        assert batch.truncated.tolist() == [True, True, False, False]
        assert batch.rewards.tolist() == [0, 0, 2, 2]
        assert batch.observations[:2].tolist() == before[:2].tolist()
        assert batch.news == {0: NOTE, 1: NOTE}
        if on_end is OnEnd.SAME_STEP:
            assert {slot: info for slot, (_, info) in batch.finals.items()} == {0: {}, 1: {}}
            assert batch.finals[1][0].tolist() == before[1].tolist()
        assert pool.lockstep.valid.tolist() == [False, False, True, True]
        for t in (3, 4):
            batch = pool.step(ACTIONS)
            check_nothing(pool, batch, [0, 1])
            assert batch.observations[2:].tolist() == [[72, 0, t, 2, 0], [73, 0, t, 3, 0]]
            assert pool.lockstep.valid[2:].all()
        assert pool.lockstep.missed.tolist() == [3, 3, 0, 0]
        assert pool.restarts == (0, 0, 0, 0)
        assert pool.workers[0].state is State.GONE


def test_requests_to_dropped_slots(tmp_path: Path) -> None:
    """Refused by name, unless all slots were asked."""
    with mortals(tmp_path, OnEnd.NEXT_STEP, on_failure="drop") as pool:
        pool.reset(seeds=SEEDS)
        doom(tmp_path, 0, "step")
        pool.step(ACTIONS)
        for ask in (lambda: pool.reset(slots=[1, 2]), lambda: pool.lockstep.call("ask", 1, slots=[1, 2])):
            with pytest.raises(UsageError, match=r"slots \[1\] were dropped"):
                ask()
        batch = pool.reset(seeds=SEEDS)
        check_nothing(pool, batch, [0, 1])
        assert batch.observations[2:, :3].tolist() == [[72, 1, 0], [73, 1, 0]]
        assert pool.lockstep.call("ask", 10) == [None, None, 12, 13]
        batch = pool.reset(slots=[2], seeds=[5])
        check_nothing(pool, batch, [0, 1])
        assert batch.observations[2:, 0].tolist() == [5, 73]
        batch = pool.step(ACTIONS)
        check_nothing(pool, batch, [0, 1])
        assert batch.observations[2:, T].tolist() == [1, 1]


def test_the_last_one_is_raised(tmp_path: Path) -> None:
    with mortals(tmp_path, OnEnd.NEXT_STEP, on_failure="drop") as pool:
        pool.reset(seeds=SEEDS)
        doom(tmp_path, 0, "step")
        pool.step(ACTIONS)
        doom(tmp_path, 3, "step")
        with pytest.raises(WorkerDied, match="slot 3") as caught:
            pool.step(ACTIONS)
        assert not caught.value.partial.observations.any()
        assert not pool.lockstep.valid.any()
        with pytest.raises(BrokenPool):
            pool.reset()


def test_between_two_episodes(tmp_path: Path) -> None:
    """There is none to be cut."""
    with mortals(tmp_path, OnEnd.NEXT_STEP, on_failure="drop") as pool:
        pool.reset(seeds=SEEDS)
        for _ in range(5):
            batch = pool.step(ACTIONS)
        assert batch.terminated.all()
        doom(tmp_path, 0, "reset")
        batch = pool.step(ACTIONS)
        assert {slot: batch.news[slot] for slot in (0, 1)} == {0: News.DROPPED, 1: News.DROPPED}
        assert not batch.truncated.any()
        assert not batch.observations[:2].any()
        check_nothing(pool, pool.step(ACTIONS), [0, 1])


def test_a_death_in_reset(tmp_path: Path) -> None:
    with mortals(tmp_path, OnEnd.SAME_STEP, on_failure="drop", workers=4) as pool:
        doom(tmp_path, 1, "reset")
        batch = pool.reset(seeds=SEEDS)
        assert batch.news == {1: NOTE}
        assert not batch.observations[1].any()
        assert batch.observations[[0, 2, 3], 0].tolist() == [70, 72, 73]
        check_nothing(pool, pool.step(ACTIONS), [1])


@pytest.mark.parametrize("on_end", MODES)
def test_a_death_that_only_the_next_step_can_tell(on_end: OnEnd, tmp_path: Path) -> None:
    """In a call, and in another slot's reset."""
    with mortals(tmp_path, on_end, n=6, workers=3, on_failure="drop") as pool:
        pool.reset(seeds=range(70, 76))
        before = pool.step([0] * 6).observations.copy()
        doom(tmp_path, 2, "call")
        with pytest.raises(WorkerDied) as caught:
            pool.lockstep.call("ask", 1)
        assert caught.value.partial == {0: 1, 1: 2, 4: 5, 5: 6}
        doom(tmp_path, 0, "reset")
        batch = pool.reset(slots=[0])
        assert batch.news == {0: NOTE}
        batch = pool.step([0] * 6)
        assert batch.truncated.tolist() == [False, True, True, True, False, False]
        assert batch.news == dict.fromkeys((1, 2, 3), NOTE)
        assert batch.observations[1:4].tolist() == before[1:4].tolist()
        assert pool.lockstep.valid.tolist() == [False] * 4 + [True] * 2
        check_nothing(pool, pool.step([0] * 6), [0, 1, 2, 3])


@pytest.mark.parametrize("between", [False, True])
def test_an_interrupt_while_a_worker_is_dropped(between: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What that step cannot tell any more the next one does, once those that live have been reset."""
    with mortals(tmp_path, OnEnd.NEXT_STEP, on_failure="drop") as pool:
        pool.reset(seeds=SEEDS)
        for _ in range(5 if between else 2):
            pool.step(ACTIONS)
        doom(tmp_path, 0, "reset" if between else "step")
        drop = pool.calls.drop

        def interrupted(worker: Any) -> None:
            drop(worker)
            raise KeyboardInterrupt

        monkeypatch.setattr(pool.calls, "drop", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.step(ACTIONS)
        with pytest.raises(UsageError, match=r"slots \[2, 3\] moved on"):
            pool.step(ACTIONS)
        assert pool.reset(slots=[2, 3]).news == {}
        batch = pool.step(ACTIONS)
        told = News.DROPPED if between else NOTE
        assert batch.news == {0: told, 1: told}
        assert batch.truncated.tolist() == [not between, not between, False, False]
        check_nothing(pool, pool.step(ACTIONS), [0, 1])


def test_a_death_that_a_reset_of_all_tells(tmp_path: Path) -> None:
    with mortals(tmp_path, OnEnd.NEXT_STEP, on_failure="drop") as pool:
        pool.reset(seeds=SEEDS)
        pool.step(ACTIONS)
        victim = pool.workers[0]
        os.kill(victim.pid, signal.SIGKILL)
        until(victim.ended)
        until(lambda: pool.reset(slots=[2]) and pool.workers[0].state is State.GONE)
        assert pool.reset().news == {0: NOTE, 1: NOTE}
        check_nothing(pool, pool.step(ACTIONS), [0, 1])
