"""`python -m benchmarks.collecting`: what collecting into a dataset costs, as a share of the bare limit.

Contestants, interleaved: the limit (one env a core, unseeded resets, nothing kept), the same with a seed for every
reset (what it costs to be able to make any single episode again; ALE loads its ROM anew for it), `collect_dataset`
(the engine of `treadle collect`: play, encode in the workers, merge into a Minari dataset, make one episode again to
verify it), and, where its requirement jax is installed, a plain loop with Minari's own DataCollector. A rate is env
steps in the dataset over seconds from the first reset to the finished dataset; starting processes is not in it.
"""

import argparse
import contextlib
import datetime
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.limit import LimitSession
from benchmarks.measure import Measure, measure
from benchmarks.report import machine, markdown, summarise, take_turns
from benchmarks.workloads import SEED, WORKLOADS, Workload

EPISODES = {"cartpole": 40_000, "pong": 48}  # seconds of work, so that the last episodes do not tell


def limit(workload: Workload, workers: int, seconds: float, *, reseed: bool) -> Measure:
    session = LimitSession(workload, workers, workers, reseed)
    try:
        session.run(0.5)
        return session.run(seconds)
    finally:
        session.close()


def treadle(workload: Workload, workers: int, seconds: float) -> Measure:
    """A whole run; its own clock says how long it took, without the start of its workers."""
    from treadle.record.dataset import collect_dataset

    out = Path(tempfile.mkdtemp(prefix="bench-collect-"))
    try:

        def run() -> tuple[int, float]:
            stored = collect_dataset(
                workload.make, out=out, episodes=EPISODES[workload.name], seed=SEED, workers=workers, force=True
            )
            assert stored.summary is not None
            return stored.summary.steps, stored.summary.seconds

        return measure(run)
    finally:
        shutil.rmtree(out)


def data_collector(workload: Workload, workers: int, seconds: float) -> Measure:
    """Minari's own way, in one process: DataCollector around the env, then create_dataset."""
    from minari import DataCollector

    directory = tempfile.mkdtemp(prefix="bench-minari-")
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = directory
    try:
        # ALE's reset has an info that its steps lack, which the collector cannot record
        env = DataCollector(workload.make(), record_infos=workload.name != "pong")
        actions = workload.actions(1, 4096)[:, 0].tolist()

        def run() -> tuple[int, float]:
            start, steps, seed = perf_counter(), 0, SEED
            while perf_counter() - start < seconds:
                env.reset(seed=seed)
                seed += 1
                over = False
                while not over:
                    _, _, terminated, truncated, _ = env.step(actions[steps % 4096])
                    steps += 1
                    over = terminated or truncated
            env.create_dataset(f"bench/{workload.name}-v0", algorithm_name="random")
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
    parser.add_argument("--only", default="cartpole,pong", help="rows (cartpole,pong)")
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
        turns = {
            who: partial(run, WORKLOADS[name], options.workers, options.seconds) for who, run in contestants.items()
        }
        lines += summarise(f"collect {name}", take_turns(name, turns, options.rounds))
    facts |= {"date": datetime.date.today().isoformat(), "rounds": options.rounds, "seconds": options.seconds}
    facts |= {"warmup": 0.5, "workers": options.workers}
    print(markdown(lines, notes, facts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
