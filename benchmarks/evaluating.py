"""`python -m benchmarks.evaluating`: episodes of a PPO scored by `treadle.evaluate` and by SB3's `evaluate_policy`.

Stable-Baselines3 steps eight environments in a `DummyVecEnv`. Both are asked for the best action. Each measure is taken
in a fresh process once libraries are imported and the model is loaded, with one thread of torch's. Workers and
environments start and end within it. Below the table: what it costs to keep an evaluation of CartPole in a directory.
"""

import argparse
import datetime
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from benchmarks.report import figure, machine, progress, publish

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- evaluating:begin -->", "<!-- evaluating:end -->"
OURS, SB3 = "treadle", "evaluate_policy"
N = 8


def pong() -> Any:
    """Pong as it is learned from: every fourth frame, uint8[4, 84, 84]."""
    import ale_py
    import gymnasium as gym

    gym.register_envs(ale_py)
    env = gym.wrappers.AtariPreprocessing(gym.make("ALE/Pong-v5", frameskip=1))
    return gym.wrappers.FrameStackObservation(env, 4)


# name -> environment, policy, steps of training, episodes
ROWS: dict[str, tuple[Any, str, int, int]] = {
    "CartPole": ("CartPole-v1", "MlpPolicy", 30_000, 100),
    "Hopper": ("Hopper-v5", "MlpPolicy", 350_000, 500),
    "Pong": (pong, "CnnPolicy", 512, 16),
}


def train(name: str, path: Path) -> None:
    """Save a PPO that has learned for a while."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    env, policy, steps, _ = ROWS[name]
    small = {"n_steps": 64, "n_epochs": 1} if policy == "CnnPolicy" else {}
    PPO(policy, make_vec_env(env, N, seed=0), device="cpu", seed=0, **small).learn(steps).save(path)


def measured(name: str, who: str, path: Path) -> tuple[float, int, float]:
    """Seconds, steps and mean return of a row's episodes, in this process."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    import treadle

    torch.set_num_threads(1)
    env, _, _, episodes = ROWS[name]
    model = PPO.load(path, device="cpu")
    start = perf_counter()
    if who == SB3:
        vector = make_vec_env(env, N, seed=0)
        returns, lengths = evaluate_policy(model, vector, episodes, deterministic=True, return_episode_rewards=True)
        vector.close()
        return perf_counter() - start, sum(lengths), sum(returns) / episodes
    found = treadle.evaluate(env, model, episodes)
    return perf_counter() - start, sum(each.length for each in found.scores), found.mean


def of_one(name: str, who: str, path: Path) -> tuple[float, int, float]:
    """The same in a fresh process."""
    words = [sys.executable, "-m", "benchmarks.evaluating", "--one", name, who, str(path)]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-3:]
    progress(f"{name} {who}: {said[0]} s, {said[1]} steps, mean return {said[2]}")
    return float(said[0]), int(said[1]), float(said[2])


def keeping(path: Path, pairs: int) -> list[float]:
    """Per cent of processor time that an evaluation of CartPole takes more with a directory, for each pair of turns."""
    import torch
    from stable_baselines3 import PPO

    import treadle

    torch.set_num_threads(1)
    serial = treadle.WorkerOptions(backend="serial")
    model, found = PPO.load(path, device="cpu"), []
    for turn in range(pairs + 1):
        spent = {}
        for kept in (False, True) if turn % 2 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                start = process_time()
                out = Path(folder, "out") if kept else None
                treadle.evaluate("CartPole-v1", model, 100, out=out, worker_options=serial)
                spent[kept] = process_time() - start
        found.append(100 * (spent[True] / spent[False] - 1))
        progress(f"kept: {found[-1]:+.2f} % of {spent[False]:.2f} s")
    return sorted(found[1:])  # the first pair has imported all that it takes


def tables(folder: Path, rows: list[str], rounds: int, pairs: int) -> str:
    """Of all rows, and of what keeping costs. The models lie in the folder, or are made there."""
    lines = [
        "| row | episodes | steps an episode | `evaluate_policy` steps/s | `treadle.evaluate` steps/s "
        "| of `evaluate_policy` |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in rows:
        path = folder / f"{name}.zip"
        if not path.exists():
            progress(f"{name}: training")
            train(name, path)
        rates: dict[str, list[float]] = {SB3: [], OURS: []}
        lengths = []
        for _ in range(rounds if name != "Pong" else 1):
            for who, found in rates.items():
                seconds, steps, _ = of_one(name, who, path)
                found.append(steps / seconds)
                lengths.append(steps / ROWS[name][3])
        ratio = median(ours / theirs for ours, theirs in zip(rates[OURS], rates[SB3], strict=True))
        cells = [figure(median(rates[who])) for who in (SB3, OURS)]
        lines.append(f"| {name} | {ROWS[name][3]} | {median(lengths):.0f} | {cells[0]} | {cells[1]} | {ratio:.2f} |")
    if pairs:
        found = keeping(folder / "CartPole.zip", pairs)
        quarter = len(found) // 4
        low, high = found[quarter], found[-1 - quarter]
        lines += [
            "",
            f"Kept in a directory, the evaluation of CartPole takes {median(found):+.1f} % processor time, the",
        ]
        lines += [f"median of {pairs} interleaved pairs. Their middle half is from {low:+.1f} to {high:+.1f} %."]
    about = machine()
    known = ", ".join(f"{each} {about['versions'].get(each, '?')}" for each in ("torch", "stable-baselines3"))
    place = f"{about['cpu']}, {about['cores']} cores, Python {about['versions']['python']}, {known}"
    return "\n".join([f"{datetime.date.today()}, {place}; medians of {rounds} rounds (Pong: one).", "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=6, help="of evaluations, kept and not")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=ROWS)
    parser.add_argument("--models", type=Path, help="where trained models are kept; default: nowhere")
    parser.add_argument("--one", nargs=3, metavar=("ROW", "WHO", "MODEL"), help="measure once, in this process")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    options = parser.parse_args()
    if options.one:
        name, who, path = options.one
        print(*measured(name, who, Path(path)))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = options.models or Path(made)
        table = tables(folder, options.rows, options.rounds, options.pairs)
    publish(table, PAGE if options.write else None, BEGIN, END)


if __name__ == "__main__":
    main()
