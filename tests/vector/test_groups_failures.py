"""Groups when something dies, hangs or is interrupted: the same promises as for all slots at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from small_envs import Counter, assert_same, of
from test_on_failure import MODES, Bomb

from injector import Injector, Pressed
from treadle.errors import BrokenPool, UsageError, WorkerDied, WorkerTimeout
from treadle.testing.faults import Hangs, KillsItself, SlowOnce, Sound
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.owned import rows_of_infos

ONES, TWO = np.ones(4, np.int64), np.ones(2, np.int64)


def faulty(fault: Callable[..., gym.Env], **options: Any) -> VectorEnv:
    """Four slots in two groups and two workers; the fault strikes in the third step of slot 1."""
    return VectorEnv([Sound, of(fault, at=3), Sound, Sound], groups=2, workers=2, **options)


def test_a_death() -> None:
    """It names slot, step and signal, at once, and everything after it is refused."""
    with closing(faulty(KillsItself)) as vector:
        vector.reset(seed=7)
        with pytest.raises(WorkerDied) as caught:
            for group in vector.groups():
                group.step(TWO)
        assert (caught.value.where.slot, caught.value.where.step, caught.value.signal) == (1, 3, "SIGKILL")
        for act in (lambda: next(vector.groups()), lambda: vector.step(ONES)):
            with pytest.raises(BrokenPool):
                act()


def test_a_death_in_a_rollout() -> None:
    with closing(faulty(KillsItself)) as vector:
        vector.reset(seed=7)
        with pytest.raises(WorkerDied) as caught:
            vector.rollout(lambda seen: np.ones(len(seen), np.int64), steps=9, groups=2)
        assert (caught.value.where.slot, caught.value.where.step) == (1, 3)


def test_a_missed_deadline() -> None:
    """The slots of the worker need a reset, those of the other worker none; the vector goes on."""
    with closing(faulty(partial(SlowOnce, seconds=1.5), step_timeout=0.3)) as vector:
        vector.reset(seed=7)
        with pytest.raises(WorkerTimeout) as caught:
            for group in vector.groups(steps=9):
                group.step(TWO)
        assert caught.value.where.slot == 1
        with pytest.raises(UsageError, match=r"slots \[0, 1\] moved on.*reset them first"):
            vector.step(ONES)
        vector.reset(seed=7)
        seen = [group.rewards.tolist() for group in vector.groups(steps=3) if group.t == 3 or group.step(TWO)]
        assert seen == [[3.0, 3.0], [3.0, 3.0]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_failure", ["restart", "drop"])
@pytest.mark.parametrize("workers", [2, 4])
def test_going_on_after_a_death(tmp_path: Path, mode: str, on_failure: str, workers: int) -> None:
    """Row by row what a step of all slots says of the same deaths, infos and `valid` included. (With four workers each
    slot has its own, so it does not matter which of them had been stepped when one died.)"""
    actions = np.array([0, 1, 0, 0])  # slot 1 dies in step 2 of its first life, and its worker's other slots with it
    results = []
    for groups in (1, 2):
        folder = tmp_path / str(groups)
        folder.mkdir()
        envs = [of(Bomb, str(folder), slot) for slot in range(4)]
        options: dict[str, Any] = {"workers": workers, "autoreset_mode": mode, "on_failure": on_failure}
        with closing(VectorEnv(envs, groups=groups, **options)) as vector:
            vector.reset(seed=3)
            results.append((in_groups if groups > 1 else together)(vector, actions, 9))
            stats = vector.stats()
            results[-1] += [stats.steps.tolist(), stats.restarts.tolist(), stats.episodes.tolist()]
    told, grouped = results
    if workers == 4:
        assert_same(grouped, told)
    for slot in (1,) if workers == 4 else (0, 1):
        assert "aborted" in str(grouped[slot])
        if mode != "Disabled" or on_failure == "drop":  # else the reset tells
            assert ("dropped" if on_failure == "drop" else "restarted") in str(grouped[slot])
    assert "aborted" not in str(grouped[3])


Row = tuple[Any, ...]  # observation, reward, terminated, truncated, info, valid


def together(vector: VectorEnv, actions: np.ndarray, steps: int) -> list[list[Row]]:
    """The rows of each slot; in DISABLED mode those that have ended are reset before the next step."""
    found: list[list[Row]] = [[] for _ in range(vector.num_envs)]
    for _ in range(steps):
        observations, rewards, terminated, truncated, infos = vector.step(actions)
        note(found, range(vector.num_envs), observations, rewards, terminated, truncated, infos, vector.valid)
        if (over := ended(vector, terminated | truncated, infos)) is not None:
            vector.reset(options={"reset_mask": over})
    return found


def in_groups(vector: VectorEnv, actions: np.ndarray, steps: int) -> list[list[Row]]:
    found: list[list[Row]] = [[] for _ in range(vector.num_envs)]
    for group in vector.groups(steps=steps):
        slots = range(vector.num_envs)[group.slots]
        if group.t:
            parts = group.observations, group.rewards, group.terminated, group.truncated, group.infos, group.valid
            note(found, slots, *parts)
            if (over := ended(vector, group.terminated | group.truncated, group.infos)) is not None:
                group.reset(options={"reset_mask": over})
        if group.t < steps:
            group.step(actions[group.slots])
    return found


def note(found: list[list[Row]], slots: range, *parts: Any) -> None:
    *arrays, infos, valid = parts
    told = rows_of_infos(infos, len(slots))
    for row, slot in enumerate(slots):
        found[slot].append((*(array[row].tolist() for array in arrays), told.get(row, {}), bool(valid[row])))


def ended(vector: VectorEnv, over: np.ndarray, infos: Any) -> np.ndarray | None:
    """Slots to be reset, in DISABLED mode; None: there are none."""
    over = over & ~np.array(infos.get("dropped", [False] * len(over)), bool)
    return over if vector.metadata["autoreset_mode"].value == "Disabled" and over.any() else None


class Stern(Counter):
    """A counter of long episodes."""

    observation_space = gs.Discrete(100_000)

    def __init__(self) -> None:
        super().__init__(100_000, infos=False)


@pytest.fixture(params=[{"workers": 2}, {"workers": 2, "inline": 2}, {"backend": "thread", "workers": 2}], ids=str)
def stern(request: pytest.FixtureRequest) -> Iterator[VectorEnv]:
    with closing(VectorEnv([Stern] * 4, groups=2, **request.param)) as vector:
        yield vector


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [Injector, Pressed], ids=["an exception out of nowhere", "Ctrl-C"])
def test_interrupts_at_every_moment(stern: VectorEnv, kind: type[Injector]) -> None:
    """After each, the next call finds all slots of a group in step, or says which must be reset; a reset brings all
    back. Ctrl-C is never between the requests of one step, so without slots in the caller nothing has to be reset."""
    inline = any(worker.inline for worker in stern._pool.workers)

    def work() -> None:
        for group in stern.groups(steps=2):
            if group.t < 2:
                group.step(TWO)
        stern.rollout(lambda seen: np.ones(len(seen), np.int64), steps=2, groups=2)

    injector = kind()
    stern.reset()
    work()
    points = injector.count(work)
    refused = []
    for point in range(1, points + 1, max(1, points // 120)):
        injector.run(work, point)
        try:
            observations = stern.step(ONES)[0].tolist()
        except UsageError as error:
            refused.append((injector.moment, str(error)))
        else:
            assert observations[:2] == observations[2:], injector.moment
        assert stern.reset()[0].tolist() == [0] * 4
        for group in stern.groups(steps=2):
            assert group.observations.tolist() == [group.t] * 2, injector.moment
            if group.t < 2:
                group.step(TWO)
    assert points > 300
    assert all("reset them first" in text for _, text in refused)
    assert inline or kind is Injector or not refused


@pytest.mark.timeout(300)
def test_ctrl_c_loses_nothing_to_the_next_loop() -> None:
    """A step that was sent is to be seen in the next loop, whatever was interrupted."""
    injector = Pressed()
    with closing(VectorEnv([Stern] * 4, groups=2, workers=2)) as vector:
        sent = np.zeros(4, np.int64)

        def work() -> None:
            for group in vector.groups(steps=2):
                if group.t < 2:
                    group.step(TWO)

        points = injector.count(work)
        vector.reset()
        for point in range(1, points + 1, max(1, points // 150)):
            injector.run(work, point)
            first = {group.slots.start: group.observations - sent[group.slots] for group in vector.groups()}
            for ahead in first.values():
                assert ahead[0] == ahead[1] in (0, 1, 2), injector.moment
            assert first[0][0] - first[1][0] in (0, 1), injector.moment
            sent = vector.step(ONES)[0].copy()
            assert all((sent[slice(k, 4, 2)] >= 1 + ahead).all() for k, ahead in first.items())
    assert points > 300


def test_a_hanging_environment_and_close() -> None:
    """Closing does not wait for it."""
    vector = faulty(Hangs)
    vector.reset(seed=7)
    for group in vector.groups():
        group.step(TWO)
        if group.t == 2 and group.slots.start == 1:
            break
    vector.close_extras(timeout=0.2)
    vector.close()
