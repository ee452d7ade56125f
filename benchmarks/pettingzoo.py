"""`python -m benchmarks.pettingzoo`: environments of several agents as rows, against SuperSuit's vector.

Contestants take turns; each steps the same number of environments with the same actions, and resets them by itself:

- SuperSuit, caller: `concat_vec_envs_v1(..., num_cpus=0)`, all environments in the caller;
- SuperSuit, processes: the same with a process for each core;
- Treadle, rows and grouped: `treadle.pettingzoo.make_vec`, as it comes.

"think" is what a policy does between two steps: it computes for so many milliseconds, as the caller's share.
"""

import argparse
import datetime
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.report import figure, machine, progress, publish
from benchmarks.workloads import TURNS_PER_100_US, compute
from treadle import pettingzoo as ours

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-pettingzoo.md"
BEGIN, END = "<!-- pettingzoo:begin -->", "<!-- pettingzoo:end -->"
WARM_UP = 0.3  # seconds
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Setting:
    """One row of the table. think: milliseconds between two steps."""

    name: str
    module: str
    kwargs: dict[str, Any]
    envs: int
    think: float = 0.0

    def make(self) -> Any:
        return import_module(self.module).parallel_env(**self.kwargs)


SPREAD, PISTONS = "mpe2.simple_spread_v3", "pettingzoo.butterfly.pistonball_v6"
SETTINGS = [
    Setting("simple_spread x16", SPREAD, {}, 16),
    Setting("simple_spread x16, think 2 ms", SPREAD, {}, 16, 2.0),
    Setting("pistonball (8 agents, pictures) x4", PISTONS, {"n_pistons": 8}, 4),
]
Session = tuple[Callable[[], Any], Callable[[], None]]  # a step, the end


def supersuit(setting: Setting, cpus: int) -> Session:
    import supersuit

    one = supersuit.pettingzoo_env_to_vec_env_v1(setting.make())
    vector = supersuit.concat_vec_envs_v1(one, setting.envs, num_cpus=cpus)
    vector.reset(seed=0)
    actions = np.zeros((vector.num_envs, *vector.action_space.shape), vector.action_space.dtype)
    return partial(vector.step, actions), vector.close


def treadle(setting: Setting, form: str) -> Session:
    vector = ours.make_vec(setting.make, setting.envs, form=form, autoreset_mode="SameStep")
    vector.reset(seed=0)
    if form == "rows":
        actions: Any = np.zeros_like(vector.action_space.sample())
    else:
        actions = {agent: np.zeros_like(vector.action_space(agent).sample()) for agent in vector.agents}
    return partial(vector.step, actions), vector.close


CONTESTANTS: dict[str, Callable[[Setting], Session]] = {
    "SuperSuit, caller": partial(supersuit, cpus=0),
    "SuperSuit, processes": partial(supersuit, cpus=CORES),
    "Treadle, rows": partial(treadle, form="rows"),
    "Treadle, grouped": partial(treadle, form="grouped"),
}


def rate(setting: Setting, begin: Callable[[Setting], Session], seconds: float) -> float:
    """Environment steps a second."""
    step, close = begin(setting)
    turns = int(setting.think * 10 * TURNS_PER_100_US)
    try:
        for limit in (WARM_UP, seconds):
            steps, began = 0, time.perf_counter()
            while time.perf_counter() - began < limit:
                step()
                if turns:
                    compute(turns, 1)
                steps += 1
            taken = time.perf_counter() - began
        return steps * setting.envs / taken
    finally:
        close()


def measured(setting: Setting, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Rates by contestant; they take turns."""
    rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for turn in range(rounds):
        for name, begin in CONTESTANTS.items():
            rates[name].append(rate(setting, begin, seconds))
            progress(f"{setting.name} {turn + 1}/{rounds} {name}: {rates[name][-1]:,.0f} steps/s")
    return rates


def table(rows: Sequence[tuple[Setting, dict[str, list[float]]]], facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    names = list(CONTESTANTS)
    text = [
        f"{datetime.date.today()}. {facts['cpu']}, {facts['cores']} cores, {facts['system']}; {versions}.",
        f"{facts['rounds']} rounds, contestants interleaved, load average at start {facts['load_at_start']:g}. "
        "Environment steps a second (of all agents together), median, and the range of the rounds.",
        "",
        f"| row | {' | '.join(names)} | rows x the better SuperSuit |",
        f"|---|{'---:|' * (len(names) + 1)}",
    ]
    for setting, rates in rows:
        cells = [f"{figure(median(found))} ({figure(min(found))} to {figure(max(found))})" for found in rates.values()]
        best = max(median(found) for name, found in rates.items() if name.startswith("SuperSuit"))
        text.append(f"| {setting.name} | {' | '.join(cells)} | {median(rates['Treadle, rows']) / best:.2f} |")
    return "\n".join(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own)."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pettingzoo", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each contestant in each round")
    parser.add_argument("--rows", default="", metavar="PART,...", help="rows by parts of their names (all)")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    options = parser.parse_args(argv)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame, without a screen
    warnings.filterwarnings("ignore", module="pygame|supersuit|pettingzoo")
    parts = [part.strip() for part in options.rows.split(",") if part.strip()]
    chosen = [each for each in SETTINGS if not parts or any(part in each.name for part in parts)]
    if not chosen:
        parser.error(f"no row has {options.rows!r} in its name: {'; '.join(each.name for each in SETTINGS)}")
    facts = machine() | {"rounds": options.rounds}
    text = table([(each, measured(each, options.rounds, options.seconds)) for each in chosen], facts)
    publish(text, PAGE if options.write else None, BEGIN, END)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
