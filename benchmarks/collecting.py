"""`python -m benchmarks.collecting`: what collecting into a dataset costs, as a share of the bare limit.

Contestants, interleaved: the limit (W processes with one env each and the same random policy: unseeded resets, nothing
kept or written), the same with a seed for every reset (what it costs to be able to make any single episode again; ALE
loads its ROM anew for it), `collect_dataset` (the engine of `treadle collect`: play, encode in the workers, merge into
a Minari dataset), and, where its requirement jax is installed, a plain loop with Minari's own DataCollector. A rate is
env steps in the dataset over seconds from the call to the finished dataset: the start of the workers is in it, making
one episode again to verify it is not. Infos are kept.
"""

import argparse
import contextlib
import datetime
import importlib.util
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.measure import Measure, measure
from benchmarks.report import machine, markdown, summarise, take_turns
from benchmarks.sampling import Run, independent
from benchmarks.workloads import SEED, WORKLOADS

DRAWN = 256  # actions that a random policy draws at once


# about ten seconds of work, so that the first second and the last episodes do not tell
EPISODES = {"cartpole": 40_000, "pong": 64, "halfcheetah": 400, "minigrid": 300}


def drawing(space: gym.Space[Any], seed: int) -> Callable[[], Any]:
    """Uniform actions of a Discrete, or a bounded Box, drawn in blocks as the random policy of `treadle collect` is."""
    rng, stock = np.random.default_rng(seed), list[Any]()

    def more() -> None:
        if isinstance(space, gym.spaces.Discrete):
            stock.extend(rng.integers(space.n, size=DRAWN).tolist())
        else:
            assert isinstance(space, gym.spaces.Box)
            stock.extend(rng.uniform(space.low, space.high, (DRAWN, *space.shape)).astype(space.dtype))

    def draw() -> Any:
        if not stock:
            more()
        return stock.pop()

    return draw


def playing(name: str, reseed: bool, seed: int) -> Run:
    """What a process of the limit does: one env, random actions, nothing kept."""
    env = WORKLOADS[name].make()
    env.reset(seed=seed)
    draw, step, reset, seeds = drawing(env.action_space, seed), env.step, env.reset, itertools.count(10**6 * seed)

    def run(seconds: float) -> tuple[int, float]:
        start = now = perf_counter()
        steps = 0
        while now - start < seconds:
            reset(seed=next(seeds) if reseed else None)
            over = False
            while not over:
                _, _, terminated, truncated, _ = step(draw())
                steps += 1
                over = terminated or truncated
            now = perf_counter()
        return steps, now - start

    return run


def limit(name: str, workers: int, seconds: float, *, reseed: bool) -> Measure:
    return independent(partial(playing, name, reseed), workers, seconds)


def treadle(name: str, workers: int, seconds: float) -> Measure:
    """A whole run; its own clock says how long it took."""
    from treadle.record.dataset import collect_dataset

    out = Path(tempfile.mkdtemp(prefix="bench-collect-"))
    try:

        def run() -> tuple[int, float]:
            stored = collect_dataset(
                WORKLOADS[name].make, out=out, episodes=EPISODES[name], seed=SEED, workers=workers, resume="replace"
            )
            assert stored.summary is not None
            return stored.summary.steps, stored.summary.seconds

        return measure(run)
    finally:
        shutil.rmtree(out)


def data_collector(name: str, workers: int, seconds: float) -> Measure:
    """Minari's own way, in one process: DataCollector around the env, then create_dataset."""
    from minari import DataCollector

    directory = tempfile.mkdtemp(prefix="bench-minari-")
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = directory
    try:
        # ALE's reset has an info that its steps lack, which the collector cannot record
        env = DataCollector(WORKLOADS[name].make(), record_infos=name != "pong")
        draw = drawing(env.action_space, SEED)

        def run() -> tuple[int, float]:
            start, steps, seed = perf_counter(), 0, SEED
            while perf_counter() - start < seconds:
                env.reset(seed=seed)
                seed += 1
                over = False
                while not over:
                    _, _, terminated, truncated, _ = env.step(draw())
                    steps += 1
                    over = terminated or truncated
            env.create_dataset(f"bench/{name}-v0", algorithm_name="random")
            return steps, perf_counter() - start

        with contextlib.redirect_stdout(None):
            return measure(run)
    finally:
        shutil.rmtree(directory)
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collecting", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant on each row (5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="timed seconds of the limits and the loop (3)")
    parser.add_argument("--only", default=",".join(EPISODES), help="rows (%(default)s)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="cores to use (all)")
    options = parser.parse_args(argv)
    facts: dict[str, Any] = machine()
    contestants: dict[str, Callable[..., Measure]] = {
        "limit": partial(limit, reseed=False),
        "limit, seeded resets": partial(limit, reseed=True),
        "treadle collect": treadle,
    }
    notes = []
    if importlib.util.find_spec("jax") is not None:
        contestants["loop + DataCollector"] = data_collector
    else:
        notes.append("A loop with Minari's DataCollector did not take part: its requirement jax is not installed.")
    lines = []
    for name in options.only.split(","):
        turns = {who: partial(run, name, options.workers, options.seconds) for who, run in contestants.items()}
        lines += summarise(f"collect {name}", take_turns(name, turns, options.rounds))
    facts |= {"date": datetime.date.today().isoformat(), "rounds": options.rounds, "seconds": options.seconds}
    facts |= {"warmup": 0.3, "workers": options.workers}
    print(markdown(lines, notes, facts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
