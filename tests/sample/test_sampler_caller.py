"""Samplers with the agent in the caller: by index the same episodes as from workers that ask by themselves."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from treadle import Inference, LocalSampler, MultiprocessingSampler, NewEnvUpdate
from treadle.errors import ClosedPool, UsageError, WorkerError
from treadle.sample.schedule import Schedule
from treadle.stream.stream import Watch

SAMPLERS = [LocalSampler, MultiprocessingSampler]


class Walk(gym.Env):
    """Episodes of 2 to 13 steps, or all of `length`."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (3,), np.float64)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, length: int | None = None) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.own = 0, float(self.np_random.integers(1000))
        self.end = self.length or int(self.np_random.integers(2, 14))
        return self.look(0), {"own": self.own}

    def look(self, action: int) -> np.ndarray:
        return np.array([self.t, self.own, action], np.float64)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.look(action), float(action), self.t >= self.end, False, {"t": self.t}


class Agent:
    """`parameter` changes what it does; it says what it is."""

    def __init__(self) -> None:
        self.parameter = 0

    def get_actions(self, observations: Any) -> Any:
        actions = (np.asarray(observations).sum(axis=1).astype(np.int64) + self.parameter) % 5
        return actions, {"parameter": np.full(len(actions), self.parameter)}

    def get_action(self, observation: Any) -> Any:
        actions, infos = self.get_actions(observation[None])
        return actions[0], {key: value[0] for key, value in infos.items()}

    def set_param_values(self, values: dict[str, int]) -> None:
        self.parameter = values["parameter"]


class OneByOne:
    """Knows single observations only."""

    def __init__(self) -> None:
        self._agent = Agent()
        self.get_action = self._agent.get_action


def sampler(kind: Any, agent: Any = None, env: Any = None, **options: Any) -> Any:
    options = {"max_episode_length": 10, "seed": 7, "n_workers": 2, "progress": False, **options}
    return kind(Agent() if agent is None else agent, Walk() if env is None else env, **options)


def columns(batch: Any) -> list[Any]:
    tables = (batch.env_infos, batch.agent_infos, batch.episode_infos_by_episode)
    arrays = [batch.observations, batch.last_observations, batch.actions, batch.rewards, batch.lengths]
    arrays += [table[key] for table in tables for key in sorted(table)]
    return [*(np.asarray(each).tolist() for each in arrays), list(batch.step_types)]


def sampled(kind: Any, agent: Any = None, **options: Any) -> list[Any]:
    with sampler(kind, agent, ordered=True, **options) as made:
        first = made.obtain_samples(0, 60, None)
        second = made.obtain_samples(1, 40, {"parameter": 2} if agent is None else None)
        exact = made.obtain_exact_episodes(3, None, None)
        return [columns(batch) for batch in (first, second, exact)]


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("num_envs", [1, 7, 16])
def test_by_index_the_episodes_are_those_of_workers(kind: Any, num_envs: int) -> None:
    assert sampled(kind, inference="caller", num_envs=num_envs) == sampled(LocalSampler)


def test_an_agent_of_single_observations_may_be_asked_here() -> None:
    assert sampled(LocalSampler, OneByOne(), inference="caller") == sampled(LocalSampler, OneByOne())


@pytest.mark.parametrize("kind", SAMPLERS)
def test_evaluations_are_those_of_workers_and_touch_nothing(kind: Any) -> None:
    with sampler(kind, inference="caller", ordered=True) as here, sampler(LocalSampler) as there:
        first = here.obtain_samples(0, 30, None)
        assert here.evaluate(12, seed=3) == there.evaluate(12, seed=3)
        assert here.total_env_steps == len(first.rewards)
        second = here.obtain_samples(1, 30, None)
    with sampler(kind, inference="caller", ordered=True) as again:
        assert columns(again.obtain_samples(0, 30, None)) == columns(first)
        assert columns(again.obtain_samples(1, 30, None)) == columns(second)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_no_episode_is_of_an_older_agent_unless_that_is_wanted(kind: Any) -> None:
    with sampler(kind, inference="caller", num_envs=6) as made:
        for parameter in (1, 2, 3, 4):
            batch = made.obtain_samples(0, 50, {"parameter": parameter})
            assert set(batch.agent_infos["parameter"]) == {parameter}
            assert "agent_version" not in batch.episode_infos_by_episode
            assert batch.lengths.sum() >= 50


@pytest.mark.parametrize("kind", SAMPLERS)
def test_each_episode_knows_who_acted_first_and_last(kind: Any) -> None:
    mixed = 0
    with sampler(kind, inference="caller", num_envs=6, allow_stale=True) as made:
        for version in range(1, 9):
            batch = made.obtain_samples(0, 20, {"parameter": version})
            firsts = batch.episode_infos_by_episode["agent_version"]
            lasts = batch.episode_infos_by_episode["agent_version_last"]
            acted = np.split(batch.agent_infos["parameter"], np.cumsum(batch.lengths)[:-1])
            assert [(each[0], each[-1]) for each in acted] == list(zip(firsts, lasts, strict=True))
            assert (lasts <= version).all()
            mixed += int((firsts < lasts).sum())
    assert mixed, "nothing went on from one sampling to the next"


def test_of_episodes_that_nobody_takes_no_book_is_kept() -> None:
    with sampler(MultiprocessingSampler, inference="caller", num_envs=8) as made:
        made.obtain_samples(0, 1, None)
        here: Any = made._sampling
        kept, under_way = here._versions, here._run.source.dealt
        finished = (
            kept.keys() - set().union(*under_way.values())
            for epoch in range(1, 4000)
            if made.obtain_samples(epoch, 1, None)
        )
        assert any(finished)
        here._again(Schedule(), 0, Watch(Schedule().standing(), None))
        assert not kept


def test_workers_say_both_versions_too() -> None:
    with sampler(LocalSampler, allow_stale=True) as made:
        infos = made.obtain_samples(0, 20, None).episode_infos_by_episode
        assert infos["agent_version"].tolist() == infos["agent_version_last"].tolist()


@pytest.mark.parametrize("kind", SAMPLERS)
def test_updates_of_the_environment_and_of_the_agent_hold(kind: Any) -> None:
    with sampler(kind, inference="caller") as made:
        batch = made.obtain_samples(0, 20, None, NewEnvUpdate(lambda: Walk(4)))
        assert set(batch.lengths) == {4}
        other = Agent()
        other.parameter = 3
        batch = made.obtain_samples(0, 20, other)
        assert set(batch.agent_infos["parameter"]) == {3}
        assert set(batch.lengths) == {4}


class Dying(Walk):
    """Its process dies once, in the step that makes the file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def step(self, action: Any) -> Any:
        if self.t == 2 and not os.path.exists(self.path):
            open(self.path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def test_a_death_changes_no_byte(tmp_path: Any) -> None:
    env = Dying(str(tmp_path / "died"))
    made = sampled(MultiprocessingSampler, env=env, inference="caller", num_envs=6, on_failure="restart")
    assert (tmp_path / "died").exists()
    assert made == sampled(LocalSampler)


class Raising(Walk):
    """Raises in some episodes, until the file is there."""

    def __init__(self, mended: Path) -> None:
        super().__init__()
        self.mended = mended

    def step(self, action: Any) -> Any:
        if self.own > 800 and not self.mended.exists():
            raise ValueError("no more")
        return super().step(action)


def test_after_a_failure_sampling_goes_on(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    with sampler(MultiprocessingSampler, env=Raising(mended), inference="caller", num_envs=4) as made:
        with pytest.raises(WorkerError, match="no more"):
            for _ in range(50):
                made.obtain_samples(0, 50, None)
        mended.touch()  # which episode is next depends on how far the other worker was, and that one might raise, too
        batch = made.obtain_samples(0, 50, None)
        assert batch.lengths.sum() >= 50


@pytest.mark.parametrize("kind", SAMPLERS)
def test_an_interrupt_that_loses_what_was_told_leaves_nothing_to_wait_for(kind: Any, monkeypatch: Any) -> None:
    """Ctrl-C comes when answers have been taken and not looked at."""
    with sampler(kind, inference="caller", num_envs=4, ordered=True) as sampling:
        expected = columns(sampling.obtain_samples(0, 60, None))
    with sampler(kind, inference="caller", num_envs=4, ordered=True) as sampling:
        run, times = sampling._sampling._run, count()
        heard, poll = run.stream._carry_out, run.pool.calls.poll

        def interrupted(events: Any) -> Any:
            if next(times) == 5:
                raise KeyboardInterrupt
            return heard(events)

        def polled(timeout: float | None, hear: Any) -> bool:
            told = poll(timeout, hear)
            assert told or timeout is not None, "nothing will ever come"
            return told

        monkeypatch.setattr(run.stream, "_carry_out", interrupted)
        monkeypatch.setattr(run.pool.calls, "poll", polled)
        with pytest.raises(KeyboardInterrupt):
            sampling.obtain_samples(0, 60, None)
        assert columns(sampling.obtain_samples(0, 60, None)) == expected


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="takes no worker_class"):
        sampler(LocalSampler, inference="caller", worker_args={"n_envs": 2})
    with pytest.raises(UsageError, match="a list of different things"):
        sampler(LocalSampler, [Agent(), Agent()], inference="caller")
    with pytest.raises(UsageError, match="num_envs=3 is not a multiple of workers=2"):
        sampler(LocalSampler, num_envs=3)
    with pytest.raises(UsageError, match="pad_to=8, but each of 2 workers plays one at a time"):
        sampler(LocalSampler, inference=Inference(pad_to=8))
    made = sampler(LocalSampler, inference="caller")
    with pytest.raises(UsageError, match="give one for all"):
        made.obtain_samples(0, 5, [None, None])
    made.shutdown_worker()
    with pytest.raises(ClosedPool):
        made.obtain_samples(0, 5, None)


class NotBuilt(Exception):
    pass


def not_built() -> gym.Env:
    raise NotBuilt("no such level")


def test_episodes_of_two_ways_to_sample_are_not_played_twice() -> None:
    with sampler(LocalSampler, inference="caller") as made:
        seen = [
            each.observations.tobytes()
            for batch in (
                made.obtain_exact_episodes(3, None),
                made.obtain_samples(0, 60, None),
                made.obtain_exact_episodes(3, None),
                made.obtain_samples(0, 60, None),
            )
            for each in batch.split()
        ]
    assert len(set(seen)) == len(seen) > 8


def test_an_update_that_cannot_be_built_leaves_the_sampler_as_it_was() -> None:
    with LocalSampler(Greedy(), Walk, max_episode_length=20, seed=0, inference="caller") as sampler:
        with pytest.raises(WorkerError, match="no such level"):
            sampler.obtain_exact_episodes(1, None, NewEnvUpdate(not_built))
        assert len(sampler.obtain_exact_episodes(2, None).lengths) >= 2
        sampler.obtain_exact_episodes(1, None, NewEnvUpdate(Walk))


class Greedy:
    def get_actions(self, observations: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(len(observations), np.int64), {}
