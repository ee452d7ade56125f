"""LeRobot's ACT learns to swing up a pendulum from a dataset of Treadle's, and is tried on Treadle's workers.

    python examples/lerobot_pendulum.py
    python examples/lerobot_pendulum.py --updates 1500 --seed 2 --save curve.json

1. `treadle.collect_dataset` plays a controller that was written by hand, `export_lerobot` makes a LeRobotDataset of it.
2. LeRobot's `ACTPolicy` is trained on that by LeRobot's own means: dataset, normalising, loss.
3. `treadle.evaluate(inference="caller")` asks it for eight environments together. Each answer is a chunk of actions, of
   which some are played before it is asked again. The episodes are the same for any number of environments.

Needs lerobot (0.4.4 on Python 3.11) and `pip install 'treadle[data,lerobot]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import treadle

CHUNK, PLAYED = 8, 2  # actions of an answer, and how many of them are played
SWING, FPS = 80, 20  # steps of a recorded episode: later nothing is done but standing; Pendulum's take 0.05 s
STATE, GOAL, ACTION = "observation.state", "observation.environment_state", "action"


class AsRobot(gym.ObservationWrapper[dict[str, np.ndarray], np.ndarray, np.ndarray]):
    """Pendulum's observation by the names of LeRobot's environments: the arm's own state, and that of its surroundings,
    without one of which ACT takes no observation."""

    def __init__(self, env: gym.Env[np.ndarray, np.ndarray], speed: float) -> None:
        super().__init__(env)
        self._start = {"x_init": np.pi, "y_init": speed}
        own = env.observation_space
        self.observation_space = gym.spaces.Dict({"agent_pos": own, "environment_state": own})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options or self._start)

    def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        return {"agent_pos": observation, "environment_state": observation}


def pendulum(speed: float = 1.0) -> gym.Env[Any, Any]:
    """`speed`: the fastest start, in radians a second. Learners must have seen fast ones, too, slowed down."""
    return AsRobot(gym.make("Pendulum-v1"), speed)


def controller(observations: dict[str, np.ndarray]) -> np.ndarray:
    """Pump energy into each pendulum until it has what it needs to stand, then hold it up."""
    x, y, speed = observations["agent_pos"].T
    angle = np.arctan2(y, x)  # 0: upright
    missing = 5 * (1 - x) - speed**2 / 6  # energy, with Pendulum's mass 1, length 1 and gravity 10
    wanted = np.where(x > 0.9, -12 * angle - 3 * speed, 2 * np.sign(speed) * np.sign(missing))
    return np.clip(wanted, -2, 2)[:, None].astype(np.float32)


class Chunks:
    """A policy of LeRobot's as `treadle.evaluate` asks it: observations [k, ...]; chunks of actions [k, h, 1]."""

    batched = True

    def __init__(self, policy: Any, before: Any, after: Any) -> None:
        self._policy, self._before, self._after = policy.eval(), before, after

    def __call__(self, observations: dict[str, np.ndarray]) -> np.ndarray:
        import torch

        parts = {STATE: observations["agent_pos"], GOAL: observations["environment_state"]}
        with torch.inference_mode():
            batch = self._before({key: torch.from_numpy(part) for key, part in parts.items()})
            chunk = self._after(self._policy.predict_action_chunk(batch))
        return np.clip(chunk.numpy(), -2, 2)


def batches(root: Path, size: int, seed: int) -> Iterator[Any]:
    """Of a LeRobotDataset, for ever: observations, and the actions from there on."""
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    data = LeRobotDataset("treadle/pendulum", root=root, delta_timestamps={ACTION: [t / FPS for t in range(CHUNK)]})
    order = torch.Generator().manual_seed(seed)
    loader = torch.utils.data.DataLoader(data, size, shuffle=True, drop_last=True, generator=order)
    while True:
        yield from loader


def learner(root: Path, seed: int) -> tuple[Any, Any, Any]:
    """A small ACT, and what normalises for it and back by the dataset's statistics."""
    import torch
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = ACTConfig(
        input_features={STATE: PolicyFeature(FeatureType.STATE, (3,)), GOAL: PolicyFeature(FeatureType.ENV, (3,))},
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (1,))},
        chunk_size=CHUNK, n_action_steps=PLAYED, use_vae=False, dim_model=64, n_heads=2, dim_feedforward=128,
        n_encoder_layers=2, dropout=0.0, device="cpu",
    )  # fmt: skip
    stats = LeRobotDatasetMetadata("treadle/pendulum", root=root).stats
    return ACTPolicy(config), *make_pre_post_processors(config, None, dataset_stats=stats)


def train(seed: int, updates: int, episodes: int, folder: Path) -> dict[str, Any]:
    """One run: mean returns of 16 episodes, the controller's, ACT's before it learns and after each fifth of the
    updates."""
    import torch

    from treadle.record.lerobot import export_lerobot

    treadle.collect_dataset(
        partial(pendulum, 8.0), controller, out=folder / "run", episodes=episodes, max_episode_steps=SWING, seed=seed,
        progress=False,
    )  # fmt: skip
    export_lerobot(folder / "run", folder / "lerobot", fps=FPS, task="swing up and stand")
    policy, before, after = learner(folder / "lerobot", seed)
    optim = torch.optim.Adam(policy.parameters(), lr=1e-3)
    slower = torch.optim.lr_scheduler.LinearLR(optim, 1.0, 0.01, total_iters=updates)

    def tried(who: Any, **options: Any) -> float:
        return round(float(treadle.evaluate(pendulum, who, 16, seed=1000, progress=False, **options).mean), 1)

    def asked() -> float:
        found = tried(
            Chunks(policy, before, after),
            inference=treadle.Inference(where="caller", n_action_steps=PLAYED),
            num_envs=8,
        )
        policy.train()
        return found

    run = {"seed": seed, "updates": [0], "controller": tried(controller), "returns": [asked()]}
    for number, batch in enumerate(islice(batches(folder / "lerobot", 64, seed), updates), 1):
        batch[ACTION] = batch[ACTION][..., None]  # LeRobot's datasets have no axis for a single number
        loss, _ = policy.forward(before(batch))
        optim.zero_grad()
        loss.backward()
        optim.step()
        slower.step()
        if number % -(-updates // 5) == 0 or number == updates:
            run["updates"].append(number)
            run["returns"].append(asked())
            print(f"seed {seed}: {number} updates, loss {loss.item():.3f}, mean return {run['returns'][-1]:.0f}")
    return run


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--updates", type=int, default=2500)
    parser.add_argument("--episodes", type=int, default=200, help="of the controller's")
    parser.add_argument("--save", type=Path, help="a JSON file for the curve")
    options = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    with tempfile.TemporaryDirectory() as folder:
        run = train(options.seed, options.updates, options.episodes, Path(folder))
    print(
        f"the controller {run['controller']:.0f}, ACT {run['returns'][0]:.0f} before and {run['returns'][-1]:.0f} after"
    )
    if options.save:
        options.save.write_text(json.dumps([run]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
