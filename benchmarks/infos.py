"""`python -m benchmarks.infos`: what infos of numbers add to a batch of MuJoCo's environments.

Two vectors of the same environments, one whose infos a wrapper drops where they are made, step the same actions in
turns. Shown: the lower quartile of the turns of each, and their difference, which is what it takes to pack the numbers
in the workers and to hand them out as columns.
"""

import argparse
import datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

import treadle
from benchmarks.recorder import in_pairs
from benchmarks.report import machine, progress, publish

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- infos:begin -->", "<!-- infos:end -->"
ENVS, COUNT = ("HalfCheetah-v5", "Hopper-v5", "Humanoid-v5"), 8
WORKERS = {"in the caller": {"backend": "serial"}, "one worker, half in the caller": {"workers": 1, "inline": 4}}


class Silent(gym.Wrapper):  # type: ignore[type-arg]
    """Tells nothing."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(**kwargs)[0], {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return *self.env.step(action)[:4], {}


def made(env: str, silent: bool) -> gym.Env[Any, Any]:
    return Silent(gym.make(env)) if silent else gym.make(env)


def measured(env: str, options: dict[str, Any], turns: int, steps: int) -> tuple[float, float]:
    """Microseconds a batch, (without infos, with them): lower quartiles of the turns."""
    vectors = [treadle.VectorEnv([partial(made, env, silent)] * COUNT, **options) for silent in (True, False)]
    try:
        actions = [vectors[0].action_space.sample() for _ in range(64)]
        for vector in vectors:
            vector.reset(seed=0)
        found = in_pairs(vectors, actions, turns + 2, steps, perf_counter)[2:]  # the first two warm up
        without, with_it = np.percentile(found, 25, axis=0)
        return float(without), float(with_it)
    finally:
        for vector in vectors:
            vector.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400, help="of a turn")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    options = parser.parse_args()
    lines = ["| environments | where | us a batch without infos | with | difference |", "|---|---|---:|---:|---:|"]
    for env in ENVS:
        for where, given in WORKERS.items():
            progress(f"{env} {where}")
            without, with_it = measured(env, given, options.turns, options.steps)
            lines.append(f"| {env} x {COUNT} | {where} | {without:,.1f} | {with_it:,.1f} | {with_it - without:+.1f} |")
    about = machine()
    place = f"{about['cores']} cores, Python {about['versions']['python']}, {datetime.date.today()}"
    lines += ["", f"(Lower quartiles of {options.turns} interleaved turns of {options.steps} batches, {place}.)"]
    publish("\n".join(lines), PAGE if options.write else None, BEGIN, END)


if __name__ == "__main__":
    main()
