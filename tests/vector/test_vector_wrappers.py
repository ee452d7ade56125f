"""Gymnasium's vector wrappers over ours give what they give over SyncVectorEnv."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers as single
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from small_envs import Counter, assert_same, of

from conftest import require
from treadle.vector.gymnasium import VectorEnv
from treadle.worker.options import WorkerOptions

Wrap = Callable[[gym.vector.VectorEnv], gym.vector.VectorEnv]


def both(wrap: Wrap, mode: AutoresetMode = AutoresetMode.NEXT_STEP, env: str = "CartPole-v1", **kwargs: Any) -> None:
    """Play the wrapped vectors side by side."""
    envs = [lambda: gym.make(env, **kwargs)] * 3
    ours = wrap(VectorEnv(envs, workers=1, inline=1, autoreset_mode=mode))
    theirs = wrap(SyncVectorEnv(envs, autoreset_mode=mode))
    try:
        assert ours.observation_space == theirs.observation_space
        assert_same(timeless(ours.reset(seed=4)), timeless(theirs.reset(seed=4)))
        ours.action_space.seed(8)
        for _ in range(60):
            actions = ours.action_space.sample()
            assert_same(timeless(ours.step(actions)), timeless(theirs.step(actions)))
    finally:
        ours.close()
        theirs.close()
    assert ours.closed


def timeless(tree: Any) -> Any:
    """Without what a clock says."""
    if isinstance(tree, dict):
        return {key: timeless(part) for key, part in tree.items() if key not in ("t", "_t")}
    return tuple(map(timeless, tree)) if isinstance(tree, tuple | list) else tree


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.value)
def test_record_episode_statistics(mode: AutoresetMode) -> None:
    both(wrappers.RecordEpisodeStatistics, mode)


def test_dict_info_to_list() -> None:
    both(lambda vector: wrappers.DictInfoToList(wrappers.RecordEpisodeStatistics(vector)))
    both(wrappers.DictInfoToList, AutoresetMode.SAME_STEP)


def test_normalize_observation_and_reward() -> None:
    both(lambda vector: wrappers.NormalizeReward(wrappers.NormalizeObservation(vector)))


def test_transforms() -> None:
    both(wrappers.FlattenObservation, env="Pendulum-v1", max_episode_steps=20)
    both(lambda vector: wrappers.ClipReward(vector, -0.5, 0.5), AutoresetMode.SAME_STEP)
    both(wrappers.ClipAction, env="Pendulum-v1", max_episode_steps=20)
    both(lambda vector: wrappers.RescaleAction(vector, -1.0, 1.0), env="Pendulum-v1", max_episode_steps=20)


def test_episode_statistics_of_single_environments() -> None:
    """The wrapper of a single environment: its infos come as nested columns, whole in the final info."""
    envs = [lambda: single.RecordEpisodeStatistics(gym.make("CartPole-v1"))] * 3
    ours = VectorEnv(envs, workers=1, inline=1, autoreset_mode="SameStep")
    theirs = SyncVectorEnv(envs, autoreset_mode=AutoresetMode.SAME_STEP)
    ours.reset(seed=2)
    theirs.reset(seed=2)
    ended = 0
    for t in range(60):
        actions = np.array([t % 2, 0, 1])
        found, expected = ours.step(actions), theirs.step(actions)
        assert_same(timeless(found), timeless(expected))
        ended += "final_info" in found[4]
    assert ended
    ours.close()


def test_statistics_survive_a_masked_reset() -> None:
    """Gymnasium's own vectors take `reset_mask` out of the caller's options, so the wrapper above them no longer sees
    it and clears every row's statistics; ours leave the options alone."""
    inner = VectorEnv([of(Counter, 9)] * 2, worker_options=WorkerOptions(backend="serial"), autoreset_mode="Disabled")
    vector = wrappers.RecordEpisodeStatistics(inner)
    vector.reset()
    vector.step(np.array([1, 1]))
    vector.reset(options={"reset_mask": np.array([True, False])})
    assert vector.episode_lengths.tolist() == [0, 1]
    vector.close()


@pytest.mark.heavy
def test_record_video(tmp_path: Path) -> None:
    require("moviepy")
    vector = VectorEnv(
        "CartPole-v1", 2, worker_options=WorkerOptions(backend="serial"), env_kwargs={"render_mode": "rgb_array"}
    )
    recorded = wrappers.RecordVideo(vector, str(tmp_path), step_trigger=lambda step: step == 0, video_length=5)
    recorded.reset(seed=0)
    for _ in range(7):
        recorded.step(np.array([0, 1]))
    recorded.close()
    assert list(tmp_path.glob("*.mp4"))


def test_rendering_wrappers_find_what_they_look_for() -> None:
    """What RecordVideo and HumanRendering read, without an encoder or a screen."""
    vector = VectorEnv("CartPole-v1", 2, workers=1, inline=1, env_kwargs={"render_mode": "rgb_array"})
    assert vector.render_mode == "rgb_array"
    assert vector.metadata["render_fps"] == 50
    assert vector.unwrapped is vector
    vector.reset(seed=0)
    assert {frame.dtype for frame in vector.render()} == {np.dtype(np.uint8)}
    vector.close()


@pytest.mark.heavy
def test_numpy_to_torch(require: Any) -> None:
    torch = require("torch")
    require("array_api_compat")  # Gymnasium's array conversions need it, and do not depend on it
    vector = wrappers.NumpyToTorch(VectorEnv("CartPole-v1", 2, worker_options=WorkerOptions(backend="serial")))
    observations, _ = vector.reset(seed=0)
    assert isinstance(observations, torch.Tensor)
    _, rewards, *_ = vector.step(torch.tensor([0, 1]))
    assert rewards.tolist() == [1, 1]
    vector.close()
