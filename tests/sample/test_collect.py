"""`collect`: whole episodes, the same for any backend and any number of workers."""

from __future__ import annotations

import os
import random
import signal
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from treadle import seeding
from treadle.errors import StartupFailed, UsageError
from treadle.sample import rollout_slot
from treadle.sample.collect import collect
from treadle.sample.episode import Episode
from treadle.sample.failed import CollectionFailed
from treadle.sample.schedule import WINDOW, Schedule


class Walk(gym.Env):
    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)
    fails_at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.end = 0, int(self.np_random.integers(2, 9))
        return self.look(), {"seed": seed}

    def look(self) -> np.ndarray:
        return np.array([self.t, random.random()], np.float64)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        if self.t == self.fails_at:
            raise ValueError("too hot")
        return self.look(), float(action), self.t >= self.end, False, {"t": self.t}


class Fails(Walk):
    fails_at = 7


class Endless(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self.t >= 50, False, info


def same(a: Episode, b: Episode) -> bool:
    arrays = ("observations", "actions", "rewards", "terminated", "truncated")
    return (
        (a.index, a.seed, a.infos) == (b.index, b.seed, b.infos)
        and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays)
        and all(getattr(a, name).dtype == getattr(b, name).dtype for name in arrays)
    )


def test_every_backend_and_count_makes_what_a_plain_loop_makes() -> None:
    ours = list(collect(Walk, episodes=12, seed=3, backend="serial"))
    for episode in ours:
        env = Walk()
        seed = seeding.episode_env_seed(3, episode.index)
        with seeding.keep_globals():
            seeding.seed_globals(seeding.episode_policy_seed(3, episode.index))
            rows, infos = zip(env.reset(seed=seed), *(env.step(a)[::4] for a in episode.actions))
        assert episode.seed == seed
        assert np.array_equal(np.array(rows), episode.observations)
        assert infos == episode.infos
        assert episode.terminated.tolist() == [False] * (len(episode) - 1) + [True]
    for workers in (1, 3):
        theirs = list(collect(Walk, episodes=12, seed=3, workers=workers))
        assert all(map(same, ours, theirs))
        assert len(theirs) == 12


def test_the_callers_generators_are_its_own() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    for _ in collect(Walk, episodes=5, backend="serial"):
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_without_an_amount_it_goes_on_and_leaving_closes() -> None:
    found = []
    for episode in collect(Walk, workers=2):
        found.append(episode.index)
        if len(found) == 20:
            break
    assert found == list(range(20))


def test_unordered_gives_the_same_episodes() -> None:
    ordered = list(collect(Walk, steps=60, workers=2))
    loose = sorted(collect(Walk, steps=60, workers=2, ordered=False), key=lambda episode: episode.index)
    known = {episode.index: episode for episode in loose}
    assert all(same(episode, known[episode.index]) for episode in ordered)
    assert sum(map(len, ordered)) >= 60 > sum(map(len, ordered[:-1]))


def test_a_small_buffer_only_makes_workers_wait() -> None:
    episodes = list(collect(Walk, episodes=30, workers=2, max_buffered=1))
    assert [episode.index for episode in episodes] == list(range(30))


def test_limits_cut() -> None:
    for episode in collect(Walk, episodes=10, max_episode_steps=3, backend="serial"):
        assert len(episode) <= 3
        assert episode.truncated[-1] == (not episode.terminated[-1])


def test_an_environment_that_raises_is_placed() -> None:
    with pytest.raises(CollectionFailed, match=r"step 7: ValueError: too hot") as caught:
        list(collect(Fails, episodes=40, workers=2))
    error = caught.value
    assert error.where.step == 7
    assert error.where.seed == seeding.episode_env_seed(0, error.where.episode)
    assert error.reason.startswith("ValueError: too hot (test_collect.py:")
    assert "too hot" in error.remote_traceback


def test_an_endless_environment_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_slot, "LONG", 20)
    with pytest.warns(UserWarning, match="has taken 20 steps and the environment has no time limit"):
        (episode,) = collect(Endless, episodes=1, backend="serial")
    assert len(episode) == 50
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (episode,) = collect(Endless, episodes=1, backend="serial", max_episode_steps=30)
    assert len(episode) == 30


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"episodes": 1, "steps": 1}, "either episodes or steps"),
        ({"episodes": 0}, "at least 1"),
        ({"workers": 0}, "workers must be"),
        ({"envs_per_worker": 0}, "envs_per_worker"),
    ],
)
def test_contradictions_are_refused_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        collect(Walk, **arguments)


def refused() -> gym.Env:
    raise RuntimeError("no such thing")


def test_a_constructor_that_raises_is_told() -> None:
    with pytest.raises(StartupFailed, match="no such thing"):
        list(collect(refused, episodes=1))


@pytest.mark.parametrize("given", [{"seed": -1}, {"seed": 1.5}, {"nonsense": 1}, {"rows": True}])
def test_wrong_arguments_are_refused_at_the_call(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        collect("CartPole-v1", episodes=1, **given)


class OnlyOnce(gym.Env[Any, Any]):
    """Can be built once; its first process dies in its second episode. A replacement cannot be built."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, path: str) -> None:
        with open(path, "x"):
            self._resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._resets += 1
        if self._resets == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {}


def test_a_replacement_that_cannot_be_built_ends_the_run(tmp_path: Path) -> None:
    path = str(tmp_path / "once")
    with pytest.raises(CollectionFailed, match="FileExistsError"):
        list(collect(lambda: OnlyOnce(path), episodes=50, workers=1))


def test_one_slow_episode_does_not_outrun_the_tickets() -> None:
    schedule = Schedule(30_000)
    taken = []
    while (index := schedule.take()) is not None:
        taken.append(index)
        if index:  # all but the first are finished at once
            schedule.finish(index, 1)
    assert len(taken) == WINDOW
    schedule.finish(0, 1)
    assert schedule.take() == WINDOW
