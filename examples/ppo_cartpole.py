"""PPO learns CartPole: one file, written for Gymnasium's AsyncVectorEnv. With one import changed it runs on Treadle.

    python examples/ppo_cartpole.py --vector gymnasium
    python examples/ppo_cartpole.py --vector treadle
    python examples/ppo_cartpole.py --vector treadle --infos legacy

`make_vector` has the import that differs; nothing else knows which vector it steps. The same seed gives the same
learning curve on all three: the last column that is printed is a hash of all returns, to compare.

The algorithm is proximal policy optimization with a clipped objective (Schulman et al. 2017, arXiv:1707.06347) and
generalized advantage estimation (Schulman et al. 2015, arXiv:1506.02438). An episode can end in two ways:

- *terminated*: the pole fell, and the state that was reached is worth nothing: no value follows.
- *truncated*: the clock ran out at 500 steps. The state is as good as it looks, so its value follows the reward.

Either way the vector has already reset the slot (autoreset mode SAME_STEP) and the row of the batch shows the next
episode's first observation. What the last action really led to is in the infos: see `true_next_obs`.

Needs torch and gymnasium, and treadle for `--vector treadle`. Everything runs on the CPU, torch on one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn
from torch.distributions import Categorical

LAST = 20  # a run is judged by the mean return of so many last episodes
SOLVED = 475.0  # CartPole-v1's reward threshold


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; None: this process's own."""
    parser = argparse.ArgumentParser(description="PPO on CartPole, on Gymnasium's vector or on Treadle's.")
    add = parser.add_argument
    add("--vector", choices=("gymnasium", "treadle"), default="treadle", help="whose vector steps the environments")
    add("--infos", choices=("gymnasium", "legacy"), default="gymnasium", help="legacy: the names of Gymnasium 0.29")
    add("--env", default="CartPole-v1", help="an id with a Box of one dimension and Discrete actions")
    add("--seeds", type=int, nargs="+", default=[1], help="one run for each, one after the other")
    add("--save", type=Path, help="write all runs to this JSON file: returns, and where the time went")
    add("--plot", type=Path, help="draw the learning curves into this SVG file")
    add("--total-steps", type=int, default=100_000, help="steps of all environments together")
    add("--num-envs", type=int, default=8)
    add("--num-steps", type=int, default=32, help="steps of each environment between two updates")
    add("--epochs", type=int, default=20, help="passes over a rollout at each update")
    add("--minibatches", type=int, default=1, help="parts that each pass divides the rollout into")
    add("--learning-rate", type=float, default=1e-3, help="at the start; it falls linearly to 0")
    add("--gamma", type=float, default=0.98, help="discount")
    add("--gae-lambda", type=float, default=0.8)
    add("--clip", type=float, default=0.2, help="how far the ratio of new to old probability may move from 1")
    add("--entropy-weight", type=float, default=0.0)
    add("--value-weight", type=float, default=0.5)
    add("--max-grad-norm", type=float, default=0.5)
    args = parser.parse_args(argv)
    if args.infos == "legacy" and args.vector != "treadle":
        parser.error("--infos legacy needs --vector treadle: Gymnasium has dropped those names")
    if args.num_steps * args.num_envs % args.minibatches:
        parser.error("--minibatches must divide --num-steps times --num-envs")
    if args.total_steps < args.num_steps * args.num_envs:
        parser.error("--total-steps is less than one rollout, --num-steps times --num-envs")
    return args


# --- the vector -------------------------------------------------------------------------------------------------------


def make_env(env_id: str) -> Callable[[], gym.Env]:
    """What builds one environment, in a worker. Its wrapper puts each episode's return into the last step's info."""
    return lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))


def make_vector(args: argparse.Namespace) -> gym.vector.VectorEnv:
    """`--num-envs` environments. This is all that changes from one library to the other."""
    env_fns = [make_env(args.env) for _ in range(args.num_envs)]
    if args.infos == "legacy":
        from treadle import VectorEnv

        return VectorEnv(env_fns, infos="legacy")

    if args.vector == "treadle":
        from treadle import AsyncVectorEnv
    else:
        from gymnasium.vector import AsyncVectorEnv

    return AsyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)


def true_next_obs(next_obs: np.ndarray, infos: dict[str, Any]) -> np.ndarray:
    """What each action led to, float32[n, *shape]: the terminal observation where an episode has just ended."""
    key = "final_observation" if "final_observation" in infos else "final_obs"  # Gymnasium 0.29 and since 1.1
    if key not in infos:
        return next_obs
    real_next_obs = next_obs.copy()
    for slot, ended in enumerate(infos[f"_{key}"]):
        if ended:
            real_next_obs[slot] = infos[key][slot]
    return real_next_obs


def finished_returns(infos: dict[str, Any]) -> list[float]:
    """The returns of the episodes that ended in this step, in slot order."""
    if "final_info" not in infos:
        return []
    finals = infos["final_info"]
    if isinstance(finals, dict):  # Gymnasium since 1.0: columns, and a mask that tells which slots ended
        return [float(r) for r, ended in zip(finals["episode"]["r"], finals["_episode"], strict=True) if ended]
    return [float(info["episode"]["r"]) for info in finals if info is not None]  # 0.29: one dict or None a slot


# --- the agent --------------------------------------------------------------------------------------------------------


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights, scaled by `gain`, and no bias to begin with."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def network(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    """Two hidden layers of 64."""
    wide = 2**0.5
    return nn.Sequential(
        layer(inputs, 64, wide), nn.Tanh(), layer(64, 64, wide), nn.Tanh(), layer(64, outputs, last_gain)
    )


class Agent(nn.Module):
    """A policy and a value function that share nothing."""

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        observations, actions = envs.single_observation_space, envs.single_action_space
        if not isinstance(observations, gym.spaces.Box) or len(observations.shape) != 1:
            raise SystemExit(f"this example reads observations that are vectors, not {observations}")
        if not isinstance(actions, gym.spaces.Discrete) or actions.start != 0:
            raise SystemExit(f"this example chooses among actions 0 to n - 1, not {actions}")
        # A last policy layer close to 0 makes all actions about equally likely at first.
        self.actor = network(observations.shape[0], int(actions.n), 0.01)
        self.critic = network(observations.shape[0], 1, 1.0)

    def policy(self, obs: Tensor) -> Categorical:
        """The distribution over actions for each row of observations, float32[..., d]."""
        return Categorical(logits=self.actor(obs))

    def value(self, obs: Tensor) -> Tensor:
        """The expected discounted return from each row of observations on: float32[...]."""
        return self.critic(obs).squeeze(-1)


# --- the algorithm ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rollout:
    """T steps of n environments, all tensors time-major: [T, n, ...]."""

    obs: Tensor
    next_obs: Tensor  # what the action led to, terminal observations included: not the next row of `obs`
    actions: Tensor
    logprobs: Tensor
    rewards: Tensor
    terminated: Tensor
    ended: Tensor  # terminated or truncated

    @classmethod
    def empty(cls, steps: int, envs: gym.vector.VectorEnv) -> Rollout:
        """To be written into, and used again after each update."""
        n = envs.num_envs
        obs = torch.zeros((steps, n, gym.spaces.flatdim(envs.single_observation_space)))
        flags = torch.zeros((steps, n), dtype=torch.bool)
        actions = torch.zeros((steps, n), dtype=torch.int64)
        numbers = torch.zeros((steps, n))
        return cls(obs, obs.clone(), actions, numbers, numbers.clone(), flags, flags.clone())


def advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, gamma: float, lam: float
) -> Tensor:
    """Generalized advantage estimates, float32[T, n], from tensors [T, n].

    `next_values` are the values of what the actions led to. They count unless the episode terminated there: a
    truncated episode would have gone on. The sum over later steps stops at either end, for what follows in the
    rollout is another episode.
    """
    errors = rewards + gamma * next_values * ~terminated - values
    carry = gamma * lam * ~ended
    out = torch.zeros_like(rewards)
    later = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        later = errors[t] + carry[t] * later
        out[t] = later
    return out


def update(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, args: argparse.Namespace) -> None:
    """`--epochs` passes over one rollout."""
    with torch.no_grad():
        values, next_values = agent.value(rollout.obs), agent.value(rollout.next_obs)
        gains = advantages(
            rollout.rewards, values, next_values, rollout.terminated, rollout.ended, args.gamma, args.gae_lambda
        )
        targets = (gains + values).flatten()
    obs, actions = rollout.obs.flatten(0, 1), rollout.actions.flatten()
    old_logprobs, gains = rollout.logprobs.flatten(), gains.flatten()
    for _ in range(args.epochs):
        for rows in torch.randperm(len(obs)).chunk(args.minibatches):
            policy = agent.policy(obs[rows])
            ratio = (policy.log_prob(actions[rows]) - old_logprobs[rows]).exp()
            gain = gains[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            # The smaller of the two: nothing is gained by moving the ratio beyond the clip, and errors still count.
            clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
            policy_loss = -torch.minimum(gain * ratio, gain * clipped).mean()
            value_loss = (agent.value(obs[rows]) - targets[rows]).square().mean()
            loss = policy_loss + args.value_weight * value_loss - args.entropy_weight * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


@dataclass
class Run:
    """One training run: its episodes in the order in which they ended, and where the time went (seconds)."""

    seed: int
    at_step: list[int] = field(default_factory=list)  # steps of all environments when the episode ended
    returns: list[float] = field(default_factory=list)
    starting: float = 0.0  # building the vector, the first reset
    acting: float = 0.0  # from an observation to actions
    stepping: float = 0.0  # inside envs.step
    learning: float = 0.0  # in `update`
    total: float = 0.0

    @property
    def last_mean(self) -> float:
        """The mean return of the last episodes; nan where fewer than `LAST` ended."""
        return float(np.mean(self.returns[-LAST:])) if len(self.returns) >= LAST else float("nan")

    @property
    def digest(self) -> str:
        """A hash of all returns and of when they came, byte for byte."""
        data = np.array(self.returns).tobytes() + np.array(self.at_step, np.int64).tobytes()
        return hashlib.sha256(data).hexdigest()[:16]

    def __str__(self) -> str:
        shares = {name: f"{getattr(self, name) / self.total:.0%}" for name in ("stepping", "acting", "learning")}
        return (
            f"seed {self.seed}  last {LAST} episodes: mean {self.last_mean:6.2f}  {self.total:5.1f} s ("
            + ", ".join(f"{name} {share}" for name, share in shares.items())
            + f")  {len(self.returns)} episodes  {self.digest}"
        )


def train(args: argparse.Namespace, seed: int) -> Run:
    """One run. It seeds torch's generator and sets torch to one thread, on which equal work gives equal bytes."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    run, began = Run(seed), perf_counter()
    envs = make_vector(args)
    try:
        agent = Agent(envs)
        optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
        rollout = Rollout.empty(args.num_steps, envs)
        obs, _ = envs.reset(seed=seed)
        run.starting = perf_counter() - began
        updates = args.total_steps // (args.num_steps * args.num_envs)
        for count in range(updates):
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - count / updates)
            for t in range(args.num_steps):
                before = perf_counter()
                with torch.no_grad():
                    rollout.obs[t] = torch.from_numpy(obs)
                    policy = agent.policy(rollout.obs[t])
                    rollout.actions[t] = actions = policy.sample()
                    rollout.logprobs[t] = policy.log_prob(actions)
                ready = perf_counter()
                obs, rewards, terminated, truncated, infos = envs.step(actions.numpy())
                stepped = perf_counter()
                run.acting += ready - before
                run.stepping += stepped - ready
                rollout.next_obs[t] = torch.from_numpy(true_next_obs(obs, infos))
                rollout.rewards[t] = torch.from_numpy(rewards)
                rollout.terminated[t] = torch.from_numpy(terminated)
                rollout.ended[t] = torch.from_numpy(terminated | truncated)
                for finished in finished_returns(infos):
                    run.returns.append(finished)
                    run.at_step.append((count * args.num_steps + t + 1) * args.num_envs)
            before = perf_counter()
            update(agent, optimizer, rollout, args)
            run.learning += perf_counter() - before
    finally:
        envs.close()
    run.total = perf_counter() - began
    return run


# --- the picture ------------------------------------------------------------------------------------------------------


def draw(runs: Sequence[Run], total_steps: int, title: str) -> str:
    """An SVG of the learning curves: at each moment the mean return of the last 20 episodes, one line a run."""
    left, top, width, height = 60, 40, 560, 260
    ceiling = max([500.0, *(value for run in runs for value in run.returns)])
    colours = ("#1b6ca8", "#d1495b", "#3a7d44", "#8e6c8a", "#c98b1b")

    def place(step: float, value: float) -> tuple[float, float]:
        return round(left + width * step / total_steps, 1), round(top + height * (1 - value / ceiling), 1)

    def text(x: float, y: float, words: str, anchor: str = "middle", colour: str = "#333") -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
        return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>'

    parts = [text(left + width / 2, 22, title)]
    for value in range(0, int(ceiling) + 1, 100):
        x, y = place(0, value)
        parts += [line(x, y, left + width, y, 'stroke="#e4e4e4"'), text(x - 8, y + 4, str(value), "end")]
    for part in range(6):
        x, y = place(total_steps * part / 5, 0)
        parts.append(text(x, y + 20, f"{total_steps * part / 5:,.0f}"))
    caption = f"environment steps (mean return of the last {LAST} episodes)"
    parts.append(text(left + width / 2, top + height + 42, caption))
    x, y = place(0, SOLVED)
    parts += [
        line(x, y, left + width, y, 'stroke="#888" stroke-dasharray="5 4"'),
        text(x + 6, y - 5, f"{SOLVED:.0f}", "start", "#888"),
    ]
    for number, run in enumerate(runs):
        colour = colours[number % len(colours)]
        means = [np.mean(run.returns[max(0, i + 1 - LAST) : i + 1]) for i in range(len(run.returns))]
        points = [place(step, float(mean)) for step, mean in zip(run.at_step, means, strict=True)]
        path = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts.append(text(left + width + 10, top + 14 + 18 * number, f"seed {run.seed}", "start", colour))
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 360" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="700" height="360" fill="white"/>', *parts, "</svg>", ""])


def main(argv: Sequence[str] | None = None) -> list[Run]:
    """Train once for each seed; print a line for each."""
    args = parse_args(argv)
    runs = []
    for seed in args.seeds:
        runs.append(train(args, seed))
        print(runs[-1], flush=True)
    if args.save is not None:
        args.save.write_text(json.dumps([{**asdict(run), "digest": run.digest} for run in runs]))
    if args.plot is not None:
        args.plot.write_text(draw(runs, args.total_steps, f"PPO on {args.env}, {args.num_envs} environments"))
    return runs


if __name__ == "__main__":
    main()
