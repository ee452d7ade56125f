"""Treadle inside RLlib: every environment runner steps a vector of Treadle's. Run by scripts/test-foreign.sh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

import treadle

ENOUGH, ITERATIONS = 200.0, 30


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=3, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.mark.timeout(900)  # RLlib takes half a minute to begin, and more where others work, too
def test_ppo_learns_cartpole_on_treadles_vectors(cluster: None) -> None:
    def make(context: Any) -> Any:
        """What docs/scaling.md shows."""
        if "num_envs" in context:
            return treadle.make_vec("CartPole-v1", context["num_envs"], workers=1)
        return gym.make("CartPole-v1")

    register_env("treadle-cartpole", make)
    config = (
        PPOConfig()
        .environment("treadle-cartpole")
        .env_runners(
            num_env_runners=2,
            num_envs_per_env_runner=4,
            gym_env_vectorize_mode=gym.VectorizeMode.VECTOR_ENTRY_POINT,
        )
        .training(lr=3e-4, train_batch_size=4000, minibatch_size=256, num_epochs=8)
        .debugging(seed=1)
    )
    algorithm = config.build_algo()
    try:
        kinds = algorithm.env_runner_group.foreach_env_runner(
            lambda runner: type(runner.env.unwrapped).__module__, local_env_runner=False
        )
        assert len(kinds) == 2
        assert all(kind.startswith("treadle.") for kind in kinds), kinds
        best = 0.0
        for iteration in range(ITERATIONS):
            mean = algorithm.train()["env_runners"].get("episode_return_mean", 0.0)
            print(f"iteration {iteration + 1}: mean return {mean:.1f}", flush=True)
            best = max(best, mean)
            if best > ENOUGH:
                break
        assert best > ENOUGH
    finally:
        algorithm.stop()
