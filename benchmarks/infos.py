"""`python -m benchmarks.infos`: what infos of numbers add to a batch of MuJoCo's environments.

Two vectors of the same environments, one whose infos a wrapper drops where they are made, step the same actions in
turns. Shown: the lower quartile of the turns of each, and their difference, which is what it takes to pack the numbers
in the workers and to hand them out as columns. The last column is the same of environments that take no time and give
those infos, with episodes as long: the difference between the two is that the environment itself leaves nothing of
what packs and unpacks in the processor's caches.
"""

import argparse
import datetime
from contextlib import closing
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
WORKERS = {
    "in the caller": {"worker_options": treadle.WorkerOptions(backend="serial")},
    "one worker, half in the caller": {"workers": 1, "inline": 4},
}


class Silent(gym.Wrapper):  # type: ignore[type-arg]
    """Tells nothing."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(**kwargs)[0], {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return *self.env.step(action)[:4], {}


class Echo(gym.Env[Any, Any]):
    """Gives the infos of another environment's first reset and step, in episodes as long as its first, and does nothing
    else."""

    def __init__(self, env: str) -> None:
        with closing(gym.make(env)) as real:
            real.action_space.seed(0)
            _, self.first = real.reset(seed=0)
            ended, self.length = False, 0
            while not ended:
                _, _, terminated, truncated, self.info = real.step(real.action_space.sample())
                ended, self.length = terminated or truncated, self.length + 1
            self.action_space = real.action_space
        self.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self._shown = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._at = 0 if seed is None else seed % self.length  # so that not all end at once
        return self._shown, self.first.copy()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._at += 1
        return self._shown, 1.0, self._at >= self.length, False, self.info.copy()


def made(env: str, warm: bool, silent: bool) -> gym.Env[Any, Any]:
    found = Echo(env) if warm else gym.make(env)
    return Silent(found) if silent else found


def measured(env: str, warm: bool, options: dict[str, Any], turns: int, steps: int) -> tuple[float, float]:
    """Microseconds a batch, (without infos, with them): lower quartiles of the turns."""
    vectors = [treadle.VectorEnv([partial(made, env, warm, silent)] * COUNT, **options) for silent in (True, False)]
    try:
        actions = [vectors[0].action_space.sample() for _ in range(64)]
        for vector in vectors:
            vector.reset(seed=[7 * slot for slot in range(COUNT)])
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
    head = (
        "| environments | where | us a batch without infos | with | difference "
        "| difference with environments that take no time |"
    )
    lines = [head, "|---|---|---:|---:|---:|---:|"]
    for env in ENVS:
        for where, given in WORKERS.items():
            progress(f"{env} {where}")
            without, with_it = measured(env, False, given, options.turns, options.steps)
            warm = np.subtract(*measured(env, True, given, options.turns, options.steps)[::-1])
            added = f"{with_it - without:+.1f} | {warm:+.1f}"
            lines.append(f"| {env} x {COUNT} | {where} | {without:,.1f} | {with_it:,.1f} | {added} |")
    about = machine()
    place = f"{about['cores']} cores, Python {about['versions']['python']}, {datetime.date.today()}"
    lines += ["", f"(Lower quartiles of {options.turns} interleaved turns of {options.steps} batches, {place}.)"]
    publish("\n".join(lines), PAGE if options.write else None, BEGIN, END)


if __name__ == "__main__":
    main()
