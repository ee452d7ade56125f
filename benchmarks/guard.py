"""`python -m benchmarks.guard`: is this commit slower than the recorded one? A minute, and an exit code.

Each row is a ratio: our time over that of Gymnasium's `SyncVectorEnv`, on the same machine and in the same seconds.
Turns of a millisecond alternate, and the shortest of each side count: whatever else the machine does only makes turns
longer. A ratio that is `WORSE` times the recorded one is measured again, `TRIES` times in all, and its least counts.

--record writes `guard.json`. Do that where a row is meant to change, and say so in the commit.
"""

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.report import machine
from benchmarks.workloads import ImageEnv

STORED = Path(__file__).with_name("guard.json")
WORSE, TRIES = 1.3, 4
TURNS, SECONDS = 400, 0.001  # of each side; in each at least one step. A stranger leaves gaps that are no longer
Run = Callable[[int], object]  # makes so many steps


def stepping(envs: Any) -> Run:
    """Steps of a vector, with actions that are drawn beforehand."""
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions, step = [envs.action_space.sample() for _ in range(64)], envs.step

    def run(steps: int) -> None:
        for at in range(steps):
            step(actions[at & 63])

    return run


@contextmanager
def vectors(make: Any, n: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **how: Any) -> Iterator[tuple[Run, Run]]:
    """Ours and Gymnasium's; ours is serial unless `how` says otherwise, so that no choice is measured."""
    import treadle

    how = how or {"worker_options": treadle.WorkerOptions(backend="serial")}
    make = partial(gym.make, make) if isinstance(make, str) else make
    ours = treadle.VectorEnv([make] * n, autoreset_mode=mode, **how)
    theirs = SyncVectorEnv([make] * n, autoreset_mode=mode)
    with closing(ours), closing(theirs):
        yield stepping(ours), stepping(theirs)


ROWS: dict[str, Callable[[], Any]] = {
    "cartpole-1": partial(vectors, "CartPole-v1", 1),
    "cartpole-8": partial(vectors, "CartPole-v1", 8),
    "cartpole-64": partial(vectors, "CartPole-v1", 64),
    "cartpole-8, same step": partial(vectors, "CartPole-v1", 8, AutoresetMode.SAME_STEP),
    "pendulum-8": partial(vectors, "Pendulum-v1", 8),
    "acrobot-8": partial(vectors, "Acrobot-v1", 8),
    "frozenlake-8": partial(vectors, "FrozenLake-v1", 8),
    "images-8": partial(vectors, ImageEnv, 8),
    "cartpole-64, a worker": partial(vectors, "CartPole-v1", 64, workers=1, inline=0),
    "mountaincar-8": partial(vectors, "MountainCar-v0", 8),
}


def measured(row: str, turns: int = TURNS, seconds: float = SECONDS) -> float:
    """Our time over theirs."""
    with ROWS[row]() as sides:
        counts = []
        for run in sides:
            run(20)
            began = perf_counter()
            run(1)
            counts.append(max(1, int(seconds / (perf_counter() - began))))
        least = [float("inf"), float("inf")]
        for turn in range(turns):
            for side in (0, 1) if turn % 2 else (1, 0):
                began = perf_counter()
                sides[side](counts[side])
                least[side] = min(least[side], (perf_counter() - began) / counts[side])
    return least[0] / least[1]


def worse(recorded: Mapping[str, float], found: Mapping[str, float]) -> dict[str, float]:
    """Rows that are slower than they were -> how many times. Pure."""
    quotients = {row: ratio / recorded[row] for row, ratio in found.items()}
    return {row: times for row, times in quotients.items() if times > WORSE}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="write the table that later commits are held against")
    parser.add_argument("--rows", help="only these, with commas between them")
    options = parser.parse_args(argv)
    rows = options.rows.split(",") if options.rows else list(ROWS)
    if options.record:
        tried = [{row: measured(row) for row in rows} for _ in range(TRIES)]
        ratios = {row: round(median(each[row] for each in tried), 3) for row in rows}
        facts = {**machine(), "date": datetime.date.today().isoformat()}
        STORED.write_text(json.dumps({"facts": facts, "rows": ratios}, indent=2) + "\n", encoding="utf-8")
        print(json.dumps(ratios, indent=2))
        return 0
    recorded = json.loads(STORED.read_text(encoding="utf-8"))["rows"]
    slower = False
    for row in rows:
        ratio = measured(row)
        for _ in range(TRIES - 1):
            if not worse(recorded, {row: ratio}):
                break
            ratio = min(ratio, measured(row))
        bad = worse(recorded, {row: ratio})
        slower = slower or bool(bad)
        print(f"{row:24} {ratio:6.2f} (recorded {recorded[row]:.2f}){'  SLOWER' if bad else ''}", flush=True)
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
