"""An agent written for dm_env on Treadle's vector: the cross-entropy method learns CartPole.

    python examples/dm_env_cartpole.py
    python examples/dm_env_cartpole.py --seeds 1 2 3 --save curves.json

Each row of the vector plays an episode with weights of its own, and the best of them say where the next are drawn. It
is one vector behind dm_env's interface: a row's time steps go from FIRST by MID to LAST, and its discount at LAST is 0
where the pole fell and 1 where only the time was over. A row that is done plays on, uncounted, until all are.

Needs dm_env (`pip install 'treadle[dm-env]'`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dm_env
import numpy as np

from treadle.dm_env import DmVector

ROWS, BEST = 32, 4


def returns_of(vector: DmVector, weights: np.ndarray, seed: int) -> np.ndarray:
    """What each row's weights [rows, 5] earn in one episode, float64[rows]."""
    step = vector.reset(seed=seed)
    total, over = np.zeros(len(weights)), np.zeros(len(weights), bool)
    while not over.all():
        push = (step.observation * weights[:, :4]).sum(1) + weights[:, 4] > 0
        step = vector.step(push.astype(np.int64))
        total += np.where(over, 0.0, step.reward)
        over |= step.step_type == dm_env.StepType.LAST
    return total


def train(seed: int, rounds: int) -> dict[str, Any]:
    """One run: the mean return of all rows in each round."""
    rng = np.random.default_rng(seed)
    mean, spread = np.zeros(5), np.ones(5)
    means: list[float] = []
    vector = DmVector("CartPole-v1", ROWS)
    for number in range(rounds):
        weights = mean + spread * rng.standard_normal((ROWS, 5))
        earned = returns_of(vector, weights, seed=1000 * seed + number * ROWS)
        best = weights[np.argsort(earned)[-BEST:]]
        mean, spread = best.mean(0), best.std(0) + 0.05
        means.append(float(earned.mean()))
    vector.close()
    print(f"seed {seed}: mean return {means[0]:.1f} in the first round, {means[-1]:.1f} in the last", flush=True)
    return {"seed": seed, "returns": means}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: this process's own)."""
    parser = argparse.ArgumentParser(description="The cross-entropy method on CartPole, behind dm_env's interface.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=20, help="of 32 episodes each")
    parser.add_argument("--save", type=Path, help="write the curves to this JSON file")
    args = parser.parse_args(argv)
    runs = [train(seed, args.rounds) for seed in args.seeds]
    if args.save is not None:
        args.save.write_text(json.dumps(runs) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
