"""LeRobot's own code on our vectors and our datasets. Run by `make test-foreign ARGS=lerobot`, in its environment."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gym_pusht  # noqa: F401  (registers its environments)
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.envs.configs import PushtEnv
from lerobot.envs.factory import make_env, make_env_pre_post_processors
from lerobot.envs.utils import _call_make_env, _normalize_hub_result
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors
from lerobot.scripts.lerobot_eval import eval_policy

import treadle
from treadle.lerobot import LeRobotVectorEnv
from treadle.record.lerobot import export_lerobot

PUSHT = PushtEnv(obs_type="environment_state_agent_pos", episode_length=40)


def evaluated(vector: Any, videos: Path | None = None) -> Any:
    """What an untrained ACT makes of PushT."""
    torch.manual_seed(0)
    config = ACTConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (2,)),
            "observation.environment_state": PolicyFeature(FeatureType.ENV, (16,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
        chunk_size=8,
        n_action_steps=4,
        dim_model=64,
        n_heads=2,
        dim_feedforward=64,
        device="cpu",
    )
    unit = {"min": [0.0, 0.0], "max": [512.0, 512.0], "mean": [256.0, 256.0], "std": [100.0, 100.0]}
    stats = {key: {name: torch.tensor(v) for name, v in unit.items()} for key in ("observation.state", "action")}
    stats["observation.environment_state"] = {name: torch.tensor(v * 8) for name, v in unit.items()}
    before, after = make_pre_post_processors(config, None, dataset_stats=stats)
    env_before, env_after = make_env_pre_post_processors(PUSHT, config)
    try:
        told = eval_policy(
            vector,
            ACTPolicy(config),
            env_before,
            env_after,
            before,
            after,
            n_episodes=6,
            start_seed=1000,
            max_episodes_rendered=2 if videos else 0,
            videos_dir=videos,
        )
    finally:
        vector.close()
    return told


def ours(n_envs: int, use_async_envs: bool = False) -> Any:
    """`make_env` of a Hub environment."""
    make = partial(gym.make, "gym_pusht/PushT-v0", disable_env_checker=True, **PUSHT.gym_kwargs)
    return LeRobotVectorEnv(make, n_envs, workers=2, inline=0 if use_async_envs else "auto")


def test_eval_policy_gives_the_same_returns_on_our_vector(tmp_path: Path) -> None:
    theirs = evaluated(make_env(PUSHT, n_envs=3)["pusht"][0])
    mine = evaluated(ours(3), tmp_path)
    assert [each["seed"] for each in mine["per_episode"]] == list(range(1000, 1006))
    assert mine["per_episode"] == theirs["per_episode"]
    assert len({each["sum_reward"] for each in mine["per_episode"]}) > 1
    assert [Path(path).stat().st_size > 1000 for path in mine["video_paths"]] == [True, True]


@pytest.mark.parametrize("use_async_envs", [False, True])
def test_a_hub_environment_can_return_our_vector(use_async_envs: bool) -> None:
    class Hub:
        make_env = staticmethod(ours)

    ((_, suite),) = _normalize_hub_result(_call_make_env(Hub, 2, use_async_envs, None)).items()
    vector = suite[0]
    try:
        assert vector.reset(seed=3)[0]["agent_pos"].shape == (2, 2)
        assert vector.call("_max_episode_steps") == (40, 40)
        assert not hasattr(vector.envs[0], "task_description")
    finally:
        vector.close()


class Camera(gym.Env):
    """Two cameras, one of an odd size, a vector, a matrix, and text that has no place in a LeRobotDataset."""

    observation_space = gs.Dict(
        {
            "pixels": gs.Dict(
                {"top": gs.Box(0, 255, (64, 96, 3), np.uint8), "side": gs.Box(0, 255, (65, 97, 3), np.uint8)}
            ),
            "agent_pos": gs.Box(-np.inf, np.inf, (3,), np.float32),
            "table": gs.Box(0, 9, (2, 3), np.int64),
            "mission": gs.Text(10),
        }
    )
    action_space = gs.Discrete(4)

    def _seen(self) -> Any:
        top = np.zeros((64, 96, 3), np.uint8)
        top[:, : 8 * self.t + 8] = [200, 30, 60]
        side = np.full((65, 97, 3), 10 * self.t, np.uint8)
        position = np.array([self.t, self.start, -1.5], np.float32)
        return {
            "pixels": {"top": top, "side": side},
            "agent_pos": position,
            "table": np.full((2, 3), self.t),
            "mission": "go",
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.start = 0, int(self.np_random.integers(100))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._seen(), float(action), self.t == 7 + self.start % 4, False, {}


def test_an_exported_dataset_is_what_was_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.record.lerobot.FILE_FRAMES", 25)  # several files
    stored = treadle.collect_dataset(Camera, out=tmp_path / "run", episodes=6, seed=1, workers=2)
    told = export_lerobot(tmp_path / "run", tmp_path / "out", fps=10, task="look about")
    assert (told.episodes, told.left_out) == (6, ("observation.mission",))
    data = LeRobotDataset("mine/camera", root=tmp_path / "out", video_backend="pyav")
    played = list(treadle.load(tmp_path / "run").iterate_episodes())
    assert data.num_episodes == 6
    assert data.num_frames == told.frames == sum(len(each.rewards) for each in played) == stored.summary.steps
    assert len(list((tmp_path / "out" / "data").rglob("*.parquet"))) > 1
    i = 0
    for k, episode in enumerate(played):
        for t in range(len(episode.rewards)):
            item = data[i]
            assert (int(item["episode_index"]), int(item["frame_index"]), int(item["index"])) == (k, t, i)
            assert item["task"] == "look about"
            assert item["timestamp"] == pytest.approx(t / 10)
            assert item["observation.state"].numpy().tobytes() == episode.observations["agent_pos"][t].tobytes()
            assert (item["observation.table"].numpy() == episode.observations["table"][t]).all()
            assert int(item["action"]) == episode.actions[t]
            assert float(item["next.reward"]) == episode.rewards[t]
            assert bool(item["next.done"]) == (t == len(episode.rewards) - 1)
            for name, picture in (("top", (3, 64, 96)), ("side", (3, 65, 97))):
                shown = item[f"observation.images.{name}"]
                assert tuple(shown.shape) == picture
                wanted = episode.observations["pixels"][name][t].transpose(2, 0, 1) / 255
                assert np.abs(shown.numpy() - wanted).mean() < 0.03, (name, k, t)
            i += 1
    stats = data.meta.stats["observation.state"]
    every = np.concatenate([each.observations["agent_pos"][:-1] for each in played])
    assert np.allclose(stats["mean"], every.mean(0), rtol=1e-5)
    assert stats["max"].tolist() == every.max(0).tolist()
    assert data.meta.stats["observation.images.side"]["mean"].shape == (3, 1, 1)
    some = LeRobotDataset("mine/camera", root=tmp_path / "out", episodes=[4], video_backend="pyav")
    assert some.num_frames == len(played[4].rewards)


def test_act_learns_from_what_was_collected(tmp_path: Path) -> None:
    """The example, as a user runs it."""
    script = Path(__file__).parents[2] / "examples" / "lerobot_pendulum.py"
    subprocess.run([sys.executable, str(script), "--save", str(tmp_path / "curve.json")], check=True, timeout=1500)
    (run,) = json.loads((tmp_path / "curve.json").read_text())
    assert run["controller"] > -250
    assert run["returns"][0] < -1000
    assert max(run["returns"]) > -700


def test_a_batch_for_training_comes_out_of_it(tmp_path: Path) -> None:
    make = partial(gym.make, "gym_pusht/PushT-v0", disable_env_checker=True, **PUSHT.gym_kwargs)
    treadle.collect_dataset(make, out=tmp_path / "run", episodes=4, seed=1, workers=2)
    export_lerobot(tmp_path / "run", tmp_path / "out", fps=10)
    data = LeRobotDataset(
        "mine/pusht", root=tmp_path / "out", delta_timestamps={"action": [0, 0.1, 0.2], "observation.state": [-0.1, 0]}
    )
    batch = next(iter(torch.utils.data.DataLoader(data, 8)))
    assert batch["action"].shape == (8, 3, 2)
    assert batch["observation.state"].shape == (8, 2, 2)
    assert batch["observation.environment_state"].shape == (8, 16)
    assert json.loads((tmp_path / "out/meta/info.json").read_text())["codebase_version"] == "v3.0"


def test_the_card_of_an_export_names_its_files(tmp_path: Path) -> None:
    serial = treadle.WorkerOptions(backend="serial")
    treadle.collect_dataset("CartPole-v1", None, out=tmp_path / "out", episodes=2, worker_options=serial)
    export_lerobot(tmp_path / "out", tmp_path / "lerobot", task="balance\n`the` <b>pole</b>")
    text = (tmp_path / "lerobot" / "README.md").read_text()
    head = text.split("---\n", 2)[1]
    assert '"config_name": "default"' in head
    assert '"data_files": "data/*/*.parquet"' in head
    assert "# `balance 'the' <b>pole</b>`" in text
