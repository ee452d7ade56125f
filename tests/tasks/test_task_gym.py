"""The bridge between tasks and Gymnasium, both ways, on real environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from treadle.errors import UsageError
from treadle.tasks.core import METRICS_KEY
from treadle.tasks.gym import GymObservation, GymTaskSampler, TaskEnv
from treadle.worker.options import WorkerOptions


def test_episodes_as_tasks_are_the_same_episodes() -> None:
    sampler = GymTaskSampler("CartPole-v1", seeds=[3, 4])
    env = gym.make("CartPole-v1")
    assert (sampler.length, sampler.total_unique, sampler.last_sampled_task) == (2, 2, None)
    for seed in (3, 4):
        task = sampler.next_task()
        assert task is not None
        assert task is sampler.last_sampled_task
        assert task.task_info == {"seed": seed}
        observation, _ = env.reset(seed=seed)
        np.testing.assert_array_equal(task.get_observations()["observation"], observation)
        done = False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(1)
            result = task.step(1)
            np.testing.assert_array_equal(result.observation["observation"], observation)
            assert result.reward == reward
            done = terminated or truncated
            assert result.done == done
        assert task.reached_terminal_state()
    assert sampler.length == 0
    assert sampler.next_task() is None
    sampler.reset()
    assert sampler.next_task() is not None
    sampler.close()
    env.close()


def test_both_limits_of_steps() -> None:
    own = GymTaskSampler("CartPole-v1", env_kwargs={"max_episode_steps": 4}, seed=1)
    task = own.next_task()
    assert task is not None
    results = [task.step(t % 2) for t in range(4)]
    assert [r.done for r in results] == [False, False, False, True]
    assert task.is_truncated()
    assert not task.reached_terminal_state()
    assert not task.reached_max_steps()
    limited = GymTaskSampler("CartPole-v1", max_steps=2, seed=1)
    other = limited.next_task()
    assert other is not None
    assert [other.step(t % 2).done for t in range(2)] == [False, True]
    assert other.reached_max_steps()
    own.close()
    limited.close()


def test_streams_without_end_and_seeds() -> None:
    def firsts(sampler: GymTaskSampler) -> list[list[float]]:
        return [sampler.next_task().get_observations()["observation"].tolist() for _ in range(2)]  # type: ignore[union-attr]

    a, b = GymTaskSampler("CartPole-v1", seed=5), GymTaskSampler("CartPole-v1", seed=6)
    assert a.length == float("inf")
    first = firsts(a)
    assert first[0] != first[1]
    assert firsts(b) != first
    b.set_seed(5)
    assert firsts(b) == first
    a.reset()
    assert firsts(a) == first
    a.close()
    b.close()


def test_sensors_of_a_dict_observation(require: Any) -> None:
    require("minigrid")
    sampler = GymTaskSampler("MiniGrid-Empty-5x5-v0", env_kwargs={"render_mode": "rgb_array"}, seeds=[1])
    task = sampler.next_task()
    assert task is not None
    assert set(task.get_observations()) == {"direction", "image", "mission"}
    assert task.action_names()[:3] == ("left", "right", "forward")
    assert task.index_to_action(2) == "forward"
    assert task.render("rgb").shape[2] == 3
    sampler.close()

    def only_the_image(env: gym.Env) -> list[GymObservation]:
        return [GymObservation(env.observation_space["image"], "image", "view")]  # type: ignore[index]

    chosen = GymTaskSampler("MiniGrid-Empty-5x5-v0", only_the_image, seeds=[1])
    seen = chosen.next_task().get_observations()  # type: ignore[union-attr]
    assert list(seen) == ["view"]
    assert seen["view"].dtype == np.uint8
    chosen.close()


def test_names_without_an_enum() -> None:
    sampler = GymTaskSampler("CartPole-v1", seed=0)
    task = sampler.next_task()
    assert task is not None
    assert task.action_names() == ("0", "1")
    with pytest.raises(UsageError, match="render_mode"):
        task.render()
    sampler.close()
    continuous = GymTaskSampler("Pendulum-v1", seed=0)
    with pytest.raises(UsageError, match="Discrete"):
        continuous.next_task().action_names()  # type: ignore[union-attr]
    continuous.close()


def test_tasks_as_an_environment_pass_gymnasiums_own_check() -> None:
    env = TaskEnv(lambda: GymTaskSampler("CartPole-v1", seed=0))
    check_env(env, skip_render_check=True)
    env.close()


def test_words_of_a_task_end_no_episode() -> None:
    class Wordy(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return *rest, {**info, "truncated": True, "terminated": True, METRICS_KEY: "own", "rewards": 3}

    env = TaskEnv(GymTaskSampler(lambda: Wordy(gym.make("CartPole-v1")), seeds=[3], max_steps=3))
    env.reset()
    steps = [env.step(t % 2) for t in range(3)]
    assert [step[2:4] for step in steps] == [(False, False), (False, False), (False, True)]
    assert all(step[4]["truncated"] is True for step in steps), "an environment's info may say anything"
    assert [step[4].get(METRICS_KEY, {}).get("ep_length") for step in steps] == [None, None, 3]
    assert [(step[4]["task_rewards"], step[4][f"task_{METRICS_KEY}"]) for step in steps] == [(3, "own")] * 3
    env.close()


def test_an_environment_of_tasks() -> None:
    env = TaskEnv(GymTaskSampler("CartPole-v1", seeds=[3, 4], max_steps=5))
    plain = gym.make("CartPole-v1")
    for seed in (3, 4, 3):  # the stream begins again
        observation, info = env.reset()
        np.testing.assert_array_equal(observation["observation"], plain.reset(seed=seed)[0])
        assert info["task_info"]["seed"] == seed
        for t in range(5):
            observation, reward, terminated, truncated, info = env.step(t % 2)
            assert reward == 1.0
            assert (terminated, truncated) == (False, t == 4)
        assert info[METRICS_KEY]["ep_length"] == 5
    env.close()
    plain.close()
    strict = TaskEnv(GymTaskSampler("CartPole-v1", seeds=[3]), on_exhausted="raise")
    strict.reset()
    with pytest.raises(UsageError, match="exhausted"):
        strict.reset()
    strict.close()
    with pytest.raises(UsageError, match="no first task"):
        TaskEnv(GymTaskSampler("CartPole-v1", seeds=[]))


def test_an_environment_of_tasks_in_a_vector() -> None:
    from treadle.vector.gymnasium import VectorEnv

    def make() -> gym.Env:
        return TaskEnv(GymTaskSampler("CartPole-v1", seed=0))

    with_tasks = VectorEnv(make, 2, worker_options=WorkerOptions(backend="serial"))
    plain = VectorEnv("CartPole-v1", 2, worker_options=WorkerOptions(backend="serial"))
    first, _ = with_tasks.reset(seed=9)
    other, _ = plain.reset(seed=9)
    np.testing.assert_array_equal(first["observation"], other)
    for _ in range(30):
        a, b = with_tasks.step(np.array([0, 1])), plain.step(np.array([0, 1]))
        np.testing.assert_array_equal(a[1], b[1])
        np.testing.assert_array_equal(a[2], b[2])
    with_tasks.close()
    plain.close()


@pytest.mark.parametrize(("argument", "value"), [("on_exhausted", "shrug"), ("render_mode", "ansi")])
def test_arguments_that_make_no_sense(argument: str, value: str) -> None:
    with pytest.raises(UsageError, match=argument):
        TaskEnv(lambda: GymTaskSampler("CartPole-v1"), **{argument: value})  # type: ignore[arg-type]
