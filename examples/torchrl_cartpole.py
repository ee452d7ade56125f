"""A TorchRL collector loop on Treadle's vector: PPO learns CartPole.

    python examples/torchrl_cartpole.py
    python examples/torchrl_cartpole.py --seeds 1 2 3 --plot torchrl.png

TorchRL's `GymWrapper` takes the vector as it is. DISABLED suits it best: TorchRL resets what has ended by itself, and
tells the vector which by a mask. (In SAME_STEP mode it resets once more what has begun already.)

Needs torchrl (`pip install 'treadle[torchrl]'`); matplotlib for `--plot`.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, RewardSum, TransformedEnv
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import treadle

FRAMES, EPOCHS = 256, 20


def network(outputs: int) -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def train(seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One run: the mean return of the last 100 episodes after each batch of the collector."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    vector = treadle.make_vec("CartPole-v1", num_envs=8, autoreset_mode="Disabled")
    env = TransformedEnv(GymWrapper(vector, categorical_action_encoding=True), RewardSum())
    env.set_seed(seed)
    logits = TensorDictModule(network(2), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)
    critic = ValueOperator(network(1), in_keys=["observation"])
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.0, critic_coeff=0.5)
    advantages = GAE(gamma=0.98, lmbda=0.8, value_network=critic, average_gae=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    rounds = max(1, args.steps // FRAMES)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, rounds)
    collector = Collector(env, actor, frames_per_batch=FRAMES, total_frames=rounds * FRAMES)
    returns: deque[float] = deque(maxlen=100)
    means, steps, played, start = [], [], 0, perf_counter()
    for batch in collector:
        with torch.no_grad():
            advantages(batch)
        rows = batch.reshape(-1)
        for _ in range(EPOCHS):
            losses = loss(rows)
            total = sum(value for name, value in losses.items() if name.startswith("loss_"))
            optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
            optimizer.step()
        schedule.step()
        played += FRAMES
        returns.extend(batch["next", "episode_reward"][batch["next", "done"]].tolist())
        if returns:
            means.append(sum(returns) / len(returns))
            steps.append(played)
    collector.shutdown()
    seconds = perf_counter() - start
    print(f"seed {seed}: mean return {means[-1]:.1f} of the last {len(returns)} episodes, {seconds:.0f} s", flush=True)
    return {"seed": seed, "at_step": steps, "returns": means}


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
    parser = argparse.ArgumentParser(description="PPO by a TorchRL collector loop, on Treadle's vector.")
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
