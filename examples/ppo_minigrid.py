"""PPO learns MiniGrid tasks: a curriculum to train on, a finite test set to be judged by, one vector for each.

    python examples/ppo_minigrid.py
    python examples/ppo_minigrid.py --seeds 1 2 3 --plot curves.png
    python examples/ppo_minigrid.py --goal doorkey

What it shows of `treadle.VectorSampledTasks`:

- *tasks and sensors*: `GridTask` is one episode of a MiniGrid environment, seen through `Egocentric`, a sensor with
  what the agent has in view. Its `metrics` come with the info of the step that ends it.
- *a curriculum*: `Curriculum` samples tasks without end. Where the last ones went well it moves on to the next harder
  environment. It lives in a worker and sees the tasks that it has handed out; nothing else needs to know of it.
- *paused slots*: `TestSet` is finite, and no two slots have the same number of tasks. A slot whose sampler is exhausted
  shows None as observation and is paused, so that the others go on in ever smaller batches. Then `resume_all`,
  `set_seeds`, `reset_all`: the same tasks again for the next evaluation.
- *final observations*: a task that was cut by its limit of steps would have gone on, so the value of where it stopped
  counts; the row of the batch shows the next task already.

The algorithm is proximal policy optimization with a clipped objective (Schulman et al. 2017, arXiv:1707.06347) and
generalized advantage estimation (Schulman et al. 2015, arXiv:1506.02438). Needs torch and minigrid; matplotlib for
`--plot`. Everything runs on the CPU, torch on one thread.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from treadle.tasks import GymTask, RLStepResult, Sensor, SensorSuite, Task, TaskSampler, VectorSampledTasks

METRICS = "__AFTER_TASK_METRICS__"
GOALS = {  # what to train on, from easy to hard; the last one is the test
    "empty": ("MiniGrid-Empty-Random-5x5-v0", "MiniGrid-Empty-Random-6x6-v0", "MiniGrid-Empty-8x8-v0"),
    "doorkey": ("MiniGrid-Empty-Random-5x5-v0", "MiniGrid-DoorKey-5x5-v0"),
}
STEPS = {"empty": 50_000, "doorkey": 120_000}
KINDS, STATES, VIEW = 11, 3, 7  # kinds of objects, states of doors, cells that the agent sees each way
WIDTH = VIEW * VIEW * (KINDS + STATES)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; None: this process's own."""
    parser = argparse.ArgumentParser(description="PPO on MiniGrid tasks, on Treadle's vector of sampled tasks.")
    add = parser.add_argument
    add("--goal", choices=tuple(GOALS), default="empty", help="which curriculum; its last environment is the test")
    add("--seeds", type=int, nargs="+", default=[1], help="one run for each, one after the other")
    add("--total-steps", type=int, help=f"steps of all slots together; by goal: {STEPS}")
    add("--save", type=Path, help="write all runs to this JSON file")
    add("--plot", type=Path, help="draw the learning curves into this PNG file")
    add("--slots", type=int, default=16, help="tasks at a time")
    add("--processes", type=int, default=2, help="workers that share the slots")
    add("--num-steps", type=int, default=64, help="steps of each slot between two updates")
    add("--test-tasks", type=int, default=50, help="tasks of one evaluation")
    add("--test-every", type=int, default=4, help="updates between two evaluations")
    add("--epochs", type=int, default=4, help="passes over a rollout at each update")
    add("--minibatches", type=int, default=4)
    add("--learning-rate", type=float, default=1e-3, help="at the start; it falls linearly to 0")
    add("--gamma", type=float, default=0.99)
    add("--gae-lambda", type=float, default=0.95)
    add("--clip", type=float, default=0.2)
    add("--entropy-weight", type=float, default=0.01)
    args = parser.parse_args(argv)
    args.total_steps = args.total_steps or STEPS[args.goal]
    return args


# --- tasks ------------------------------------------------------------------------------------------------------------


class Egocentric(Sensor[gym.Env]):
    """What the agent has in view: uint8[7, 7, 2], for each cell the kind of object and its state."""

    def __init__(self) -> None:
        super().__init__("view", gym.spaces.Box(0, 255, (VIEW, VIEW, 2), np.uint8))

    def get_observation(self, env: gym.Env, task: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        return task.observation["image"][:, :, [0, 2]]  # the colour in between says nothing that matters here


class GridTask(GymTask):
    """One episode. It is a success when the goal is reached, which is the only terminal state with a reward."""

    reward = 0.0

    def _step(self, action: Any) -> RLStepResult:
        result = super()._step(action)
        self.reward = float(result.reward or 0.0)
        return result

    @property
    def success(self) -> bool:
        return self.reached_terminal_state() and self.reward > 0

    def metrics(self) -> dict[str, Any]:
        return {"success": float(self.success), "ep_length": self.num_steps_taken(), **self.task_info}


class GridSampler(TaskSampler):
    """Tasks of several environments, of which one at a time is in use.

    Args:
        envs: their ids.
        seed: of the first task's reset; later ones follow it.
    """

    all_observation_spaces_equal = True

    def __init__(self, envs: Sequence[str], seed: int) -> None:
        import minigrid  # noqa: F401 - it registers its environments

        self.envs = [gym.make(env) for env in envs]
        self.suite: SensorSuite[gym.Env] = SensorSuite([Egocentric()])
        self.level, self.seed, self.count = 0, seed, 0
        self.task: GridTask | None = None

    @property
    def length(self) -> float:
        return float("inf")

    @property
    def last_sampled_task(self) -> GridTask | None:
        return self.task

    def begin(self, seed: int) -> GridTask:
        """A task of the environment in use."""
        env = self.envs[self.level]
        observation, info = env.reset(seed=seed)
        self.count += 1
        self.task = GridTask(env, self.suite, {"level": self.level}, observation=observation, info=info)
        return self.task

    def next_task(self, force_advance_scene: bool = False) -> Task[Any] | None:
        return self.begin(self.seed + self.count)

    def reset(self) -> None:
        self.level, self.count = 0, 0

    def set_seed(self, seed: int) -> None:
        self.seed = seed

    def close(self) -> None:
        for env in self.envs:
            env.close()


class Curriculum(GridSampler):
    """Goes on to the next environment when 8 of the last 10 tasks were successes; comes back now and then."""

    def __init__(self, envs: Sequence[str], seed: int) -> None:
        super().__init__(envs, seed)
        self.recent: deque[bool] = deque(maxlen=10)
        self.reached = 0

    def next_task(self, force_advance_scene: bool = False) -> Task[Any] | None:
        if self.task is not None and self.level == self.reached:
            self.recent.append(self.task.success)
        if sum(self.recent) >= 8 and self.reached < len(self.envs) - 1:
            self.reached += 1
            self.recent.clear()
        again = self.reached > 0 and self.count % 8 == 7  # an easier one, so that it is not forgotten
        self.level = self.reached - again
        return super().next_task()


class TestSet(GridSampler):
    """As many tasks as it is told, each with its own seed, of the last environment only."""

    def __init__(self, envs: Sequence[str], seed: int, tasks: int) -> None:
        super().__init__(envs[-1:], seed)
        self.tasks = tasks

    @property
    def length(self) -> float:
        return self.tasks - self.count

    def next_task(self, force_advance_scene: bool = False) -> Task[Any] | None:
        return super().next_task() if self.count < self.tasks else None


# --- the agent --------------------------------------------------------------------------------------------------------


class Agent(nn.Module):
    """A policy and a value function on one body; views are uint8[n, 7, 7, 2]."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, actions), nn.Linear(64, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)  # all actions about equally likely at first
        nn.init.orthogonal_(self.critic.weight, 1.0)

    def forward(self, views: Tensor) -> tuple[Categorical, Tensor]:
        """The distribution over actions, and the value, of each view."""
        kinds = nn.functional.one_hot(views[..., 0].long(), KINDS)
        states = nn.functional.one_hot(views[..., 1].long().clamp(max=STATES - 1), STATES)
        features = self.body(torch.cat([kinds, states], -1).flatten(-3).float())
        return Categorical(logits=self.actor(features)), self.critic(features).squeeze(-1)


def stacked(observations: Sequence[dict[str, Any]]) -> Tensor:
    """The views of a list of observations: uint8[n, 7, 7, 2]."""
    return torch.from_numpy(np.stack([each["view"] for each in observations]))


# --- the algorithm ----------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """One training run, and where its time went (seconds).

    Attributes:
        tests: (steps of all slots, share of successes, mean length) of each evaluation.
        trained: (steps, success, level) of every task that ended in training.
    """

    seed: int
    tests: list[tuple[int, float, float]] = field(default_factory=list)
    trained: list[tuple[int, float, int]] = field(default_factory=list)
    acting: float = 0.0
    stepping: float = 0.0
    learning: float = 0.0
    testing: float = 0.0
    total: float = 0.0

    def __str__(self) -> str:
        names = ("stepping", "acting", "learning", "testing")
        shares = ", ".join(f"{name} {getattr(self, name) / self.total:.0%}" for name in names)
        _, success, length = self.tests[-1]
        return f"seed {self.seed}  success {success:.2f} in {length:.1f} steps  {self.total:.1f} s ({shares})"


def gather(
    tasks: VectorSampledTasks, agent: Agent, views: Tensor, args: argparse.Namespace, run: Run, at: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """One rollout. Returns the last views, and tensors [T, n, ...].

    A limit of steps is not the end of the world: where a task was truncated, the value of its last observation is added
    to the reward, as if the episode had gone on and the return from there on were known.
    """
    rows: dict[str, list[Tensor]] = {name: [] for name in ("views", "actions", "logprobs", "values", "rewards", "ends")}
    for t in range(args.num_steps):
        before = perf_counter()
        with torch.no_grad():
            policy, values = agent(views)
            actions = policy.sample()
        ready = perf_counter()
        results = tasks.step(actions.tolist())
        run.acting += ready - before
        run.stepping += perf_counter() - ready
        rewards = torch.tensor([result.reward for result in results])
        for slot, result in enumerate(results):
            info = result.info or {}
            if METRICS in info:
                steps = at + (t + 1) * len(results)
                run.trained.append((steps, info[METRICS]["success"], info[METRICS]["level"]))
            if info["truncated"]:
                with torch.no_grad():
                    rewards[slot] += args.gamma * agent(stacked([info["final_observation"]]))[1][0]
        ends = torch.tensor([result.done for result in results])
        for name, value in zip(rows, (views, actions, policy.log_prob(actions), values, rewards, ends)):
            rows[name].append(value)
        views = stacked([result.observation for result in results])
    return views, {name: torch.stack(values) for name, values in rows.items()}


def advantages(rollout: dict[str, Tensor], last_values: Tensor, args: argparse.Namespace) -> Tensor:
    """Generalized advantage estimates, float32[T, n]."""
    values, ends = rollout["values"], rollout["ends"]
    out, later, following = torch.zeros_like(values), torch.zeros_like(last_values), last_values
    for t in reversed(range(len(values))):
        goes_on = ~ends[t]
        error = rollout["rewards"][t] + args.gamma * following * goes_on - values[t]
        out[t] = later = error + args.gamma * args.gae_lambda * goes_on * later
        following = values[t]
    return out


def update(
    agent: Agent, optimizer: torch.optim.Optimizer, rollout: dict[str, Tensor], gains: Tensor, args: Any
) -> None:
    """`--epochs` passes over one rollout."""
    targets = (gains + rollout["values"]).flatten()
    flat = {name: rollout[name].flatten(0, 1) for name in ("views", "actions", "logprobs")}
    gains = gains.flatten()
    for _ in range(args.epochs):
        for rows in torch.randperm(len(gains)).chunk(args.minibatches):
            policy, values = agent(flat["views"][rows])
            ratio = (policy.log_prob(flat["actions"][rows]) - flat["logprobs"][rows]).exp()
            gain = (gains[rows] - gains[rows].mean()) / (gains[rows].std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
            loss = -torch.minimum(gain * ratio, gain * clipped).mean()
            loss = loss + 0.5 * (values - targets[rows]).square().mean()
            loss = loss - args.entropy_weight * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def evaluate(tests: VectorSampledTasks, agent: Agent, seed: int) -> tuple[float, float]:
    """The share of successes, and the mean length, over the whole test set; actions are sampled as in training.

    Every task is played to its end by exactly one slot. Slots run out of tasks one by one and are paused.
    """
    tests.resume_all()
    tests.set_seeds([seed + 1000 * slot for slot in range(tests.num_unpaused_tasks)])
    tests.reset_all()
    observations: list[Any] = tests.get_observations()
    metrics = []
    while tests.num_unpaused_tasks:
        with torch.no_grad():
            actions = agent(stacked(observations))[0].sample()
        results = tests.step(actions.tolist())
        metrics += [result.info[METRICS] for result in results if METRICS in result.info]
        for index in reversed(range(len(results))):  # the indices above a paused one move down
            if results[index].observation is None:
                tests.pause_at(index)
        observations = [result.observation for result in results if result.observation is not None]
    return float(np.mean([m["success"] for m in metrics])), float(np.mean([m["ep_length"] for m in metrics]))


def train(args: argparse.Namespace, seed: int) -> Run:
    """One run."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    run, began = Run(seed), perf_counter()
    envs = GOALS[args.goal]
    samplers = [{"envs": envs, "seed": 10_000 * seed + 500 * slot} for slot in range(args.slots)]
    size, more = divmod(args.test_tasks, 8)
    sets = [{"envs": envs, "seed": 0, "tasks": size + (slot < more)} for slot in range(min(8, args.test_tasks))]
    options: Any = {"max_processes": args.processes, "should_log": False}
    with (
        VectorSampledTasks(Curriculum, samplers, **options) as tasks,
        VectorSampledTasks(TestSet, sets, **options) as tests,
    ):
        agent = Agent(int(tasks.action_spaces[0].n))
        optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
        views = stacked(tasks.get_observations())
        batch = args.slots * args.num_steps
        updates = max(1, args.total_steps // batch)
        for count in range(updates):
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - count / updates)
            views, rollout = gather(tasks, agent, views, args, run, count * batch)
            before = perf_counter()
            with torch.no_grad():
                gains = advantages(rollout, agent(views)[1], args)
            update(agent, optimizer, rollout, gains, args)
            run.learning += perf_counter() - before
            if (count + 1) % args.test_every == 0 or count + 1 == updates:
                before = perf_counter()
                run.tests.append(((count + 1) * batch, *evaluate(tests, agent, 77_000)))
                run.testing += perf_counter() - before
    run.total = perf_counter() - began
    return run


def draw(runs: Sequence[Run], title: str, file: Path) -> None:
    """The learning curves: successes on the test set, and how long its tasks took."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), dpi=110)
    for run in runs:
        steps, success, length = zip(*run.tests)
        left.plot(steps, success, label=f"seed {run.seed}", linewidth=1.4)
        right.plot(steps, length, linewidth=1.4)
    left.axhline(0.9, color="#888", linestyle=":", linewidth=1)
    left.set(ylim=(-0.03, 1.03), ylabel="successes in the test set", xlabel="steps of all slots")
    right.set(ylabel="mean steps of a test task", xlabel="steps of all slots", ylim=(0, None))
    left.legend(frameon=False)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(file)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> list[Run]:
    """Train once for each seed; print a line for each."""
    args = parse_args(argv)
    runs = []
    for seed in args.seeds:
        runs.append(train(args, seed))
        print(runs[-1], flush=True)
    if args.save is not None:
        args.save.write_text(json.dumps([asdict(run) for run in runs]))
    if args.plot is not None:
        draw(runs, f"PPO on {GOALS[args.goal][-1]}, {args.slots} slots", args.plot)
    return runs


if __name__ == "__main__":
    main()
