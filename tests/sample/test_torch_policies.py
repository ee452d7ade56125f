"""A saved Stable-Baselines3 policy, with torch's randomness: the same bytes for any number of workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conftest import require
from treadle import trees
from treadle.program.saved import load_model
from treadle.sample.collect import collect
from treadle.worker.options import WorkerOptions

pytestmark = pytest.mark.heavy

POLICY = """
def load():
    from stable_baselines3 import PPO

    return PPO.load({path!r}, device="cpu")
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    sb3 = require("stable_baselines3")
    directory = tmp_path_factory.mktemp("policy")
    model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, seed=0, device="cpu")
    model.learn(128)
    model.save(directory / "ppo.zip")
    file = directory / "ppo_policy.py"
    file.write_text(POLICY.format(path=str(directory / "ppo.zip")))
    return f"{file}:load"


def test_a_saved_policy_plays_the_same_episodes_on_one_two_and_five_workers(policy: str, tmp_path: Path) -> None:
    played = {}
    for workers in (1, 2, 5):
        played[workers] = list(collect("CartPole-v1", policy, episodes=12, seed=3, workers=workers))
    for episodes in played.values():
        for mine, first in zip(episodes, played[1], strict=True):
            assert mine.seed == first.seed
            assert trees.equal(mine.observations, first.observations)
            assert trees.equal(mine.actions, first.actions)
    actions = np.concatenate([e.actions for e in played[1]])
    assert set(actions.tolist()) == {0, 1}


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "DQN", "SAC", "TD3", "DDPG"])
def test_a_saved_model_is_a_policy_by_itself(algorithm: str, tmp_path: Path) -> None:
    sb3 = require("stable_baselines3")
    kind = getattr(sb3, algorithm)
    env = "CartPole-v1" if algorithm in ("PPO", "A2C", "DQN") else "Pendulum-v1"
    room = {} if algorithm in ("PPO", "A2C") else {"buffer_size": 100}
    path = tmp_path / f"{algorithm}.zip"
    kind("MlpPolicy", env, seed=0, device="cpu", **room).save(path)
    same = {"episodes": 2, "seed": 3, "max_episode_steps": 20, "worker_options": WorkerOptions(backend="serial")}
    by_name = list(collect(env, str(path), **same))
    loaded = list(collect(env, lambda: kind.load(path, device="cpu"), **same))
    for mine, other in zip(by_name, loaded, strict=True):
        assert trees.equal(mine.actions, other.actions)


def test_a_saved_model_is_loaded_without_room_for_learning(tmp_path: Path) -> None:
    sb3 = require("stable_baselines3")
    sb3.DQN("MlpPolicy", "CartPole-v1", buffer_size=10_000).save(tmp_path / "dqn.zip")
    assert load_model(str(tmp_path / "dqn.zip")).replay_buffer.observations.shape[0] == 1


def test_the_callers_torch_generator_is_left_alone(policy: str) -> None:
    torch = require("torch")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    episodes = list(collect("CartPole-v1", policy, episodes=2, seed=3, worker_options=WorkerOptions(backend="serial")))
    assert torch.equal(torch.rand(3), expected)
    again = list(collect("CartPole-v1", policy, episodes=2, seed=3, workers=1))
    assert [trees.equal(a.actions, b.actions) for a, b in zip(episodes, again, strict=True)] == [True, True]
