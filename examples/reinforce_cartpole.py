"""REINFORCE learns CartPole: one file, on Treadle's MultiprocessingSampler, or on RaySampler over several nodes.

    python examples/reinforce_cartpole.py
    python examples/reinforce_cartpole.py --nodes 2 --lose-one
    python examples/reinforce_cartpole.py --seeds 1 2 3 --plot reinforce.png

Each iteration sends the policy's parameters to the workers (once, through shared memory), which play whole episodes
with them; then the caller takes one gradient step. The algorithm is the score function estimator with the return to
come as the weight (Williams 1992, doi:10.1007/BF00992696), less a value function's guess, scaled to unit variance.

With `ordered=True` an episode counts because of its index and not because it was ready first, so the same
seed gives the same curve for any number of workers, and short episodes are not over-represented.

With `--nodes N` a Ray cluster of N nodes is started on this machine, and the workers are on them; with `--lose-one` the
processes of one node are killed a third of the way through. The curve is the same: its episodes are made again.

Needs torch and gymnasium; Ray for `--nodes`; matplotlib for `--plot`. Everything runs on the CPU, torch on one thread.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import treadle

LAST = 10  # a run is judged by the mean return of so many last iterations


class Policy(nn.Module):
    """An agent: `get_action` plays, `get_param_values` and `set_param_values` carry what was learned to the workers."""

    def __init__(self, inputs: int, actions: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, actions))

    def distribution(self, observations: Tensor) -> Categorical:
        """Of actions [T], for observations float32[T, inputs]."""
        return Categorical(logits=self.net(observations))

    def reset(self, do_resets: Sequence[bool] | None = None) -> None:
        """It remembers nothing."""

    @torch.no_grad()
    def get_action(self, observation: np.ndarray) -> tuple[int, dict[str, Any]]:
        """A draw for one observation; the worker's own torch generator is behind it."""
        return int(self.distribution(torch.from_numpy(observation)).sample()), {}

    def get_param_values(self) -> dict[str, np.ndarray]:
        return {name: values.detach().numpy().copy() for name, values in self.state_dict().items()}

    def set_param_values(self, values: dict[str, np.ndarray]) -> None:
        self.load_state_dict({name: torch.tensor(value) for name, value in values.items()})


def returns_to_come(batch: treadle.EpisodeBatch, gamma: float) -> Tensor:
    """float32[T]: the discounted sum of each step's reward and those after it in its episode."""
    found = []
    for episode in batch.split():
        total, reverse = 0.0, []
        for reward in episode.rewards[::-1]:
            total = reward + gamma * total
            reverse.append(total)
        found += reverse[::-1]
    return torch.tensor(found, dtype=torch.float32)


@contextmanager
def cluster_of(nodes: int) -> Iterator[Callable[[], None]]:
    """A Ray cluster on this machine, to which this process is connected; gives what loses one of its nodes."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    others = [cluster.add_node(num_cpus=1) for _ in range(nodes - 1)]
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    try:
        yield lambda: cluster.remove_node(others.pop(), allow_graceful=False)
    finally:
        ray.shutdown()
        cluster.shutdown()


def train(seed: int, args: argparse.Namespace, lose: Callable[[], None] | None = None) -> dict[str, Any]:
    """One run: the mean return of each iteration, and how many steps were played by then."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    env = gym.make(args.env)
    inputs, actions = env.observation_space.shape[0], env.action_space.n  # type: ignore[index, attr-defined]
    policy, value = Policy(inputs, actions), nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=args.learning_rate)
    means, steps = [], []
    start = perf_counter()
    sampler_class = treadle.MultiprocessingSampler if args.nodes is None else treadle.RaySampler
    with sampler_class(
        policy,
        env,
        max_episode_length=env.spec.max_episode_steps,  # type: ignore[union-attr, arg-type]
        seed=seed,
        n_workers=args.workers,
        ordered=True,
        on_failure="restart",
        progress=False,
    ) as sampler:
        for iteration in range(args.iterations):
            if lose is not None and iteration == args.iterations // 3:
                lose()
            batch = sampler.obtain_samples(iteration, args.steps, policy.get_param_values())
            observations = torch.from_numpy(batch.observations)
            weights = returns_to_come(batch, args.gamma)
            guesses = value(observations).squeeze(-1)
            advantages = weights - guesses.detach()
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            log_probs = policy.distribution(observations).log_prob(torch.from_numpy(batch.actions))
            loss = -(log_probs * advantages).mean() + 0.5 * nn.functional.mse_loss(guesses, weights) / 100
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            means.append(float(np.mean([episode.rewards.sum() for episode in batch.split()])))
            steps.append(sampler.total_env_steps)
        final = sampler.evaluate(20, policy.get_param_values(), seed=seed)
    print(
        f"seed {seed}: mean return {np.mean(means[-LAST:]):.1f} over the last {LAST} iterations, "
        f"{final.mean:.1f} in an evaluation of 20 episodes; {steps[-1]:,} steps in {perf_counter() - start:.0f} s",
        flush=True,
    )
    return {"seed": seed, "returns": means, "at_step": steps, "evaluation": final.mean}


def plot(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """A line for each run: mean return of an iteration against steps played."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=100)
    for run in runs:
        axes.plot(run["at_step"], run["returns"], label=f"seed {run['seed']}", linewidth=1)
    axes.axhline(195, color="gray", linestyle=":", linewidth=1)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("mean return of an iteration's episodes")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: this process's own)."""
    parser = argparse.ArgumentParser(description="REINFORCE on CartPole, on Treadle's MultiprocessingSampler.")
    add = parser.add_argument
    add("--env", default="CartPole-v1", help="an id with a Box of one dimension and Discrete actions")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3])
    add("--iterations", type=int, default=60, help="gradient steps")
    add("--steps", type=int, default=2000, help="environment steps of an iteration, at least")
    add("--workers", type=int, default=2, help="processes; the curve does not depend on it")
    add("--nodes", type=int, help="have them on so many nodes of a Ray cluster, which is started here")
    add("--lose-one", action="store_true", help="with --nodes: kill one of them on the way")
    add("--learning-rate", type=float, default=1e-2)
    add("--gamma", type=float, default=0.99)
    add("--save", type=Path, help="write the curves to this JSON file")
    add("--plot", type=Path, help="draw them into this PNG file")
    args = parser.parse_args(argv)
    if args.nodes is None:
        runs = [train(seed, args) for seed in args.seeds]
    else:
        with cluster_of(args.nodes) as lose:
            runs = [train(seed, args, lose if args.lose_one and not at else None) for at, seed in enumerate(args.seeds)]
    if args.save is not None:
        args.save.write_text(json.dumps(runs) + "\n", encoding="utf-8")
    if args.plot is not None:
        plot(runs, args.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
