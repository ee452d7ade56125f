"""Networks in the caller: torch modules and models of Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from conftest import require
from treadle import seeding
from treadle.errors import UsageError
from treadle.program.torch_policy import draw_categorical, draw_normal

pytestmark = pytest.mark.heavy


def network(env: str, outputs: int) -> Any:
    torch = require("torch")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    made = gym.make(env)
    inputs = int(np.prod(made.observation_space.shape))
    made.close()
    nn = torch.nn
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def key(episode: Any) -> tuple[Any, ...]:
    return episode.index, episode.observations.tobytes(), episode.actions.tobytes(), episode.rewards.tobytes()


def test_actions_of_a_module_are_the_same_for_any_number_of_environments() -> None:
    policy = treadle.torch_policy(network("Pendulum-v1", 1))
    played = [
        [
            key(e)
            for e in treadle.collect(
                "Pendulum-v1", policy, episodes=12, seed=1, num_envs=n, workers=2, inference=treadle.Inference(pad_to=8)
            )
        ]
        for n in (1, 5, 12)
    ]
    assert played[0] == played[1] == played[2]


def test_a_module_that_draws_uses_the_episodes_own_generators() -> None:
    policy = treadle.torch_policy(network("CartPole-v1", 2), sample="categorical")
    played = [
        [
            key(e)
            for e in treadle.collect(
                "CartPole-v1", policy, episodes=20, seed=1, num_envs=n, workers=2, inference=treadle.Inference(pad_to=8)
            )
        ]
        for n in (1, 7)
    ]
    assert played[0] == played[1]
    assert len({actions for _, _, actions, _ in played[0]}) > 10


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_deterministic_returns_are_those_of_stable_baselines(env: str, tmp_path: Any) -> None:
    sb3 = require("stable_baselines3")
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    require("torch").set_num_threads(1)
    model = sb3.PPO("MlpPolicy", env, n_steps=64, batch_size=64, seed=0, device="cpu")
    model.learn(128)
    model.save(tmp_path / "ppo.zip")
    loaded = sb3.PPO.load(tmp_path / "ppo.zip", device="cpu")
    episodes, seed = 6, 4

    class Seeded(gym.Wrapper):  # type: ignore[type-arg]
        """Episode i is reset with the seed that Treadle gives it."""

        index = 0

        def reset(self, **options: Any) -> Any:
            given = seeding.episode_env_seed(seed, min(self.index, episodes - 1))
            self.index += 1
            return self.env.reset(seed=given)

    theirs, lengths = evaluate_policy(
        loaded,
        Monitor(Seeded(gym.make(env))),
        n_eval_episodes=episodes,
        deterministic=True,
        return_episode_rewards=True,
    )

    def act(observations: np.ndarray) -> np.ndarray:
        return loaded.predict(observations, deterministic=True)[0]

    ours = treadle.evaluate(
        env, act, episodes, seed, inference=treadle.Inference(where="caller", pad_to=1), num_envs=1, workers=1
    )
    assert [score.length for score in ours.scores] == lengths
    # Monitor rounds to six digits
    assert [round(score.total_reward, 6) for score in ours.scores] == pytest.approx(theirs, abs=1e-6)
    many = treadle.evaluate(
        env, act, episodes, seed, inference=treadle.Inference(where="caller", pad_to=8), num_envs=6, workers=2
    )
    few = treadle.evaluate(
        env, act, episodes, seed, inference=treadle.Inference(where="caller", pad_to=8), num_envs=2, workers=2
    )
    assert many.scores == few.scores


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_stochastic_model_draws_from_the_rows_own_generators(env: str, tmp_path: Any) -> None:
    sb3 = require("stable_baselines3")
    model = sb3.PPO("MlpPolicy", env, n_steps=64, batch_size=64, seed=0, device="cpu")
    model.save(tmp_path / "ppo.zip")
    options = {
        "episodes": 8,
        "seed": 2,
        "inference": treadle.Inference(where="caller", pad_to=8),
        "max_episode_steps": 40,
    }
    played = [
        [key(e) for e in treadle.collect(env, str(tmp_path / "ppo.zip"), num_envs=n, workers=2, **options)]
        for n in (1, 8)
    ]
    assert played[0] == played[1]


def test_what_is_drawn_has_the_distribution() -> None:
    rngs = [np.random.default_rng(i) for i in range(4000)]
    drawn = draw_categorical(np.tile([0.2, 0.0, 0.8], (4000, 1)), rngs)
    assert set(drawn.tolist()) == {0, 2}
    assert np.mean(drawn == 2) == pytest.approx(0.8, abs=0.03)
    normal = draw_normal(np.full((4000, 1), 2.0), np.full((4000, 1), 0.5), rngs)
    assert normal.mean() == pytest.approx(2.0, abs=0.05)
    assert normal.std() == pytest.approx(0.5, abs=0.05)


def test_another_way_to_draw_is_refused() -> None:
    with pytest.raises(UsageError, match="categorical"):
        treadle.torch_policy(network("CartPole-v1", 2), sample="greedy")
    with pytest.raises(treadle.UsageError, match=r"module is a torch\.nn\.Module, got 3"):
        treadle.torch_policy(3)


def test_a_policy_with_parameters_elsewhere_is_asked_in_the_caller() -> None:
    torch = require("torch")
    from treadle.sample.inference import asked_in_caller

    assert asked_in_caller(torch.nn.Linear(2, 2)) is None
    assert "meta" in str(asked_in_caller(torch.nn.Linear(2, 2, device="meta")))
