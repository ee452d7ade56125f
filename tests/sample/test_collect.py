"""`collect`: whole episodes, the same for any backend and any number of workers."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from treadle import seeding
from treadle.errors import StartupFailed, UsageError
from treadle.evaluation.evaluate import evaluate
from treadle.play import player
from treadle.play.episode import Episode
from treadle.record.dataset import collect_dataset
from treadle.sample.collect import collect
from treadle.sample.failed import CollectionFailed
from treadle.sample.schedule import WINDOW, Schedule
from treadle.worker.options import WorkerOptions
from typed_run import collected


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


class HandsOff(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError("this error takes no attributes")


class FailsWithHandsOff(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise HandsOff("boom")


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
    ours = list(collect(Walk, episodes=12, seed=3, worker_options=WorkerOptions(backend="serial")))
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
    for _ in collect(Walk, episodes=5, worker_options=WorkerOptions(backend="serial")):
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


def test_a_small_buffer_only_makes_workers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.sample.collect.MOST_WAITING", 1)
    episodes = list(collect(Walk, episodes=30, workers=2))
    assert [episode.index for episode in episodes] == list(range(30))


def test_limits_cut() -> None:
    for episode in collect(Walk, episodes=10, max_episode_steps=3, worker_options=WorkerOptions(backend="serial")):
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


def test_an_error_that_takes_no_attributes_is_placed_like_any_other() -> None:
    with pytest.raises(CollectionFailed, match="HandsOff: boom") as caught:
        list(collect(FailsWithHandsOff, episodes=1, workers=1))
    where = caught.value.where
    assert (where.phase, where.episode, where.step) == ("step", 0, 1)
    assert where.seed == seeding.episode_env_seed(0, 0)


def test_an_endless_environment_is_warned_about_once_a_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(player, "LONG", 20)
    episodes = list(collect(Endless, episodes=2, worker_options=WorkerOptions(backend="serial"), workers=1, num_envs=2))
    assert [len(episode) for episode in episodes] == [50, 50]
    (said,) = caplog.messages
    assert "has taken 20 steps and the environment has no time limit" in said
    assert "\n" not in said
    caplog.clear()
    (episode,) = collect(Endless, episodes=1, worker_options=WorkerOptions(backend="serial"), max_episode_steps=30)
    assert (len(episode), caplog.messages) == (30, [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"episodes": 1, "steps": 1}, "either episodes or steps"),
        ({"episodes": 0}, "at least 1"),
        ({"episodes": 2.5}, "episodes must be a whole number"),
        ({"steps": float("nan")}, "steps must be a whole number"),
        ({"workers": 0}, "workers must be"),
        ({"num_envs": 0}, "num_envs"),
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


def test_an_unknown_id_is_a_wrong_argument() -> None:
    with pytest.raises(UsageError, match=r"environment 'CartPoll-v1' is unknown; did you mean CartPole-v1"):
        list(collect("CartPoll-v1", episodes=1, worker_options=WorkerOptions(backend="serial")))


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


def test_what_is_handed_out_stays_near_one_slow_episode() -> None:
    schedule = Schedule(30_000)
    taken = []
    while (index := schedule.take()) is not None:
        taken.append(index)
        if index:  # all but the first are finished at once
            schedule.finish(index, 1)
    assert len(taken) == WINDOW
    schedule.finish(0, 1)
    assert schedule.take() == WINDOW


class Contract(Walk):
    """Episodes of four steps; its third step returns what `breaks` makes of the five values."""

    def __init__(self, breaks: Any) -> None:
        self.breaks = breaks

    def step(self, action: Any) -> Any:
        observation, _, _, _, info = super().step(action)
        result = (observation, 1.0, self.t >= 4, False, info)
        return self.breaks(*result) if self.t == 3 else result


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (None, "the reward None;"),
        ("1.5", "the reward '1.5' (a str)"),
        (1 + 2j, "the reward (1+2j) (a complex)"),
        (np.array([1.0]), "(an array of shape (1,), float64)"),
        (10**400, "too large for a float64"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_reward_that_is_no_number_is_placed(reward: Any, said: str, backend: str) -> None:
    def make() -> Contract:
        return Contract(lambda o, r, end, cut, info: (o, reward, end, cut, info))

    with pytest.raises(CollectionFailed) as caught:
        list(collect(make, episodes=3, workers=1, worker_options=WorkerOptions(backend=backend)))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"episode 0 (seed {seeding.episode_env_seed(0, 0)}, slot 0), step 3: step")
    assert caught.value.where.step == 3


@pytest.mark.parametrize("reward", [2, True, 2.5, np.float32(2.5), np.int8(3), np.bool_(True), np.array(2.5)], ids=repr)
def test_a_reward_may_be_any_real_number(reward: Any) -> None:
    (episode,) = collect(
        lambda: Contract(lambda o, r, end, cut, info: (o, reward, end, cut, info)),
        episodes=1,
        worker_options=WorkerOptions(backend="serial"),
    )
    assert episode.rewards.tolist() == [1.0, 1.0, float(reward), 1.0]
    assert episode.rewards.dtype == np.float64


class SameReward(Walk):
    """Uses its reward's array again."""

    def __init__(self) -> None:
        self.reward = np.zeros(())

    def step(self, action: Any) -> Any:
        observation, _, end, cut, info = super().step(action)
        self.reward += 1
        return observation, self.reward, end, cut, info


def test_a_reward_is_kept_as_it_was() -> None:
    (episode,) = collect(SameReward, episodes=1, worker_options=WorkerOptions(backend="serial"))
    assert episode.rewards.tolist() == list(range(1, len(episode) + 1))


def test_the_first_reward_that_is_nan_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> Contract:
        return Contract(lambda o, r, end, cut, info: (o, float("nan"), end, cut, info))

    assert len(list(collect(make, episodes=6, workers=2))) == 6
    (said,) = caplog.messages
    assert said.startswith("episode 0 (seed ")
    assert said.endswith("(NaN), in step 3")


@pytest.mark.parametrize("end", ["False", 2, np.array([True]), 0.5], ids=repr)
def test_an_end_that_is_no_bool_is_placed(end: Any) -> None:
    with pytest.raises(CollectionFailed, match=r"step 3: step returned terminated = .*; it is True or False"):
        list(
            collect(
                lambda: Contract(lambda o, r, e, c, i: (o, r, end, c, i)),
                episodes=1,
                worker_options=WorkerOptions(backend="serial"),
            )
        )


@pytest.mark.parametrize("end", [1, np.bool_(True), np.array(True), np.int64(1)], ids=repr)
def test_an_end_may_be_any_kind_of_bool(end: Any) -> None:
    (episode,) = collect(
        lambda: Contract(lambda o, r, e, c, i: (o, r, end, c, i)),
        episodes=1,
        worker_options=WorkerOptions(backend="serial"),
    )
    assert episode.terminated.tolist() == [False, False, True]


class OldStep(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, end, _, info = super().step(action)
        return observation, reward, end, info


class OldReset(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (OldStep, r"step 1: step must return \(observation, .* it returned 4 values .*gym before 0.26"),
        (OldReset, r"reset: reset must return \(observation, info\), .* returned one ndarray of shape \(2,\)"),
    ],
)
def test_the_interface_of_the_past_is_named(env: type[Walk], said: str) -> None:
    with pytest.raises(CollectionFailed, match=said):
        list(collect(env, episodes=1, worker_options=WorkerOptions(backend="serial")))


class Exits(Walk):
    def step(self, action: Any) -> Any:
        sys.exit("no more")


def test_an_environment_that_exits_is_placed() -> None:
    with pytest.raises(CollectionFailed, match=r"^episode 0 \(seed \d+, slot 0\), step 1: SystemExit: no more"):
        list(collect(Exits, episodes=1, workers=1))


class FailsLater(Walk):
    """Episode 0 waits in its last step until another episode has failed, then fails itself."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def step(self, action: Any) -> Any:
        if self.seed != seeding.episode_env_seed(0, 0):
            self.path.touch()
            raise ValueError("a later one")
        while not self.path.exists():
            time.sleep(0.002)
        raise ValueError("the first one")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seed = seed
        return super().reset(seed=seed)


def test_the_failure_of_the_lowest_index_is_the_one_told(tmp_path: Path) -> None:
    path = str(tmp_path / "failed")
    with pytest.raises(CollectionFailed, match=r"episode 0 .*the first one"):
        list(collect(lambda: FailsLater(path), episodes=9, workers=2))


def test_an_environment_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import gymnasium as gym\n\n\ndef make_env():\n    return gym.make('CartPole-v1')\n"
    )
    name = f"{tmp_path}/mine.py:make_env"
    (named,), (given,) = (
        collect(env, episodes=1, worker_options=WorkerOptions(backend="serial")) for env in (name, "CartPole-v1")
    )
    assert np.array_equal(named.observations, given.observations)
    with pytest.raises(StartupFailed, match="has no 'other'"):
        list(collect(f"{tmp_path}/mine.py:other", episodes=1))


class CountsItsSteps:
    """Acts by the steps of its own episode; `reset` is not told which row it is about."""

    def reset(self, seed: int) -> None:
        self.t, self.rng = 0, np.random.default_rng(seed)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        self.t += 1
        assert len(observations) == 1
        return np.array([(self.t + self.rng.integers(2)) % 3])


def test_a_policy_with_a_reset_repeats_with_several_envs_a_worker() -> None:
    made = [
        list(collect(Walk, CountsItsSteps, episodes=12, workers=workers, num_envs=workers * rows, infos=False))
        for workers, rows in ((1, 1), (1, 4), (2, 4))
    ]
    actions = [[episode.actions.tolist() for episode in episodes] for episodes in made]
    assert actions[0] == actions[1] == actions[2]
    with pytest.raises(StartupFailed, match=r"Give a class or factory .* or a reset\(row=...\), or one environ"):
        list(collect(Walk, CountsItsSteps(), episodes=1, workers=1, num_envs=4))


class FailsForOne(CountsItsSteps):
    def __call__(self, observations: np.ndarray) -> np.ndarray:
        if observations[0, 0] == 2:
            raise ValueError("two")
        return super().__call__(observations)


def test_the_error_of_a_rows_own_policy_is_placed_in_its_episode() -> None:
    with pytest.raises(CollectionFailed, match="policy before step 3: ValueError: two") as caught:
        list(collect(Walk, FailsForOne, episodes=12, workers=1, num_envs=4))
    lengths = [len(episode) for episode in collect(Walk, CountsItsSteps, episodes=12, workers=1)]
    assert caught.value.where.episode == next(i for i, length in enumerate(lengths) if length > 2)


class Closes(Walk):
    """As one that makes itself a daemon in its third episode."""

    begun = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.begun += 1
        if self.begun == 3:
            os.closerange(3, 256)
        return super().reset(seed=seed)


def test_an_environment_that_closes_descriptors_is_told_of_with_its_episode(tmp_path: Path) -> None:
    """Where they are needed: small results go through memory."""
    assert [episode.index for episode in collect(Closes, episodes=30, workers=1)] == list(range(30))
    said = r"^episode \d+ \(seed \d+, slot 0\), at its end: the environment or the policy has closed descriptors"
    with pytest.raises(CollectionFailed, match=said) as caught:
        collect_dataset(Closes, out=tmp_path, episodes=30, workers=1)
    assert caught.value.where.episode in (2, 3)
    assert "Errno 9" in caught.value.reason


class Prints(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        print("begun", seed)
        print("to stderr", seed, file=sys.stderr)
        ctypes.CDLL(None).printf(b"from C %llu\n", ctypes.c_uint64(seed or 0))
        return super().reset(seed=seed)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_what_environments_print_appears_once_and_labelled(
    start_method: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    faces: list[Callable[[], Any]] = [
        lambda: list(collect(Prints, episodes=3, workers=1, worker_options=WorkerOptions(start_method=start_method))),
        lambda: evaluate(Prints, None, episodes=3, workers=1, worker_options=WorkerOptions(start_method=start_method)),
        lambda: collected(
            Prints,
            out=tmp_path,
            episodes=3,
            workers=1,
            verify=3,
            worker_options=WorkerOptions(start_method=start_method),
        ),
    ]
    seeds = [seeding.episode_env_seed(0, index) for index in range(3)]
    expected = {f"[slot 0] {what} {seed}" for what in ("begun", "to stderr", "from C") for seed in seeds}
    for face in faces:
        face()
        out, err = capfd.readouterr()
        assert out == ""
        assert sorted(err.splitlines()) == sorted(expected)


class Unread:
    """It can be read in the worker that made it alone."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __reduce__(self) -> Any:
        return _read, (self.pid,)


def _read(pid: int) -> Unread:
    if pid != os.getpid():
        raise ValueError("made elsewhere")
    return Unread()


class TellsOfUnread(Walk):
    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "unread": Unread()}


def test_an_episode_that_cannot_be_read_is_named() -> None:
    with pytest.raises(CollectionFailed, match=r"^episode 0 .*unpickle: ValueError: made elsewhere"):
        list(collect(TellsOfUnread, episodes=3, workers=1))


class UnreadAfterSome(Walk):
    """Nobody can read its sixth episode, which is none of the first that a worker is given."""

    begun = 0

    def reset(self, **given: Any) -> Any:
        UnreadAfterSome.begun += 1
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "unread": Unread()} if UnreadAfterSome.begun == 6 else info


class RaisesAfterMany(Walk):
    begun = 0

    def reset(self, **given: Any) -> Any:
        RaisesAfterMany.begun += 1
        if RaisesAfterMany.begun > 39:
            raise RuntimeError("no more")
        return super().reset(**given)


@pytest.mark.parametrize(("kind", "before"), [(UnreadAfterSome, 5), (RaisesAfterMany, 39)])
@pytest.mark.parametrize("on_failure", ["restart", "raise"])
def test_quick_episodes_before_one_that_fails_are_there(kind: Any, before: int, on_failure: str) -> None:
    found = []
    with pytest.raises(CollectionFailed) as caught:
        for episode in collect(kind, episodes=200, workers=1, on_failure=on_failure):
            found.append(episode.index)
    assert found == list(range(before))
    assert caught.value.where.episode == before
    assert caught.value.finished >= before
