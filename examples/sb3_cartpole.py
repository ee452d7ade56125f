"""Stable-Baselines3's PPO learns CartPole on Treadle's vector: one import differs from a script for SB3's own.

    python examples/sb3_cartpole.py
    python examples/sb3_cartpole.py --seeds 1 2 3 --plot sb3.png

Needs stable-baselines3 (`pip install 'treadle[sb3]'`); matplotlib for `--plot`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy

from treadle.sb3 import make_vec_env


class Curve(BaseCallback):
    """Keeps the mean return of the last 100 episodes after each rollout, as SB3 prints it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.means: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        if returns:
            self.steps.append(self.num_timesteps)
            self.means.append(sum(returns) / len(returns))


def train(seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One run: the curve, and the mean return of 20 episodes with the policy's best actions."""
    torch.set_num_threads(1)
    envs = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
    )
    curve, start = Curve(), perf_counter()
    model.learn(args.steps, callback=curve)
    seconds = perf_counter() - start
    final, _ = evaluate_policy(model, envs, n_eval_episodes=20)
    envs.close()
    print(
        f"seed {seed}: mean return {final:.1f} in 20 episodes after {args.steps:,} steps in {seconds:.0f} s", flush=True
    )
    return {"seed": seed, "at_step": curve.steps, "returns": curve.means, "evaluation": float(final)}


def plot(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """A line for each run: the mean return of the last 100 episodes against steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=100)
    for run in runs:
        axes.plot(run["at_step"], run["returns"], label=f"seed {run['seed']}", linewidth=1)
    axes.axhline(475, color="gray", linestyle=":", linewidth=1)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("mean return of the last 100 episodes")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: this process's own)."""
    parser = argparse.ArgumentParser(description="SB3's PPO on CartPole, on Treadle's vector.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps, all eight environments together")
    parser.add_argument("--save", type=Path, help="write the curves to this JSON file")
    parser.add_argument("--plot", type=Path, help="draw them into this PNG file")
    args = parser.parse_args(argv)
    runs = [train(seed, args) for seed in args.seeds]
    if args.save is not None:
        args.save.write_text(json.dumps(runs) + "\n", encoding="utf-8")
    if args.plot is not None:
        plot(runs, args.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
