"""`python -m benchmarks.inference`: one policy in the caller over many environments, episode by episode.

Lengths of 20 to 144 steps, 8 episodes an environment, steps that wait 4 ms on average (exponentially) or compute 1 ms,
a policy that takes 0.5, 6 or 40 ms a call and a cost a row. The policy sleeps, as the process of an accelerator does.
Contestants, in turns:

- static: batches on Gymnasium's AsyncVectorEnv; a slot whose episode has ended stands still until the last has, then
  all begin the next (how LeRobot 0.4 evaluates);
- step: `make_vec`, lockstep, each slot goes on with its next episode by itself;
- min=k: `collect(inference="caller")` with a fixed size of batch, however long it takes to fill;
- auto: the same, size and wait chosen by what was measured.

The ideal is the best size and patience in the model of `benchmarks.batches`: free transport, one core a worker.
Environments that compute share the cores with the caller, which the model does not know.

A thirteenth row has a straggler: environment 0 takes twenty times as long for each step. `static` and `step` wait for
it all the time, and the others play its episodes where there are no groups.

All of it takes most of an hour. With `--keep FILE` what is measured is kept there, and a command that is given again
goes on where `--budget` seconds were over: it says when nothing is left to do. The table is made of all that is kept.
"""

import argparse
import datetime
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

import treadle
from benchmarks.batches import PATIENCES, Pace, candidates, simulated
from benchmarks.report import figure, machine, progress, publish
from benchmarks.workloads import TURNS_PER_100_US, compute
from treadle.sample.batching import Choice

PAGE = Path(__file__).parents[1] / "docs" / "inference-reference.md"
BEGIN, END = "<!-- inference:begin -->", "<!-- inference:end -->"
SHORTEST, LONGEST = 20, 144
EPISODES = 8  # an environment
STRAGGLER = "TREADLE_BENCHMARK_STRAGGLER"  # is the worker the one that is slow?
SEED = 7


class Timed(gym.Env[np.ndarray, int]):
    """Episodes whose lengths and step times follow from their seeds.

    wait: mean seconds that a step waits, exponentially distributed; 0: it computes for `work` seconds. freeze: once its
    episode has ended a step does nothing, until it is reset.
    """

    observation_space = gym.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, wait: float, work: float, freeze: bool = False, slow: float = 1.0) -> None:
        self._wait, self._turns, self._freeze = wait * slow, int(work * slow * 1e4 * TURNS_PER_100_US), freeze
        self._observation = np.zeros(8, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(SHORTEST, LONGEST + 1))
        return self._observation, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._left <= 0 and self._freeze:
            return self._observation, 0.0, True, False, {}
        if self._wait:
            time.sleep(float(self.np_random.exponential(self._wait)))
        else:
            compute(self._turns, 1)
        self._left -= 1
        return self._observation, 1.0, self._left <= 0, False, {}


class Sleeping:
    """A policy that takes `call` seconds, and `row` more for each row."""

    batched = True

    def __init__(self, call: float, row: float) -> None:
        self.call, self.row = call, row

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        time.sleep(self.call + self.row * len(observations))
        return np.zeros(len(observations), np.int64)


@dataclass(frozen=True)
class Setting:
    """One row of the table. wait, work: of a step, in seconds; call, row: of the policy."""

    envs: int
    wait: float
    work: float
    call: float
    row: float
    slow: float = 1.0  # times that the steps of the first environment take

    @property
    def name(self) -> str:
        step = f"waits {self.wait * 1e3:g} ms" if self.wait else f"computes {self.work * 1e3:g} ms"
        straggler = f", one {self.slow:g} times slower" if self.slow != 1 else ""
        return f"{self.envs} envs, {step}, policy {self.call * 1e3:g} + {self.row * 1e3:g} ms a row{straggler}"

    @property
    def workers(self) -> int:
        """A process for each environment that waits, a core for each that computes."""
        return self.envs if self.wait else len(os.sched_getaffinity(0))

    def make(self, freeze: bool = False, first: bool = False) -> Timed:
        return Timed(self.wait, self.work, freeze, self.slow if first else 1.0)

    def makers(self, freeze: bool = False) -> list[Callable[[], Timed]]:
        """Of vectors."""
        return [partial(self.make, freeze, slot == 0) for slot in range(self.envs)]

    def policy(self) -> Sleeping:
        return Sleeping(self.call, self.row)


SETTINGS = [
    Setting(envs, wait, work, call, row)
    for envs in (16, 64)
    for wait, work in ((0.004, 0.0), (0.0, 0.001))
    for call, row in ((0.0005, 0.00002), (0.006, 0.0002), (0.04, 0.001))
] + [Setting(16, 0.004, 0.0, 0.006, 0.0002, slow=20.0)]


class FirstIsSlow:
    """Makes the environments of a run, of whose workers each plays one: that of worker 0 is the straggler."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def __call__(self) -> Timed:
        return self._setting.make(first=os.environ.get(STRAGGLER) == "1")


def static(setting: Setting, episodes: int) -> tuple[int, float]:
    """(steps of episodes, seconds): batches of as many episodes as there are environments."""
    policy, n = setting.policy(), setting.envs
    envs = gym.vector.AsyncVectorEnv(setting.makers(True), autoreset_mode=gym.vector.AutoresetMode.DISABLED)
    steps = 0
    try:
        began = time.perf_counter()
        for batch in range(episodes):
            observations, _ = envs.reset(seed=[SEED + batch * n + i for i in range(n)])
            done = np.zeros(n, np.bool_)
            while not done.all():
                observations, _, terminated, truncated, _ = envs.step(policy(observations))
                steps += int(np.count_nonzero(~done))
                done |= terminated | truncated
        return steps, time.perf_counter() - began
    finally:
        envs.close()


def lockstep(setting: Setting, episodes: int) -> tuple[int, float]:
    """The same number of episodes, whichever slots make them."""
    policy, n = setting.policy(), setting.envs
    envs = treadle.VectorEnv(setting.makers(), workers=setting.workers, autoreset_mode="SameStep")
    steps = ended = 0
    try:
        observations, _ = envs.reset(seed=SEED)
        began = time.perf_counter()
        while ended < episodes * n:
            observations, _, terminated, truncated, _ = envs.step(policy(observations))
            steps += n
            ended += int(np.count_nonzero(terminated | truncated))
        return steps, time.perf_counter() - began
    finally:
        envs.close()


def continuous(setting: Setting, episodes: int, size: int | None = None) -> tuple[int, float]:
    """`collect` with the policy in the caller, from its first episode on: the start of the workers is left out."""
    n = setting.envs
    options: dict[str, Any] = {}
    numbers = {} if size is None else {"batch_size": size, "max_wait": math.inf}
    if setting.slow != 1:
        options["worker_environ"] = lambda index: {STRAGGLER: str(int(index == 0))}
    played = treadle.collect(
        FirstIsSlow(setting) if setting.slow != 1 else setting.make,
        setting.policy(),
        episodes=episodes * n + 1,
        seed=SEED,
        inference=treadle.Inference(where="caller", **numbers),
        num_envs=n,
        workers=setting.workers,
        ordered=False,
        **options,
    )
    next(played)  # the workers have begun
    began = time.perf_counter()
    steps = sum(len(episode) for episode in played)
    return steps, time.perf_counter() - began


def ideal(setting: Setting) -> tuple[float, Choice]:
    """(steps a second, the size and patience with which) in the model; of a straggler's fellows alone."""
    rng = np.random.default_rng(0)
    steps = rng.exponential(setting.wait, 512).tolist() if setting.wait else [setting.work]
    envs = setting.envs - (setting.slow != 1)
    pace = Pace(setting.call, setting.row, tuple(steps), min(setting.workers, envs))
    choices = [Choice(1, 0.0)] + [
        Choice(size, each * pace.policy(size)) for size in candidates(envs) for each in (*PATIENCES, math.inf)
    ]
    rates = [(simulated(pace, envs, choice), choice) for choice in choices]
    return max(rates, key=lambda each: each[0])


def sizes(setting: Setting) -> list[int]:
    """The fixed sizes of the sweep."""
    return sorted({1, setting.envs // 4, setting.envs // 2, setting.envs * 3 // 4, setting.envs})


def contestants(setting: Setting) -> dict[str, Callable[[Setting, int], tuple[int, float]]]:
    found: dict[str, Callable[[Setting, int], tuple[int, float]]] = {"static": static, "step": lockstep}
    found |= {f"min={size}": partial(continuous, size=size) for size in sizes(setting)}
    return found | {"auto": continuous}


Rates = dict[str, dict[str, list[float]]]  # row -> contestant -> steps a second of each round


def measure(chosen: Sequence[Setting], rates: Rates, rounds: int, episodes: int, budget: float) -> bool:
    """Measure what is not there yet, in turns; False: the time is over before all of it is."""
    until = time.monotonic() + budget
    for turn in range(rounds):
        for setting in chosen:
            row = rates.setdefault(setting.name, {})
            for name, run in contestants(setting).items():
                found = row.setdefault(name, [])
                if len(found) > turn:
                    continue
                if time.monotonic() > until:
                    return False
                steps, seconds = run(setting, episodes)
                found.append(steps / seconds)
                row["episodes"] = [episodes]
                progress(f"{setting.name} {turn + 1}/{rounds} {name}: {steps / seconds:,.0f} steps/s, {seconds:.0f} s")
    return True


def complete(setting: Setting, rates: Rates) -> dict[str, float] | None:
    """Medians by contestant; None where one is missing."""
    row = rates.get(setting.name, {})
    if any(not row.get(name) for name in contestants(setting)):
        return None
    return {name: median(found) for name, found in row.items()}  # of "episodes", too


def table(rows: Sequence[tuple[Setting, dict[str, float]]], facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    text = [
        f"{datetime.date.today()}. {facts['cpu']}, {facts['cores']} cores, {facts['system']}; {versions}.",
        f"{facts['rounds']} rounds, contestants interleaved, load average at start {facts['load_at_start']:g}. "
        "Environment steps a second; shares are of the ideal; the column episodes has "
        "the number of episodes per environment.",
        "",
        "| row | episodes | ideal | static | step | best fixed size | auto | auto of the best fixed | of the ideal "
        "| x static |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for setting, rates in rows:
        most, _ = ideal(setting)
        fixed = {name: rate for name, rate in rates.items() if name.startswith("min=")}
        best = max(fixed, key=lambda name: fixed[name])
        auto = rates["auto"]
        text.append(
            f"| {setting.name} | {rates.get('episodes', math.nan):g} | {figure(most)} | "
            f"{figure(rates['static'])} ({rates['static'] / most:.2f}) | "
            f"{figure(rates['step'])} ({rates['step'] / most:.2f}) | {best}: {figure(fixed[best])} "
            f"({fixed[best] / most:.2f}) | {figure(auto)} | {auto / fixed[best]:.2f} | {auto / most:.2f} | "
            f"{auto / rates['static']:.2f} |"
        )
    return "\n".join(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inference", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", default="", metavar="N,...", help=f"rows by number, 1 to {len(SETTINGS)} (all)")
    parser.add_argument("--episodes", type=int, default=EPISODES, help="an environment")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="go on from what is there, and keep it there")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds; nothing is begun after that")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    options = parser.parse_args(argv)
    facts = machine() | {"rounds": options.rounds, "episodes": options.episodes}
    try:
        chosen = [SETTINGS[int(number) - 1] for number in options.rows.split(",") if number.strip()] or SETTINGS
    except (IndexError, ValueError):
        parser.error("rows: " + "; ".join(f"{number} {each.name}" for number, each in enumerate(SETTINGS, 1)))
    rates: Rates = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else {}
    try:
        done = measure(chosen, rates, options.rounds, options.episodes, options.budget)
    finally:
        if options.keep:
            options.keep.write_text(json.dumps(rates))
    progress("nothing is left to do" if done else "the time is over: the same command goes on")
    rows = [(setting, medians) for setting in SETTINGS if (medians := complete(setting, rates)) is not None]
    text = table(rows, facts)
    publish(text, PAGE if options.write else None, BEGIN, END)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
