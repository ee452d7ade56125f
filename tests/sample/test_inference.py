"""A policy in the caller: the same episodes as in the workers, for any number of environments and any batches."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.errors import UsageError
from treadle.play.episode import Episode
from treadle.sample.failed import CollectionFailed
from treadle.worker.life import State


class Walk(gym.Env):
    """Episodes of 2 to 13 steps; its observation shows the step, the episode's number and the last action."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (3,), np.float64)
    action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.end, self.own = 0, int(self.np_random.integers(2, 14)), float(self.np_random.integers(1000))
        return self.look(0), {"seed": seed}

    def look(self, action: int) -> np.ndarray:
        return np.array([self.t, self.own, action], np.float64)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.look(action), float(action), self.t >= self.end, False, {"t": self.t}


class Draws(Walk):
    """It draws from the global generator."""

    def look(self, action: int) -> np.ndarray:
        return np.array([self.t, np.random.randint(1000), action], np.float64)


class Plain:
    """A row's action depends on its own observation alone."""

    batched = True

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return (observations.sum(axis=1) % 5).astype(np.int64)


class Drawing:
    batched = True

    def __call__(self, observations: np.ndarray, rng: Any) -> np.ndarray:
        return np.array([each.integers(5) for each in (rng if isinstance(rng, list) else [rng])])


class Remembering:
    """A row's action is what it has seen so far."""

    batched = True

    def initial_state(self, rows: int) -> tuple[np.ndarray, ...]:
        return (np.zeros((rows, 1)), np.zeros((rows, 2, 2)))

    def __call__(self, observations: np.ndarray, state: Any) -> Any:
        total = state[0] + observations.sum(axis=1, keepdims=True)
        return (total[:, 0] % 5).astype(np.int64), (total, state[1] + 1)


asked = partial(treadle.Inference, where="caller")


def key(episode: Episode) -> tuple[Any, ...]:
    arrays = (episode.observations, episode.actions, episode.rewards, episode.terminated, episode.truncated)
    return episode.index, episode.seed, *(array.tobytes() for array in arrays), episode.infos, episode.policy_infos


def made(env: Any, policy: Any, *, episodes: int = 40, inference: Any = "caller", **options: Any) -> list[Any]:
    played = treadle.collect(env, policy, episodes=episodes, seed=5, inference=inference, **options)
    return [key(episode) for episode in played]


@pytest.mark.parametrize(
    "options",
    [
        {"num_envs": 1, "workers": 1},
        {"num_envs": 3, "workers": 2},
        {"num_envs": 16, "workers": 2, "inference": asked(batch_size=16, max_wait=math.inf)},
        {"num_envs": 16, "workers": 2, "inference": asked(batch_size=16, max_wait=0.0)},
        {"num_envs": 7, "workers": 3, "inference": asked(batch_size=1)},
        {"num_envs": 9, "workers": 2, "inference": asked(pad_to=4)},
        {"num_envs": 4, "worker_options": treadle.WorkerOptions(backend="thread"), "workers": 2},
        {"num_envs": 4, "worker_options": treadle.WorkerOptions(backend="serial")},
        {"workers": 2},
        {"workers": 2, "inference": asked(where="worker", pad_to=3)},
        {"inference": asked(where="worker", pad_to=3), "worker_options": treadle.WorkerOptions(backend="serial")},
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", [Plain, Drawing])
def test_any_number_of_environments_makes_what_workers_make(policy: type, options: dict[str, Any]) -> None:
    alone = made(Walk, policy(), inference="worker", workers=1)
    assert made(Walk, policy(), **options) == alone


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_real_environments(env: str) -> None:
    class Policy:
        def __call__(self, observations: np.ndarray) -> np.ndarray:
            if env == "CartPole-v1":
                return (observations[:, 2] > 0).astype(np.int64)
            return observations[:, 2:] * np.float32(-0.3)

    options = {"episodes": 12, "max_episode_steps": 60}
    assert made(env, Policy(), num_envs=5, **options) == made(env, Policy(), inference="worker", **options)


def test_a_state_stays_with_its_episode_whatever_the_batches() -> None:
    one = made(Walk, Remembering(), num_envs=1, workers=1)
    assert made(Walk, Remembering(), num_envs=8, workers=2) == one
    assert made(Walk, Remembering(), num_envs=6, workers=2, inference=asked(pad_to=8, batch_size=6)) == one
    assert made(Walk, Remembering(), workers=2, inference=asked(where="worker", pad_to=4)) == one


class Planning:
    """Answers for five steps ahead, and says what it thought of each."""

    batched = True

    def __call__(self, observations: np.ndarray) -> Any:
        first = observations.sum(axis=1, keepdims=True)
        actions = ((first + np.arange(5)) % 5).astype(np.int64)
        return actions, {"value": first[:, 0], "each": actions + 0.5}


def test_of_a_plan_so_many_steps_are_played_and_all_are_recorded() -> None:
    one = list(
        treadle.collect(
            Walk, Planning(), episodes=30, seed=5, num_envs=1, workers=1, inference=treadle.Inference(n_action_steps=3)
        )
    )
    many = list(
        treadle.collect(
            Walk, Planning(), episodes=30, seed=5, num_envs=7, workers=2, inference=treadle.Inference(n_action_steps=3)
        )
    )
    assert [key(episode) for episode in one] == [key(episode) for episode in many]
    for episode in one:
        assert len(episode.observations) == len(episode) + 1
        for step in range(len(episode)):
            seen = episode.observations[step - step % 3]
            assert episode.actions[step] == (seen.sum() + step % 3) % 5
            told = episode.policy_infos[step]
            assert told["asked"] is (step % 3 == 0)
            assert told["each"] == episode.actions[step] + 0.5
            assert ("value" in told) is (step % 3 == 0)


def test_infos_of_the_policy_are_recorded_as_from_workers() -> None:
    class Telling(Plain):
        def __call__(self, observations: np.ndarray) -> Any:
            return super().__call__(observations), {"value": observations[:, 1] * 2}

        get_actions = __call__

    assert made(Walk, Telling(), num_envs=6) == made(Walk, Telling(), inference="worker")


def test_an_environment_that_draws_from_the_global_generator_makes_the_same() -> None:
    alone = made(Draws, Plain(), inference="worker", workers=1)
    assert made(Draws, Plain(), num_envs=8, workers=2) == alone
    for backend in ("process", "serial"):
        one = treadle.WorkerOptions(backend=backend)
        assert made(Draws, Plain(), inference=asked(where="worker", pad_to=3), worker_options=one) == alone


class Talk(gym.Env):
    """Texts both ways."""

    observation_space = gym.spaces.Text(40)
    action_space = gym.spaces.Text(40)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 6))
        return f"left {self.left}", {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return f"heard {len(action)} left {self.left}", float(len(action)), self.left == 0, False, {}


def test_texts_go_both_ways() -> None:
    def answer(observations: list[str]) -> list[str]:
        return ["so" + text[:5].strip() for text in observations]

    def talked(**options: Any) -> list[Any]:
        played = treadle.collect(Talk, answer, episodes=20, seed=1, **options)
        return [(e.index, e.observations, e.actions, e.rewards.tobytes()) for e in played]

    assert talked(inference="caller", num_envs=6, workers=2) == talked(inference="worker")


# --- where a policy is asked ---------------------------------------------------------------------------------------


def test_what_is_chosen_follows_from_the_policy_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "treadle")
    list(treadle.collect(Walk, Plain(), episodes=2))
    assert "asked in the caller" in caplog.text
    caplog.clear()
    list(treadle.collect(Walk, lambda observations: np.zeros(len(observations), np.int64), episodes=2))
    assert "asked in the caller" not in caplog.text


def test_what_cannot_be_sent_is_asked_in_the_caller() -> None:
    lock = threading.Lock()

    def policy(observations: np.ndarray) -> np.ndarray:
        with lock:
            return np.zeros(len(observations), np.int64)

    assert len(list(treadle.collect(Walk, policy, episodes=5))) == 5


def test_a_name_is_read_and_not_run(tmp_path: Path) -> None:
    from treadle.sample.inference import asked_in_caller

    path = tmp_path / "policy.py"
    path.write_text("raise RuntimeError('run')\nclass Large:\n    batched: bool = True\nclass Small:\n    pass\n")
    assert asked_in_caller(f"{path}:Large") is not None
    assert asked_in_caller(f"{path}:Small") is None
    assert asked_in_caller(f"{path}:Missing") is None
    path.write_text("def act(o):\n    return o\nact.batched = True\n")
    assert asked_in_caller(f"{path}:act") is not None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"inference": "gpu"}, "'auto', 'worker', 'caller'"),
        ({"inference": "caller", "num_envs": 0}, "num_envs"),
        ({"inference": asked(batch_size=9), "num_envs": 8}, "more than the 8 environments"),
        ({"inference": asked(where="worker", max_wait=1.0)}, "max_wait is for a policy that is asked in the caller"),
        ({"inference": asked(where="worker", pad_to=8), "num_envs": 8}, "give one of them"),
        ({"inference": "worker", "num_envs": 5, "workers": 2}, "not a multiple of workers=2"),
        ({"inference": "caller", "envs_per_worker": 2}, "num_envs= counts"),
        ({"inference": "caller", "patience": 1.0}, "max_wait"),
        ({"inference": "caller", "pad_to": 8}, r"inference=Inference\(pad_to=...\)"),
        ({"nodes": 2}, r"cluster=Cluster\(nodes=...\)"),
        ({"inference": "caller", "nonsense": 1}, "nonsense"),
    ],
)
def test_contradictions_are_refused_at_the_call(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        treadle.collect(Walk, Plain(), episodes=2, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pad_to": 0}, "pad_to"),
        ({"n_action_steps": 0}, "n_action_steps"),
        ({"max_wait": -1}, "max_wait"),
        ({"batch_size": 9, "pad_to": 8}, "more than pad_to=8"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(**given)


def test_random_actions_need_no_policy_in_the_caller() -> None:
    with pytest.raises(UsageError, match="random actions"):
        treadle.collect(Walk, None, episodes=2, inference="caller")


# --- failures ------------------------------------------------------------------------------------------------------


class Fatal(Walk):
    """Its process is killed at the third step of the episode whose seed is in the file, once for each line there."""

    def __init__(self, path: str, always: bool = False) -> None:
        self.path, self.always = Path(path), always

    def reset(self, **options: Any) -> Any:
        self.seed = options["seed"]
        return super().reset(**options)

    def chosen(self) -> bool:
        """Return True in the episode whose seed the file names. Another worker may remove the file."""
        try:
            return str(self.seed) == self.path.read_text()
        except FileNotFoundError:
            return False

    def step(self, action: Any) -> Any:
        if self.t == 1 and self.chosen():
            if not self.always:
                self.path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def seed_of(index: int) -> int:
    from treadle import seeding

    return seeding.episode_env_seed(5, index)


def test_a_death_costs_time_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "seed"
    env_kwargs = {"path": str(path)}
    whole = made(Fatal, Remembering(), env_kwargs=env_kwargs, num_envs=1, workers=1)
    path.write_text(str(seed_of(17)))
    assert made(Fatal, Remembering(), env_kwargs=env_kwargs, num_envs=8, workers=2) == whole
    assert not path.exists()
    assert "in step 2 of episode 17" in caplog.text


def test_an_episode_that_kills_its_workers_ends_the_run_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "seed"
    path.write_text(str(seed_of(6)))
    with pytest.raises(CollectionFailed, match=r"episode 6 .* has cost 3 fresh workers") as caught:
        made(Fatal, Plain(), env_kwargs={"path": str(path), "always": True}, num_envs=6, workers=2)
    assert caught.value.where.episode == 6


def test_an_episode_that_kills_its_workers_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "seed"
    path.write_text(str(seed_of(6)))
    kwargs = {"path": str(path), "always": True}
    found = made(Fatal, Plain(), env_kwargs=kwargs, num_envs=6, workers=2, on_error="skip")
    path.unlink()
    assert found == [each for each in made(Fatal, Plain(), env_kwargs=kwargs, num_envs=6) if each[0] != 6]


class Raises(Walk):
    """Raises in the second step of every episode whose own number is below 100."""

    def step(self, action: Any) -> Any:
        if self.t == 1 and self.own < 100:
            raise ValueError("too hot")
        return super().step(action)


def test_the_failure_of_the_lowest_index_is_the_one_told() -> None:
    with pytest.raises(CollectionFailed) as worker:
        made(Raises, Plain(), inference="worker", workers=1)
    with pytest.raises(CollectionFailed) as caller:
        made(Raises, Plain(), num_envs=8, workers=2)
    for name in ("episode", "seed", "step", "phase"):
        assert getattr(caller.value.where, name) == getattr(worker.value.where, name)
    assert caller.value.reason == worker.value.reason


def test_episodes_that_raise_may_be_left_out() -> None:
    options = {"on_error": "skip", "max_skipped": 20}
    assert made(Raises, Plain(), num_envs=8, workers=2, **options) == made(
        Raises, Plain(), inference="worker", **options
    )


class Spoilt(Raises):
    """Once it has raised, it says something else."""

    hot = 0

    def look(self, action: int) -> np.ndarray:
        return super().look(action) + self.hot

    def step(self, action: Any) -> Any:
        self.hot += self.t == 1 and self.own < 100
        return super().step(action)


def test_what_has_raised_plays_no_other_episode() -> None:
    options = {"on_error": "skip", "max_skipped": 20}
    assert made(Spoilt, Plain(), num_envs=8, workers=2, **options) == made(
        Spoilt, Plain(), inference="worker", **options
    )


class Hangs(Fatal):
    def step(self, action: Any) -> Any:
        if self.t == 1 and self.chosen():
            self.path.unlink()
            threading.Event().wait()
        return Walk.step(self, action)


def test_a_step_that_hangs_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "seed"
    kwargs = {"path": str(path)}
    whole = made(Hangs, Plain(), env_kwargs=kwargs, num_envs=1)
    path.write_text(str(seed_of(9)))
    assert made(Hangs, Plain(), env_kwargs=kwargs, num_envs=6, workers=2, step_timeout=0.5) == whole


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda o: np.zeros(len(o) - 1, np.int64), r"batch 1 of 4 rows.*actions of 4 rows"),
        (lambda o: np.full(len(o), 7), r"row 0 of batch 1 of 4 rows.*action space"),
        (lambda o: np.zeros(len(o), np.float64) + 0.5, "action space"),
        (lambda o: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_what_is_wrong_with_an_answer_is_placed_in_batch_row_and_episode(answer: Any, said: str) -> None:
    with pytest.raises(CollectionFailed, match=said) as caught:
        made(Walk, answer, num_envs=4, workers=2, inference=asked(batch_size=4))
    assert caught.value.where.phase == "policy"
    assert caught.value.where.episode == 0
    assert "for episodes 0, 1, 2, 3" in caught.value.__notes__[0]


def test_environments_of_one_policy_have_one_action_space() -> None:
    class Counted(Walk):
        made = 0

        def __init__(self) -> None:
            Counted.made += 1
            self.action_space = gym.spaces.Discrete(4 + Counted.made)

    with pytest.raises(
        UsageError, match=r"one action space: that of slot 1 is Discrete\(6\), that of slot 0 Discrete\(5\)"
    ):
        made(Counted, Plain(), num_envs=3, worker_options=treadle.WorkerOptions(backend="serial"))


def test_nan_is_refused_with_its_row() -> None:
    def policy(observations: np.ndarray) -> np.ndarray:
        actions = np.zeros((len(observations), 1), np.float32)
        actions[-1] = np.nan
        return actions

    with pytest.raises(CollectionFailed, match=r"row 2 of batch 1 of 3 rows"):
        made("Pendulum-v1", policy, num_envs=3, workers=1, inference=asked(batch_size=3))


def test_leaving_the_loop_leaves_nothing() -> None:
    played = treadle.collect(Walk, Plain(), num_envs=4, workers=2)
    assert [next(played).index for _ in range(5)] == [0, 1, 2, 3, 4]
    played.close()


def test_a_small_buffer_only_makes_it_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = made(Walk, Plain(), num_envs=4)
    monkeypatch.setattr("treadle.sample.collect.MOST_WAITING", 1)
    assert made(Walk, Plain(), num_envs=4) == plain


# --- evaluating and datasets ---------------------------------------------------------------------------------------


def test_the_table_is_the_same_for_any_number_of_environments() -> None:
    tables = [
        treadle.evaluate(Walk, Plain(), 32, seed=3, num_envs=num_envs, workers=2).scores for num_envs in (1, 8, 32)
    ]
    assert tables[0] == tables[1] == tables[2]
    assert tables[0] == treadle.evaluate(Walk, Plain(), 32, seed=3, inference="worker").scores


def test_a_dataset_is_the_same_and_goes_on_after_it_was_stopped(tmp_path: Path, require: Any) -> None:
    require("minari")
    options = {"seed": 2, "num_envs": 5, "workers": 2}
    whole = treadle.collect_dataset(Walk, Plain(), out=tmp_path / "whole", episodes=30, **options)
    workers = treadle.collect_dataset(Walk, Plain(), out=tmp_path / "workers", episodes=30, seed=2, inference="worker")
    treadle.collect_dataset(Walk, Plain(), out=tmp_path / "some", episodes=11, **options)
    rest = treadle.collect_dataset(
        Walk, Plain(), out=tmp_path / "some", episodes=30, resume=True, **{**options, "num_envs": 9}
    )
    assert whole.summary is not None
    assert workers.summary is not None
    assert rest.summary is not None
    assert whole.summary.hash == workers.summary.hash == rest.summary.hash
    assert whole.summary.warnings == []
    with pytest.raises(UsageError, match="inference"):
        treadle.collect_dataset(
            Walk, Plain(), out=tmp_path / "some", episodes=30, resume=True, seed=2, inference="worker"
        )


class Plodding(Walk):
    """Some of its episodes take twenty times as long as the others."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.004 if self.own < 100 else 0.0002)
        return super().step(action)


class Ahead(Remembering):
    """Remembers, and answers for four steps ahead."""

    def __call__(self, observations: np.ndarray, state: Any) -> Any:
        first, after = super().__call__(observations, state)
        return (first[:, None] + np.arange(4)) % 5, after


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Remembering, Ahead])
@pytest.mark.parametrize(
    "batching",
    [{}, {"batch_size": 16}, {"batch_size": 1, "max_wait": 0.0}, {"batch_size": 16, "max_wait": 0.0}, {"pad_to": 16}],
    ids=str,
)
def test_killing_workers_again_and_again_changes_no_byte(batching: dict[str, Any], policy: type) -> None:
    from treadle.play.recipe import CallerInference, RolloutRecipe
    from treadle.program.gym_env import EnvRecipe
    from treadle.sample.nodes import collection
    from treadle.sample.schedule import Schedule
    from treadle.sample.skipping import Skipping

    chunk = {"n_action_steps": 3} if policy is Ahead else {}
    whole = made(Plodding, policy(), episodes=300, num_envs=1, workers=1, inference=asked(**chunk))
    asking = CallerInference(policy(), 16, **batching, **chunk)
    recipe = RolloutRecipe(EnvRecipe(Plodding), asking=asking)
    found, killed = [], 0
    numbers = np.random.default_rng(0)
    patient = Skipping(False, deaths=100)
    with collection(recipe, Schedule(300), root=5, workers=2, skipping=patient) as run:
        for count, (_, _, episode) in enumerate(run):
            found.append(key(episode))
            if count % 20 == 7:
                worker = run.pool.workers[int(numbers.integers(2))]
                if worker.pid and worker.state not in (State.DEAD, State.GONE):  # else the number may be another's
                    os.kill(worker.pid, [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT][killed % 3])
                    killed += 1
        restarts = run.tally.restarts
    assert sorted(found) == whole
    assert restarts > 5


class Slow(Walk):
    """Each of its answers is waited for, so that requests to its worker wait in line."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        time.sleep(0.01)
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.01)
        return super().step(action)


def test_a_worker_with_many_slots_has_room_for_what_is_said_of_each() -> None:
    def policy(observations: np.ndarray) -> Any:
        return Plain()(observations), {"value": observations[:, 0]}

    asked_alone: dict[str, Any] = {"inference": asked(batch_size=1, max_wait=0.0), "num_envs": 8}
    played = list(treadle.collect(Slow, policy, episodes=8, workers=1, **asked_alone))
    assert [len(each.policy_infos) for each in played] == [len(each) for each in played]
