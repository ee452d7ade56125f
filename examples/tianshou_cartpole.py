"""Tianshou's PPO, its collectors and its trainer on Treadle's vector: it learns CartPole.

    python examples/tianshou_cartpole.py
    python examples/tianshou_cartpole.py --seeds 1 2 3 --save curves.json

The vectors are `treadle.tianshou.VectorEnv` where Tianshou's own examples have `SubprocVectorEnv`; all else is theirs.

Needs tianshou (`pip install 'treadle[tianshou]'`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

from treadle.tianshou import VectorEnv  # was: from tianshou.env import SubprocVectorEnv

ENVS, STEPS, EPOCH = 8, 256, 5_000  # steps of a collection; of an epoch, after which 10 episodes are played to test


def cartpole() -> gym.Env:
    return gym.make("CartPole-v1")


def train(seed: int, steps: int) -> dict[str, Any]:
    """One run: the mean return of ten test episodes after each epoch, the first before anything is learned."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    training, test = VectorEnv([cartpole] * ENVS), VectorEnv([cartpole] * 10)
    training.seed(seed)
    test.seed(1000 + seed)
    nets = [Net(state_shape=(4,), hidden_sizes=[64, 64], activation=torch.nn.Tanh) for _ in range(2)]
    actor = DiscreteActor(preprocess_net=nets[0], action_shape=2, softmax_output=False)
    critic = DiscreteCritic(preprocess_net=nets[1])
    policy = DiscreteActorPolicy(actor=actor, action_space=gym.spaces.Discrete(2), deterministic_eval=True)
    optim = AdamOptimizerFactory(lr=1e-3)
    algorithm = PPO(policy=policy, critic=critic, optim=optim, ent_coef=0.0, gamma=0.98, gae_lambda=0.8)
    returns: list[float] = []

    def note(stats: CollectStats) -> float:
        assert stats.returns_stat is not None
        returns.append(float(stats.returns_stat.mean))
        return returns[-1]

    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=Collector(algorithm, training, VectorReplayBuffer(STEPS, ENVS)),
            test_collector=Collector(algorithm, test),
            max_epochs=max(1, steps // EPOCH),
            epoch_num_steps=EPOCH,
            collection_step_num_env_steps=STEPS,
            update_step_num_repetitions=10,
            batch_size=64,
            test_step_num_episodes=10,
            compute_score_fn=note,
            verbose=False,
            show_progress=False,
        )
    )
    training.close()
    test.close()
    print(f"seed {seed}: mean return {returns[0]:.1f} at first, {returns[-1]:.1f} at last", flush=True)
    return {"seed": seed, "returns": returns}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: this process's own)."""
    parser = argparse.ArgumentParser(description="Tianshou's PPO on CartPole, on Treadle's vector.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps, all eight environments together")
    parser.add_argument("--save", type=Path, help="write the curves to this JSON file")
    args = parser.parse_args(argv)
    runs = [train(seed, args.steps) for seed in args.seeds]
    if args.save is not None:
        args.save.write_text(json.dumps(runs) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
