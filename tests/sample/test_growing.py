"""Workers that are added to a run: the same bytes, and the same care as for the others."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from test_collect import same

import treadle
from treadle.memory.arena import ArenaError
from treadle.play.episode import Episode
from treadle.play.recipe import CallerInference, RolloutRecipe
from treadle.pool.pool import Pool
from treadle.program.gym_env import EnvRecipe
from treadle.record.summary import summary_rows
from treadle.sample import growth
from treadle.sample.nodes import collection
from treadle.sample.schedule import Schedule
from treadle.wire import bell
from treadle.worker.options import PoolOptions
from typed_run import collected

FIRST, ALL = 2, 5  # workers at first, and after some were added
NUMBER = "TREADLE_TEST_WORKER"
NUMBERED: dict[str, Any] = {"worker_options": treadle.WorkerOptions(worker_environ=lambda index: {NUMBER: str(index)})}


class Waits(gym.Env):
    """Episodes of 2 to 9 steps that wait."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)
    seconds = 0.008

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.end = 0, int(self.np_random.integers(2, 10))
        return self.look(), {"seed": seed}

    def look(self) -> np.ndarray:
        return np.array([self.t, self.np_random.random()])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.seconds)
        self.t += 1
        return self.look(), float(action), self.t >= self.end, False, {"t": self.t}


def added() -> bool:
    """Is this a worker that was added?"""
    return int(os.environ[NUMBER]) >= FIRST


class DiesOnce(Waits):
    """The first step of an added worker that may make the file kills the worker."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def step(self, action: Any) -> Any:
        if added() and self.t == 1:
            try:
                self.file.touch(exist_ok=False)
            except FileExistsError:
                return super().step(action)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class NoMoreOfThem(Waits):
    """It cannot be built in a worker that was added."""

    def __init__(self, how: str) -> None:
        if added():
            if how == "raises":
                raise RuntimeError("no licence is left")
            if how == "hangs":
                time.sleep(1000.0)
            os.kill(os.getpid(), signal.SIGKILL)


class Plain:
    batched = True

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return (observations.sum(axis=1) * 7 % 3).astype(np.int64)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(bell, "cores", lambda: FIRST)
    caplog.set_level(logging.INFO, "treadle")


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch, two_cores: None) -> None:
    """However busy the machine is: `ALL` workers, as soon as anything is known."""
    monkeypatch.setattr(growth, "WINDOW", 0.04)
    monkeypatch.setattr(growth.Growth, "_room", lambda growth: math.inf)  # and however little memory it has left
    monkeypatch.setattr(growth, "worth_having", lambda load, most, left, starting: int(min(most, ALL)))


PLACES: dict[str, dict[str, Any]] = {
    "workers": {},
    "caller": {"policy": Plain(), "num_envs": 6},
}
places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


def said(caplog: pytest.LogCaptureFixture, text: str = "workers are added to") -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def made(make: Callable[[], gym.Env], episodes: int = 40, **options: Any) -> list[Episode]:
    return list(treadle.collect(make, episodes=episodes, seed=4, **options))


def made_until(done: Callable[[], Any], make: Callable[[], gym.Env], **options: Any) -> list[Episode]:
    """Some more than there were then: the more the busier the machine is."""
    found: list[Episode] = []
    left = 20
    for episode in treadle.collect(make, seed=4, **options):
        found.append(episode)
        left -= bool(done())
        if not left:
            break
    return found


class Quick(Waits):
    seconds = 0.0


def as_one_worker_makes(episodes: list[Episode], place: dict[str, Any], make: Callable[[], gym.Env] = Quick) -> bool:
    """Are they what one worker makes?"""
    plain = made(make, len(episodes), workers=1, **place)
    return len(plain) == len(episodes) and all(map(same, plain, episodes))


@places
def test_the_same_bytes(place: dict[str, Any], decided: None, caplog: pytest.LogCaptureFixture) -> None:
    assert as_one_worker_makes(made_until(lambda: said(caplog), Waits, **place), place)
    (line,) = said(caplog)
    assert line.startswith("workers='auto': environments wait (")
    assert "3 workers are added to 2" in line


@pytest.mark.parametrize("place", ["workers", "caller"])
def test_the_same_bytes_of_who_draws_from_global_generators(place: str, decided: None, caplog: Any) -> None:
    class Draws(Waits):
        def look(self) -> np.ndarray:
            return np.array([self.t, np.random.random()])

    episodes = made_until(lambda: said(caplog), Draws, **PLACES[place])
    assert as_one_worker_makes(episodes, PLACES[place], Draws)


@pytest.mark.parametrize("caller", [False, True])
def test_those_that_are_added_play(caller: bool, decided: None) -> None:
    asking = CallerInference(Plain(), 6) if caller else None
    recipe = RolloutRecipe(EnvRecipe(Waits), asking=asking)
    with collection(recipe, Schedule(), root=4) as run:
        for _ in run:
            if len([worker for worker, steps in run.tally.by_worker.items() if steps]) == ALL:
                break
        assert run.tally.added == run.source.workers - FIRST == ALL - FIRST


def test_no_more_are_played_at_a_time_than_were_asked_for(decided: None) -> None:
    recipe = RolloutRecipe(EnvRecipe(Waits), asking=CallerInference(Plain(), 6))
    with collection(recipe, Schedule(), root=4) as run:
        left, most = 40, 0
        for _ in run:
            left, most = left - (run.tally.added > 0), max(most, sum(map(len, run.source.dealt.values())))
            if not left:
                break
        assert most == 6


@places
def test_a_worker_that_was_added_dies(place: dict[str, Any], decided: None, tmp_path: Path, caplog: Any) -> None:
    make = partial(DiesOnce, tmp_path / "died")
    episodes = made_until(lambda: said(caplog, "is replaced"), make, **place, **NUMBERED)
    assert as_one_worker_makes(episodes, place)
    (line,) = said(caplog, "is replaced")
    assert "SIGKILL" in line


@pytest.mark.parametrize("place", [PLACES["workers"], PLACES["caller"]], ids=["workers", "caller"])
@pytest.mark.parametrize(("how", "on_failure"), [("raises", "restart"), ("dies", "raise"), ("dies", "drop")])
def test_none_is_missed_that_cannot_be_built(
    place: dict[str, Any], how: str, on_failure: str, decided: None, caplog: Any
) -> None:
    def all_of_them() -> bool:
        return len(said(caplog, "is dropped")) == ALL - FIRST

    episodes = made_until(all_of_them, partial(NoMoreOfThem, how), **place, **NUMBERED, on_failure=on_failure)
    assert as_one_worker_makes(episodes, place)
    assert ("no licence is left" in said(caplog, "is dropped")[0]) == (how == "raises")
    assert len(said(caplog)) == 1  # and it is not tried again


@places
def test_the_end_waits_for_none_that_is_being_built(
    place: dict[str, Any], decided: None, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PoolOptions.__init__.__kwdefaults__, "close_timeout", 900.0)
    make = partial(NoMoreOfThem, "hangs")
    episodes = made_until(lambda: said(caplog), make, **place, worker_options=NUMBERED["worker_options"])
    assert as_one_worker_makes(episodes, place)  # within the limit of every test: they hang for longer


@places
def test_they_wear_out_as_others_do(place: dict[str, Any], decided: None, caplog: Any) -> None:
    def one_of_them() -> bool:
        return bool({line.split()[1] for line in said(caplog, "is recycled")} & {"2", "3", "4"})

    limits = {"worker_options": treadle.WorkerOptions(recycle_after=6)}
    assert as_one_worker_makes(made_until(one_of_them, Waits, **place, **limits), place)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C when workers are added."""
    grow = Pool.grow

    def then_ctrl_c(pool: Pool, count: int) -> list[Any]:
        found = grow(pool, count)
        os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(Pool, "grow", then_ctrl_c)


def test_ctrl_c_while_they_start(decided: None, interrupted: None, caplog: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        made_until(lambda: False, Waits)
    assert said(caplog)


def test_what_the_system_refuses_is_not_missed(decided: None, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pool: Pool, count: int) -> list[Any]:
        raise ArenaError("shared memory: 1.0 MiB asked")

    monkeypatch.setattr(Pool, "grow", refused)
    assert as_one_worker_makes(made_until(lambda: said(caplog), Waits), {})
    assert len(said(caplog, "not so many could be started: ArenaError: shared memory")) == 1


def test_variables_for_so_many_only(decided: None, caplog: Any) -> None:
    def variables(index: int) -> dict[str, str]:
        return {NUMBER: ["0", "1", "2"][index]}

    episodes = made_until(
        lambda: said(caplog, "not so many"), Waits, worker_options=treadle.WorkerOptions(worker_environ=variables)
    )
    assert as_one_worker_makes(episodes, {})
    assert len(said(caplog, "not so many could be started: IndexError: list index out of range")) == 1


def test_a_number_that_was_given_stands(decided: None, caplog: Any) -> None:
    made(Waits, workers=2)
    made(Waits, policy=Plain(), num_envs=6, workers=2)
    made(Waits, num_envs=2)
    made(
        Waits, worker_options=treadle.WorkerOptions(start_method="fork")
    )  # nor is a caller copied that has begun to ask a policy
    assert not said(caplog)


def test_a_suite_keeps_its_number_of_environments(decided: None, caplog: Any) -> None:
    treadle.evaluate({"one": Waits, "two": Waits}, Plain(), 20, num_envs=6)
    assert not said(caplog)


@pytest.fixture
def no_strangers(monkeypatch: pytest.MonkeyPatch, two_cores: None) -> None:
    """As on a machine that does nothing else."""
    monkeypatch.setattr(growth, "used", lambda: 0.0)


@pytest.mark.parametrize("caller", [False, True])
def test_environments_that_wait_get_more(caller: bool, no_strangers: None, caplog: Any) -> None:
    class Long(Waits):
        seconds = 0.03

    options: dict[str, Any] = {"policy": Plain(), "num_envs": 12} if caller else {}
    made_until(lambda: said(caplog), Long, **options)


def test_environments_that_compute_get_none(no_strangers: None, caplog: Any) -> None:
    class Computes(Waits):
        def step(self, action: Any) -> Any:
            until = time.process_time() + self.seconds
            while time.process_time() < until:
                pass
            self.t += 1
            return self.look(), 0.0, self.t >= self.end, False, {}

    # without an end: orders are large, and no worker waits for a caller that waits for a core
    played = treadle.collect(Computes, seed=4)
    assert len(list(itertools.islice(played, 60))) == 60
    played.close()  # type: ignore[attr-defined]
    assert not said(caplog)


def test_the_summary_says_so(decided: None, tmp_path: Path) -> None:
    class Slow(Waits):
        """Slow until all that were added play."""

        def __init__(self, there: Path) -> None:
            self.there = there

        def reset(self, **given: Any) -> Any:
            if added():
                (self.there / os.environ[NUMBER]).touch()
            self.seconds = 0.0 if len(os.listdir(self.there)) == ALL - FIRST else 0.05
            return super().reset(**given)

    there = tmp_path / "there"
    there.mkdir()
    stored = collected(partial(Slow, there), episodes=600, seed=4, out=tmp_path / "run", **NUMBERED)
    summary = stored.summary
    assert summary is not None
    assert summary.added == ALL - FIRST
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["added"] == ALL - FIRST
    assert ("workers", "3 were added, as environments wait") in summary_rows(summary)


class Agent:
    """Its action is the parameter, modulo 3."""

    def __init__(self) -> None:
        self.value = 0

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return self.value % 3, {}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return np.full(len(observations), self.value % 3), {}

    def reset(self, do_resets: Any = None) -> None: ...

    def get_param_values(self) -> dict[str, int]:
        return {"value": self.value}

    def set_param_values(self, values: dict[str, int]) -> None:
        self.value = values["value"]


def sampled(make: Any = Waits, **options: Any) -> Iterator[Any]:
    """What three samplings and an evaluation bring, the agent updated before each."""
    given = {"ordered": True, "seed": 4, "max_episode_length": 20, **options}
    with treadle.MultiprocessingSampler(agents=Agent(), envs=make, **given) as sampler:
        for turn in range(3):
            batch = sampler.obtain_samples(turn, 200, {"value": turn})
            yield batch.observations, batch.actions, batch.rewards, batch.lengths
        batch = sampler.obtain_exact_episodes(3, {"value": 1})
        yield batch.observations, batch.actions, batch.rewards, batch.lengths
        yield (sampler.evaluate(10, {"value": 2}).returns,)


@pytest.mark.parametrize("inference", ["worker", "caller"])
def test_samplings_by_index(inference: str, decided: None, caplog: Any) -> None:
    options: dict[str, Any] = {"inference": inference, "num_envs": 6 if inference == "caller" else None}
    before = list(sampled(n_workers=2, **options))
    assert not said(caplog)
    after = list(sampled(**options))
    assert len(said(caplog)) == 1
    for some, others in zip(before, after, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(some, others, strict=True))


def test_in_order_of_arrival_the_number_decides_what_is_sampled(decided: None, caplog: Any) -> None:
    assert len(list(sampled(ordered=False))) == 5
    assert not said(caplog)


@pytest.mark.parametrize("on_failure", ["raise", "drop"])
def test_a_sampler_does_not_miss_what_cannot_be_built(on_failure: str, decided: None, caplog: Any) -> None:
    given: dict[str, Any] = {"ordered": True, "seed": 4, "max_episode_length": 20, "on_failure": on_failure, **NUMBERED}
    make = partial(NoMoreOfThem, "raises")
    with treadle.MultiprocessingSampler(agents=Agent(), envs=make, **given) as sampler:
        while len(said(caplog, "could not be added")) < ALL - FIRST:  # however long they take to start
            assert len(sampler.obtain_samples(0, 200, {"value": 1}).rewards) >= 200
        assert len(sampler.obtain_samples(1, 200, {"value": 2}).rewards) >= 200
        assert len(sampler.obtain_exact_episodes(3, {"value": 1}).lengths) >= 3
        assert len(sampler.evaluate(10, {"value": 2}).returns) == 10
    assert len(said(caplog, "could not be added")) == ALL - FIRST


@pytest.mark.parametrize("inference", ["worker", "caller"])
def test_a_sampler_goes_on_after_ctrl_c(inference: str, decided: None, interrupted: None, caplog: Any) -> None:
    given: dict[str, Any] = {"ordered": True, "seed": 4, "max_episode_length": 20, "inference": inference}
    with treadle.MultiprocessingSampler(agents=Agent(), envs=Waits, **given) as sampler:
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_samples(0, 100_000, None)
        assert said(caplog)
        assert len(sampler.obtain_samples(1, 100, {"value": 1}).rewards) >= 100


def test_threads_are_for_environments_that_wait(two_cores: None) -> None:
    vector = treadle.make_vec(Waits, 12, worker_options=treadle.WorkerOptions(backend="thread"))
    assert len(vector.stats().busy) == 12
    vector.close()

    class Named(Waits):
        def step(self, action: Any) -> Any:
            observation, reward, ended, cut, _ = super().step(action)
            return observation, reward, ended, cut, {"thread": threading.current_thread().name}

    def threads(**options: Any) -> int:
        episodes = made(Named, 60, worker_options=treadle.WorkerOptions(backend="thread"), **options)
        return len({info["thread"] for episode in episodes for info in episode.infos if "thread" in info})

    assert threads() == 8 * FIRST
    assert threads(policy=Plain()) == 8 * FIRST
    assert threads(policy=Plain(), num_envs=5) == 5
    assert threads(workers=3) == 3
