"""usage: python scripts/extras.py [EXTRA ...]

Run in an environment that has Treadle with these extras: each does its job once. Without arguments: name all extras,
one a line, with the extras that a job needs besides. `scripts/test-extras.sh` makes the environments.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

import treadle


class Drawn(gym.Env[Any, Any]):
    """Five steps, drawn in grey."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 5, False, {}

    def render(self) -> Any:
        return np.full((64, 64, 3), 40 * self.t, np.uint8)


def cli(folder: Path) -> None:
    command = [sys.executable, "-m", "treadle", "eval", "CartPole-v1", "--episodes", "3"]
    assert "mean" in subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout


def data(folder: Path) -> None:
    import minari

    stored = treadle.collect_dataset("CartPole-v1", episodes=3, out=folder, workers=2)
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    assert minari.load_dataset(str(stored.dataset_id)).total_episodes == 3


def plays(env: str) -> Callable[[Path], None]:
    def job(folder: Path) -> None:
        assert len(treadle.evaluate(env, None, 2, workers=2, max_episode_steps=30).scores) == 2

    return job


def video(folder: Path) -> None:
    treadle.evaluate(f"{Path(__file__).absolute()}:Drawn", None, 2, out=folder, workers=1)
    assert [film.path.suffix for film in treadle.film(folder, best=1)] == [".mp4"]


def sb3(folder: Path) -> None:
    from stable_baselines3 import PPO

    from treadle.sb3 import make_vec_env

    envs = make_vec_env("CartPole-v1", n_envs=4, seed=0)
    PPO("MlpPolicy", envs, n_steps=16, batch_size=16, device="cpu").learn(64)
    envs.close()


def torchrl(folder: Path) -> None:
    from torchrl.envs import GymWrapper

    env = GymWrapper(treadle.make_vec("CartPole-v1", num_envs=4, autoreset_mode="Disabled"))
    assert env.rollout(5, break_when_any_done=False).shape == (4, 5)
    env.close()


def tianshou(folder: Path) -> None:
    from treadle.tianshou import VectorEnv

    envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 4)
    envs.reset()
    assert envs.step([0, 1], id=[1, 3])[0].shape == (2, 4)
    envs.close()


def pettingzoo(folder: Path) -> None:
    from mpe2 import simple_spread_v3

    from treadle import pettingzoo

    vector = pettingzoo.make_vec(simple_spread_v3.parallel_env, 4, workers=2)
    vector.reset(seed=0)
    actions = {agent: vector.action_space(agent).sample() for agent in vector.agents}
    assert vector.step(actions)[1]["agent_0"].shape == (4,)
    vector.close()


def dm_env(folder: Path) -> None:
    from treadle.dm_env import DmVector

    vector = DmVector("CartPole-v1", 4, workers=2)
    vector.reset(seed=0)
    assert vector.step(np.ones(4, np.int64)).reward.shape == (4,)
    vector.close()


def lerobot(folder: Path) -> None:
    treadle.collect_dataset("CartPole-v1", episodes=2, out=folder / "run", workers=1)
    command = ["dataset", "export", str(folder / "run"), str(folder / "lerobot"), "--fps", "50"]
    subprocess.run([sys.executable, "-m", "treadle", *command], check=True, capture_output=True)
    assert list((folder / "lerobot").rglob("*.parquet"))


def ray(folder: Path) -> None:
    there = list(treadle.collect("CartPole-v1", episodes=4, seed=1, cluster=treadle.Cluster(1, cpus_per_node=1)))
    assert len(there) == 4


JOBS: dict[str, tuple[str, Callable[[Path], None]]] = {  # extra -> extras that its job needs besides, and the job
    "cli": ("", cli),
    "data": ("", data),
    "atari": ("", plays("ALE/Pong-v5")),
    "minigrid": ("", plays("MiniGrid-Empty-5x5-v0")),
    "mujoco": ("", plays("HalfCheetah-v5")),
    "video": ("data", video),
    "pettingzoo": ("", pettingzoo),
    "dm-env": ("", dm_env),
    "lerobot": ("cli", lerobot),
    "sb3": ("", sb3),
    "tianshou": ("", tianshou),
    "torchrl": ("", torchrl),
    "ray": ("", ray),
}


def main(names: list[str]) -> None:
    """Do the jobs of these extras; without names, list all."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            JOBS[name][1](Path(folder))
        print(f"{name}: does its job")
    if not names:
        print("\n".join(",".join(filter(None, (name, besides))) for name, (besides, _) in JOBS.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
