"""LeRobot's format, as far as it goes without LeRobot, whose own code reads it in `tests/foreign/lerobot_suite.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import treadle
from conftest import require
from treadle.errors import UsageError
from treadle.lerobot import LeRobotVectorEnv
from treadle.record import lerobot
from treadle.record.lerobot import export_lerobot


def test_statistics_of_pictures_are_those_of_their_numbers() -> None:
    pictures = np.random.default_rng(0).integers(3, 250, (5, 8, 9, 3)).astype(np.uint8)
    histogram = np.stack([np.bincount(pictures[..., k].ravel(), minlength=256) for k in range(3)])
    told = lerobot._picture_stats(histogram, 5)
    values = pictures.reshape(-1, 3) / 255
    assert told["count"] == [5]
    for name, wanted in {
        "min": values.min(0),
        "max": values.max(0),
        "mean": values.mean(0),
        "std": values.std(0),
        "q50": np.quantile(values, 0.5, axis=0, method="inverted_cdf"),
        "q99": np.quantile(values, 0.99, axis=0, method="inverted_cdf"),
    }.items():
        assert np.shape(told[name]) == (3, 1, 1)
        assert np.ravel(told[name]) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("space", "keys", "left_out"),
    [
        (gs.Box(-1, 1, (3,), np.float32), ["observation.state"], []),
        (gs.Box(0, 255, (8, 8, 3), np.uint8), ["observation.image"], []),
        (gs.Discrete(4), ["observation.state"], []),
        (
            gs.Dict(
                {
                    "agent_pos": gs.Box(-1, 1, (2,)),
                    "environment_state": gs.Box(-1, 1, (16,)),
                    "pixels": gs.Box(0, 255, (8, 8, 3), np.uint8),
                }
            ),
            ["observation.state", "observation.environment_state", "observation.image"],
            [],
        ),
        (
            gs.Dict({"pixels": gs.Dict({"top": gs.Box(0, 255, (8, 8, 3), np.uint8)}), "words": gs.Text(4)}),
            ["observation.images.top"],
            ["observation.words"],
        ),
    ],
    ids=str,
)
def test_names_are_those_that_lerobots_environments_use(space: Any, keys: list[str], left_out: list[str]) -> None:
    features, others = lerobot._features(space, "observation")
    assert [each.key for each in features] == keys
    assert others == left_out


def test_what_cannot_be_exported_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no dataset in"):
        export_lerobot(tmp_path / "nothing", tmp_path / "out")
    require("minari")
    treadle.collect_dataset("CartPole-v1", out=tmp_path / "run", episodes=2, workers=1)
    with pytest.raises(UsageError, match="is there already"):
        export_lerobot(tmp_path / "run", tmp_path / "run")
    with pytest.raises(UsageError, match="fps is a whole number"):
        export_lerobot(tmp_path / "run", tmp_path / "out", fps=0)
    assert not (tmp_path / "out").exists()


def test_the_vector_shows_lerobot_its_environments() -> None:
    class Told(gym.Wrapper):
        task_description = "balance"

    vector = LeRobotVectorEnv("CartPole-v1", 3, wrappers=[Told], env_kwargs={"render_mode": "rgb_array"}, workers=1)
    try:
        assert isinstance(vector, gym.vector.AsyncVectorEnv)
        assert vector.autoreset_mode is gym.vector.AutoresetMode.SAME_STEP
        assert [each.task_description for each in vector.envs] == ["balance"] * 3
        assert not hasattr(vector.envs[0], "task")
        assert vector.envs[2].spec.id == "CartPole-v1"
        vector.reset(seed=1)
        assert np.stack(vector.call("render")).shape[0] == 3
        assert vector.step(np.array([0, 1, 0]))[1].tolist() == [1.0] * 3
    finally:
        vector.close()
