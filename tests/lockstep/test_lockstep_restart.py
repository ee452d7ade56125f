"""A worker dies in lockstep and the others go on: what each slot is told, whatever the pool was doing."""

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs

from pool.kit import Pool, answered, limit_next, until, within
from pool.mortal import EPISODE, LENGTH, LIFE, SEED, Mortal, T, doom, mortals
from pool.plain import keep, rows_of, same
from treadle.errors import BrokenPool, TaskRaised, UsageError, WorkerDied, WorkerTimeout
from treadle.lockstep.batch import News
from treadle.pool import failure
from treadle.program.base import OnEnd
from treadle.seeding import restart_seed

SEEDS = [70, 71, 72, 73]
ACTIONS = [0, 1, 2, 3]
MODES = list(OnEnd)


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "BACKOFF", 0.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound workers have long to answer once another one has failed; the wait ends with their answers."""
    monkeypatch.setattr("treadle.lockstep.recover.LAST_CALL", 60.0)


def step(pool: Pool, times: int = 1) -> Any:
    for _ in range(times):
        batch = pool.step(ACTIONS)
    return batch


def play(pool: Pool, on_end: OnEnd, steps: int, before: dict[int, Callable[[], Any]]) -> list[list[Any]]:
    """The rows of so many steps; `before` has what happens before some of them. HOLD: what has ended is reset."""
    pool.reset(seeds=SEEDS)
    found = []
    for k in range(steps):
        before.get(k, lambda: None)()
        batch = step(pool)
        found.append([keep(row._asdict()) for row in rows_of(batch, pool.lockstep.valid)])
        ended = np.flatnonzero(batch.terminated | batch.truncated).tolist()
        if on_end is OnEnd.HOLD and ended:
            pool.reset(slots=ended)
    return found


def check_cut(pool: Pool, batch: Any, slots: list[int], before: Any, on_end: OnEnd, life: int = 1) -> None:
    """The slots' episodes were cut by this batch, which followed `before`; no other slot's was."""
    cut = np.isin(np.arange(pool.n), slots)
    assert batch.truncated.tolist() == cut.tolist()
    assert pool.lockstep.valid.tolist() == (~cut).tolist()
    assert not batch.terminated.any()
    assert not batch.rewards[cut].any()
    if on_end is OnEnd.SAME_STEP:
        assert batch.news == dict.fromkeys(slots, News.ABORTED | News.RESTARTED)
        assert set(batch.finals) == set(slots)
        for slot in slots:
            final, info = batch.finals[slot]
            assert final.tolist() == before[slot].tolist()
            assert info == {}
            assert batch.observations[slot].tolist() == [restart_seed(70, slot, life), 0, 0, 0, life]
    else:
        assert batch.news == dict.fromkeys(slots, News.ABORTED)
        assert batch.observations[cut].tolist() == before[cut].tolist()
        assert not batch.finals


def check_begun(pool: Pool, batch: Any, slots: list[int], life: int = 1) -> None:
    """These slots show the first row of a fresh environment, which no reset has asked for."""
    assert not pool.lockstep.valid[slots].any()
    assert not batch.truncated[slots].any()
    for slot in slots:
        assert batch.news[slot] == News.RESTARTED
        assert batch.observations[slot].tolist() == [restart_seed(70, slot, life), 0, 0, 0, life]


@pytest.mark.parametrize("what", ["exit", "kill", "hang"])
@pytest.mark.parametrize("on_end", MODES)
def test_a_death_in_a_step(on_end: OnEnd, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mortals(tmp_path, on_end, step_timeout=60 if what == "hang" else None) as pool:
        pool.reset(seeds=SEEDS)
        before = step(pool, 2).observations.copy()
        doom(tmp_path, 1, "step", what)
        if what == "hang":
            limit_next(pool.workers[0], 0.3)
        with caplog.at_level(logging.WARNING, "treadle"), within(4.0):
            batch = step(pool)
        check_cut(pool, batch, [0, 1], before, on_end)
        assert batch.observations[2:].tolist() == [[72, 0, 3, 2, 0], [73, 0, 3, 3, 0]]
        (line,) = [record.getMessage() for record in caplog.records if record.name == "treadle"]
        cause = {"exit": "exited with code 9", "kill": "ended by SIGKILL", "hang": "s (limit 0.3 s)"}
        assert line.startswith("slot 1 (worker 0, pid ")
        assert "in step 3 of episode 0" in line
        assert cause[what] in line
        assert "worker 0 is started anew for slots 0 to 1" in line
        if on_end is OnEnd.NEXT_STEP:
            check_begun(pool, step(pool), [0, 1])
        elif on_end is OnEnd.HOLD:
            with pytest.raises(UsageError, match=r"slots \[0, 1\] lost their worker"):
                step(pool)
            batch = pool.reset(slots=[0, 1])  # without a seed: fresh environments get their own all the same
            assert batch.observations[:2, SEED].tolist() == [restart_seed(70, slot, 1) for slot in (0, 1)]
        batch = step(pool)
        assert batch.observations[:2, T].tolist() == [1, 1]
        assert pool.lockstep.valid.all()
        assert not batch.infos
        assert pool.restarts == (1, 1, 0, 0)
        assert pool.lockstep.missed.tolist() == [1, 1, 0, 0]
        assert pool.lockstep.episodes.tolist()[:2] == [2, 2]


@pytest.mark.parametrize("on_end", MODES)
def test_other_slots_never_notice(on_end: OnEnd, tmp_path: Path) -> None:
    """Bit-identical to a run without deaths, and so are the slots that were hit until then, over three deaths."""
    (tmp_path / "calm").mkdir()
    with mortals(tmp_path / "calm", on_end, backend="serial") as calm:
        theirs = play(calm, on_end, 20, {})
    deaths = {k: lambda: doom(tmp_path, 0, "step") for k in (2, 9, 13)}
    with mortals(tmp_path, on_end) as pool:
        ours = play(pool, on_end, 20, deaths)
        assert pool.restarts == (3, 3, 0, 0)
    same([rows[2:] for rows in ours], [rows[2:] for rows in theirs])
    same([rows[:2] for rows in ours[:2]], [rows[:2] for rows in theirs[:2]])
    assert [row["observation"][LIFE] for row in ours[-1]] == [3, 3, 0, 0]


def test_a_fresh_environment_is_seeded_by_the_last_seeded_reset(tmp_path: Path) -> None:
    with mortals(tmp_path, OnEnd.SAME_STEP, n=2) as pool:
        pool.reset()
        expected: list[int] = [-1]
        for life, seeds in enumerate(([900, 901], [5, None], [None, 1]), 2):
            doom(tmp_path, 1, "step")
            assert pool.step([0, 0]).observations[1].tolist() == [expected[-1], 0, 0, 0, life - 1]
            pool.reset(seeds=seeds)
            pool.reset()
            root = {900: 900, 5: 5}.get(seeds[0] or 0, 0)  # the first slot's, or what would have been
            expected.append(restart_seed(root, 1, life))
    assert len(set(expected)) == 4


def test_a_slot_between_two_episodes_is_not_cut(tmp_path: Path) -> None:
    """In the step that begins its next episode there is none to cut: the fresh environment begins it."""
    with mortals(tmp_path, OnEnd.NEXT_STEP) as pool:
        pool.reset(seeds=SEEDS)
        step(pool, 3)
        pool.reset(slots=[0], seeds=[80])  # slot 0 will be in the middle of an episode when slot 1 is between two
        last = step(pool, 2).observations.copy()
        doom(tmp_path, 1, "reset")
        batch = step(pool)
        assert batch.truncated.tolist() == [True, False, False, False]
        assert batch.news == {0: News.ABORTED, 1: News.RESTARTED}
        assert batch.observations[0].tolist() == last[0].tolist()
        assert batch.observations[1].tolist() == [restart_seed(80, 1, 1), 0, 0, 0, 1]
        assert batch.observations[2:, EPISODE].tolist() == [1, 1]
        assert not pool.lockstep.valid.any()
        assert pool.lockstep.episodes.tolist() == [2, 2, 2, 2]
        batch = step(pool)
        assert batch.news == {0: News.RESTARTED}
        assert batch.observations[:, T].tolist() == [0, 1, 1, 1]
        assert pool.lockstep.valid.tolist() == [False, True, True, True]
        assert pool.lockstep.episodes.tolist() == [3, 2, 2, 2]


@pytest.mark.parametrize("on_end", MODES)
def test_a_death_in_reset_is_made_good(on_end: OnEnd, tmp_path: Path) -> None:
    """The same seeds and options once more; nobody is told but the log."""
    with mortals(tmp_path, on_end) as pool:
        doom(tmp_path, 1, "reset")
        batch = pool.reset(seeds=SEEDS, options=[None, {"level": 3}, None, {"level": 5}])
        assert batch.observations[:, :LIFE].tolist() == [[seed, 0, 0, 0] for seed in SEEDS]
        assert batch.observations[:, LIFE].tolist() == [1, 1, 0, 0]
        assert batch.infos == {1: {"options": {"level": 3}}, 3: {"options": {"level": 5}}}
        assert not batch.truncated.any()
        assert step(pool).rewards.tolist() == [1.0] * 4
        assert pool.lockstep.episodes.tolist() == [1] * 4
        # of some slots: the worker's other ones are cut, as the next step tells
        doom(tmp_path, 3, "reset")
        before = pool.reset(slots=[3], seeds=[9]).observations.copy()
        assert before[3].tolist() == [9, 0, 0, 0, 1]
        assert before[2].tolist() == [72, 0, 1, 2, 0]
        batch = step(pool)
        assert batch.truncated.tolist() == [False, False, True, False]
        assert News.ABORTED in batch.news[2]
        assert batch.observations[[0, 1, 3], T].tolist() == [2, 2, 1]


@pytest.mark.parametrize("on_end", MODES)
def test_a_death_in_a_call_is_raised(on_end: OnEnd, tmp_path: Path) -> None:
    with mortals(tmp_path, on_end) as pool:
        pool.reset(seeds=SEEDS)
        before = step(pool).observations.copy()
        assert pool.lockstep.call("ask", 10) == [10, 11, 12, 13]
        doom(tmp_path, 2, "call")
        with pytest.raises(WorkerDied, match="exited with code 9") as caught:
            pool.lockstep.call("ask", 10)
        assert caught.value.partial == {0: 10, 1: 11}
        assert pool.lockstep.call("ask", 20) == [20, 21, 22, 23], "a fresh worker is there"
        check_cut(pool, step(pool), [2, 3], before, on_end)


def test_a_death_while_nobody_asks_anything(tmp_path: Path) -> None:
    """Seen by a reset of others: they get their reset, and the next step tells."""
    with mortals(tmp_path, OnEnd.NEXT_STEP) as pool:
        pool.reset(seeds=SEEDS)
        step(pool)
        victim = pool.workers[1]
        os.kill(victim.pid, signal.SIGKILL)
        until(victim.ended)
        until(lambda: pool.reset(slots=[0, 1]) and pool.restarts == (0, 0, 1, 1))
        before = pool.reset(slots=[0, 1], seeds=[70, 71]).observations.copy()
        check_cut(pool, step(pool), [2, 3], before, OnEnd.NEXT_STEP)
        check_begun(pool, step(pool), [2, 3])


def test_rows_that_have_arrived_are_kept(tmp_path: Path) -> None:
    """A worker that answers and then dies, while another one is awaited: its rows are good, the next step tells."""
    with mortals(tmp_path, OnEnd.SAME_STEP) as pool:
        pool.reset(seeds=SEEDS)
        doom(tmp_path, 2, "step", "wait")
        pool.lockstep.post_step(ACTIONS)
        sound = pool.workers[0]
        until(lambda: answered(sound))
        with pytest.raises(TimeoutError, match=r"slots \[2, 3\]"):
            pool.lockstep.wait(0.0)
        os.kill(sound.pid, signal.SIGKILL)
        until(sound.ended)
        (tmp_path / "2.go").touch()
        batch = pool.lockstep.wait(60.0)  # a worker is started in it
        assert batch.rewards.tolist() == [1.0] * 4
        assert pool.lockstep.valid.all()
        before = batch.observations.copy()
        check_cut(pool, step(pool), [0, 1], before, OnEnd.SAME_STEP)


@pytest.mark.parametrize("on_end", [OnEnd.SAME_STEP, OnEnd.NEXT_STEP])
def test_an_interrupt_while_a_worker_is_replaced(
    on_end: OnEnd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is dropped, as ever, and every slot is reset, those of the fresh worker like the others."""
    with mortals(tmp_path, on_end) as pool:
        pool.reset(seeds=SEEDS)
        step(pool)
        doom(tmp_path, 0, "step")
        restart = pool.group.restart

        def interrupted(worker: Any) -> None:
            restart(worker)
            raise KeyboardInterrupt

        monkeypatch.setattr(pool.group, "restart", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(pool)
        monkeypatch.undo()
        with pytest.raises(UsageError, match=r"slots \[0, 1, 2, 3\] moved on"):
            step(pool)
        assert pool.restarts == (1, 1, 0, 0)
        assert pool.reset(seeds=SEEDS).news == {}
        assert step(pool, 2).observations[:, T].tolist() == [2] * 4
        assert pool.lockstep.valid.all()


def test_all_workers_die_at_once(tmp_path: Path) -> None:
    with mortals(tmp_path, OnEnd.NEXT_STEP) as pool:
        pool.reset(seeds=SEEDS)
        before = step(pool).observations.copy()
        doom(tmp_path, 0, "step")
        doom(tmp_path, 3, "step", "kill")
        check_cut(pool, step(pool), [0, 1, 2, 3], before, OnEnd.NEXT_STEP)
        check_begun(pool, step(pool), [0, 1, 2, 3])


@pytest.mark.parametrize("on_end", MODES)
def test_a_fresh_worker_that_dies_in_its_turn(on_end: OnEnd, tmp_path: Path) -> None:
    """Killed while it starts, and once more in its first reset: the episode is cut once."""
    with mortals(tmp_path, on_end) as pool:
        pool.reset(seeds=SEEDS)
        before = step(pool).observations.copy()
        doom(tmp_path, 0, "step")
        doom(tmp_path, 1, "init", "kill")
        doom(tmp_path, 1, "reset")
        batch = step(pool)
        if on_end is OnEnd.SAME_STEP:
            check_cut(pool, batch, [0, 1], before, on_end, life=3)
        elif on_end is OnEnd.NEXT_STEP:
            check_cut(pool, batch, [0, 1], before, on_end)
            check_begun(pool, step(pool), [0, 1], life=3)
        else:
            check_cut(pool, batch, [0, 1], before, on_end)
            batch = pool.reset(slots=[0, 1])
            assert batch.observations[:2, SEED].tolist() == [restart_seed(70, slot, 3) for slot in (0, 1)]
        assert pool.restarts == (3, 3, 0, 0)
        assert pool.lockstep.episodes.tolist() == [2, 2, 1, 1]
        assert step(pool).observations[:2, T].tolist() == [1, 1]


@pytest.mark.usefixtures("patient")
def test_the_budget_is_used_up(tmp_path: Path) -> None:
    with mortals(tmp_path, OnEnd.SAME_STEP, max_restarts=2) as pool:
        pool.reset(seeds=SEEDS)
        for _ in range(2):
            doom(tmp_path, 0, "step")
            assert step(pool).truncated.tolist() == [True, True, False, False]
        doom(tmp_path, 0, "step")
        with pytest.raises(WorkerDied, match=r"slot 0 .*exited with code 9") as caught:
            step(pool)
        assert "max_restarts=2" in caught.value.__notes__[0]
        assert "on_failure='restart'" not in str(caught.value)
        assert caught.value.partial.observations[2:, T].tolist() == [3, 3]
        assert not caught.value.partial.observations[:2].any()
        assert pool.lockstep.valid.tolist() == [False, False, True, True]
        with pytest.raises(BrokenPool, match="broken by: slot 0"):
            pool.reset()


def test_restarts_back_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "BACKOFF", 0.4)
    with mortals(tmp_path, OnEnd.SAME_STEP) as pool:
        pool.reset(seeds=SEEDS)
        for _ in range(2):
            doom(tmp_path, 0, "step")
            step(pool)
        first, second = pool.workers[0].restarts
        assert second - first >= 0.4
    assert failure.backoff(5000) == failure.LONGEST_BACKOFF


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("what", ["raise", "hang"])
def test_a_constructor_that_fails_the_second_time(what: str, tmp_path: Path) -> None:
    """It would do so again: raised, and the pool is broken."""
    with mortals(tmp_path, OnEnd.NEXT_STEP) as pool:
        pool.reset(seeds=SEEDS)
        if what == "hang":
            pool.group.start_timeout = 0.5  # of the one that hangs, not of the first
        doom(tmp_path, 1, "step")
        doom(tmp_path, 0, "init", what)
        with within(6.0), pytest.raises(TaskRaised if what == "raise" else WorkerDied) as caught:
            step(pool)
        assert caught.value.where.phase == "init"
        assert isinstance(caught.value, ValueError) == (what == "raise")
        assert caught.value.partial.observations[2:, T].tolist() == [1, 1]
        with pytest.raises(BrokenPool):
            step(pool)


def test_what_an_environment_raises_is_raised_as_ever(tmp_path: Path) -> None:
    """Its worker lives. A reset that raises in a fresh environment is that slot's own failure, too."""
    with mortals(tmp_path, OnEnd.SAME_STEP) as pool:
        pool.reset(seeds=SEEDS)
        doom(tmp_path, 1, "step", "raise")
        with pytest.raises(ValueError, match="slot 1 "):
            step(pool)
        pool.reset(slots=[1])
        doom(tmp_path, 0, "step")
        doom(tmp_path, 1, "reset", "raise")
        with pytest.raises(ValueError, match=r"slot 1 .* in reset") as caught:
            step(pool)
        assert caught.value.partial.news == {0: News.ABORTED | News.RESTARTED}
        assert caught.value.partial.truncated.tolist() == [True, False, False, False]
        assert pool.reset(slots=[1]).observations[1, SEED] == restart_seed(70, 1, 1)
        assert step(pool).observations[:2, T].tolist() == [1, 1]


def test_a_hang_in_a_call(tmp_path: Path) -> None:
    with mortals(tmp_path, OnEnd.NEXT_STEP, step_timeout=60) as pool:
        pool.reset(seeds=SEEDS)
        doom(tmp_path, 0, "call", "hang")
        limit_next(pool.workers[0], 0.3)
        with within(4.0), pytest.raises(WorkerTimeout, match=r"slot 0 .* in call"):
            pool.lockstep.call("ask", 1)
        assert pool.lockstep.call("ask", 1) == [1, 2, 3, 4]


class Worded(Mortal):
    """The same, with a part of no fixed shape."""

    observation_space = gs.Dict(row=Mortal.observation_space, word=gs.Text(20))

    def observe(self, action: int) -> Any:
        return {"row": super().observe(action), "word": f"e{self.episode}t{self.t}"}


@pytest.mark.parametrize("on_end", [OnEnd.SAME_STEP, OnEnd.NEXT_STEP])
def test_observations_without_a_fixed_shape(on_end: OnEnd, tmp_path: Path) -> None:
    with mortals(tmp_path, on_end, kind=Worded) as pool:
        pool.reset(seeds=SEEDS)
        step(pool, 2)
        doom(tmp_path, 0, "step")
        batch = step(pool)
        last = [batch.finals[slot][0] for slot in (0, 1)] if on_end is OnEnd.SAME_STEP else None
        shown = batch.observations["word"]
        assert shown[2:] == ["e0t3"] * 2
        assert ([each["word"] for each in last] if last else shown[:2]) == ["e0t2"] * 2
        assert shown[:2] == (["e0t0"] * 2 if last else ["e0t2"] * 2)


def test_batches_that_the_caller_keeps(tmp_path: Path) -> None:
    """More than there are blocks: rows that are shown again are still the last ones."""
    with mortals(tmp_path, OnEnd.NEXT_STEP, blocks=2) as pool:
        held = [pool.reset(seeds=SEEDS)] + [step(pool) for _ in range(LENGTH - 1)]
        doom(tmp_path, 0, "step")
        held.append(step(pool))
        assert held[-1].observations[:2].tolist() == held[-2].observations[:2].tolist()
        assert held[-1].news == {0: News.ABORTED, 1: News.ABORTED}
    assert [batch.observations[2, T] for batch in held] == list(range(LENGTH + 1))


@pytest.mark.parametrize("setup", [{"backend": "thread"}, {"inline": 2, "workers": 1}], ids=str)
def test_slots_in_the_callers_process(setup: dict[str, Any], tmp_path: Path) -> None:
    """Nothing there can die alone; the others are replaced."""
    with mortals(tmp_path, OnEnd.SAME_STEP, **setup) as pool:
        pool.reset(seeds=SEEDS)
        before = step(pool).observations.copy()
        if "inline" in setup:
            doom(tmp_path, 2, "step")
            check_cut(pool, step(pool), [2, 3], before, OnEnd.SAME_STEP)
        else:
            assert step(pool).rewards.tolist() == [2.0] * 4
