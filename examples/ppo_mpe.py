"""PPO on a team: three agents learn to cover three landmarks, each a row of one vector, all with one policy.

    python examples/ppo_mpe.py
    python examples/ppo_mpe.py --seeds 1 2 3 --plot curve.svg

The task is `simple_spread` of MPE (Lowe et al. 2017, arXiv:1706.02275): rewards say how far the landmarks are from the
nearest agent, and punish collisions. Every agent of every environment is a row, as if there were n x agents
environments of one agent: the script is CleanRL's kind of PPO, and knows nothing of teams.

What it takes from the rows: a `rollout` of T steps with what every action led to (`next_obs`), which rows are
transitions (`valid`: where agents end at different times, not all are), and the return of each agent in the infos.

Needs torch, mpe2 and treadle. Everything runs on the CPU, torch on one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from mpe2 import simple_spread_v3
from torch import Tensor, nn
from torch.distributions import Categorical

from treadle import pettingzoo

GAMMA, LAMBDA, CLIP, EPOCHS, MINIBATCHES, ENTROPY = 0.95, 0.95, 0.2, 8, 4, 0.01
LAST = 300  # returns that a run is judged by


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; None: this process's own."""
    parser = argparse.ArgumentParser(description="PPO on MPE's simple_spread, an agent a row.")
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[1], help="one run for each, one after the other")
    add("--total-steps", type=int, default=600_000, help="actions of all agents together")
    add("--num-envs", type=int, default=16)
    add("--num-steps", type=int, default=100, help="steps of each environment between two updates")
    add("--learning-rate", type=float, default=1e-3, help="at the start; it falls linearly to 0")
    add("--plot", type=Path, help="draw the learning curves into this SVG file")
    return parser.parse_args(argv)


def network(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    """Two hidden layers of 64, with orthogonal weights."""
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def advantages(rewards: Tensor, values: Tensor, after: Tensor, terminated: Tensor, ended: Tensor) -> Tensor:
    """Generalized advantage estimates [T, rows]; `after` are the values of what the actions led to."""
    errors = rewards + GAMMA * after * ~terminated - values
    out, later = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        out[t] = later = errors[t] + GAMMA * LAMBDA * ~ended[t] * later
    return out


def train(args: argparse.Namespace, seed: int) -> list[tuple[int, float]]:
    """One run: (actions so far, an agent's return) of every episode of every agent, as they ended."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    envs = pettingzoo.make_vec(
        simple_spread_v3.parallel_env, args.num_envs, form="rows", autoreset_mode="SameStep", workers="auto"
    )
    inputs, actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    actor, critic = network(inputs, actions, 0.01), network(inputs, 1, 1.0)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=args.learning_rate, eps=1e-5)

    def act(observations: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return Categorical(logits=actor(torch.from_numpy(observations))).sample().numpy()

    returns: list[tuple[int, float]] = []
    per_update = args.num_steps * envs.num_envs
    updates = args.total_steps // per_update
    try:
        envs.reset(seed=seed)
        for count in range(updates):
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - count / updates)
            rollout = envs.rollout(act, steps=args.num_steps)
            for t, infos in enumerate(rollout.infos):
                told = infos.get("final_info", {})
                if "episode" in told:
                    step = count * per_update + (t + 1) * envs.num_envs
                    returns += [(step, float(each)) for each in told["episode"]["r"][told["_episode"]]]
            obs, next_obs = torch.from_numpy(rollout.observations), torch.from_numpy(rollout.next_obs)
            done, rewards = torch.from_numpy(rollout.actions), torch.from_numpy(rollout.rewards).float()
            terminated, valid = torch.from_numpy(rollout.terminated), torch.from_numpy(rollout.valid)
            ended = terminated | torch.from_numpy(rollout.truncated)
            with torch.no_grad():
                values, after = critic(obs).squeeze(-1), critic(next_obs).squeeze(-1)
                old = Categorical(logits=actor(obs)).log_prob(done)[valid]
                gains = advantages(rewards, values, after, terminated, ended)
                targets = (gains + values)[valid]
            obs, done, gains = obs[valid], done[valid], gains[valid]
            for _ in range(EPOCHS):
                for rows in torch.randperm(len(obs)).chunk(MINIBATCHES):
                    policy = Categorical(logits=actor(obs[rows]))
                    ratio = (policy.log_prob(done[rows]) - old[rows]).exp()
                    gain = (gains[rows] - gains[rows].mean()) / (gains[rows].std() + 1e-8)
                    objective = torch.minimum(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                    error = (critic(obs[rows]).squeeze(-1) - targets[rows]).square().mean()
                    loss = 0.5 * error - objective - ENTROPY * policy.entropy().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
                    optimizer.step()
    finally:
        envs.close()
    return returns


def draw(runs: Sequence[list[tuple[int, float]]], seeds: Sequence[int], total: int) -> str:
    """An SVG of the learning curves: the mean return of an agent's last `LAST` episodes."""
    curves = []
    for run in runs:
        values = np.array([value for _, value in run])
        means = np.convolve(values, np.ones(LAST) / LAST, "valid")
        picked = np.linspace(0, len(means) - 1, 200).astype(int)
        curves.append([(run[i + LAST - 1][0], float(means[i])) for i in picked])
    low = min(value for curve in curves for _, value in curve)
    high = max(value for curve in curves for _, value in curve)

    def place(step: float, value: float) -> str:
        return f"{60 + 560 * step / total:.1f},{300 - 250 * (value - low) / (high - low):.1f}"

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 360" font-family="sans-serif" font-size="12">']
    parts.append('<rect width="700" height="360" fill="white"/>')
    for value in (low, high):
        y = place(0, value).split(",")[1]
        parts.append(f'<line x1="60" x2="620" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="52" y="{y}" text-anchor="end">{value:.0f}</text>')
    colours = ("#1b6ca8", "#d1495b", "#3a7d44", "#8e6c8a", "#c98b1b")
    for number, (curve, seed) in enumerate(zip(curves, seeds, strict=True)):
        points, colour = " ".join(place(*point) for point in curve), colours[number % len(colours)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts.append(f'<text x="628" y="{60 + 18 * number}" fill="{colour}">seed {seed}</text>')
    caption = f"actions of all agents, 0 to {total:,} (mean return of an agent's last {LAST} episodes)"
    parts.append(f'<text x="340" y="340" text-anchor="middle">{caption}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(argv: Sequence[str] | None = None) -> list[list[tuple[int, float]]]:
    """Train once for each seed; print a line for each."""
    args = parse_args(argv)
    runs = []
    for seed in args.seeds:
        began = perf_counter()
        runs.append(train(args, seed))
        values = [value for _, value in runs[-1]]
        first, last = np.mean(values[:LAST]), np.mean(values[-LAST:])
        print(
            f"seed {seed}  {first:.1f} -> {last:.1f}  {len(values)} episodes  {perf_counter() - began:.0f} s",
            flush=True,
        )
    if args.plot is not None:
        args.plot.write_text(draw(runs, args.seeds, args.total_steps))
    return runs


if __name__ == "__main__":
    main()
