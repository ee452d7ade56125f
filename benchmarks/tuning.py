"""`python -m benchmarks.tuning`: is the line that `treadle tune` prints the best of what it has tried?

`treadle.tune` runs several times on each row. An arrangement is worth the median of its standings over all runs, each
as a multiple of the first arrangement's in the same run. A run is right when its line is worth at least 95 % of the
best arrangement of that run.
"""

import argparse
from collections import defaultdict
from statistics import median

import treadle
from benchmarks.report import progress
from benchmarks.rows import parse_row
from treadle.testing.tuning import Tuning

ROWS = "cartpole-8,cartpole-64,halfcheetah-8,hopper-8,pong-8,minigrid-8,python1ms-8,images-32"
LEAST = 0.95


def judged(runs: list[Tuning]) -> list[float]:
    """For each run of a row, what its line is worth: a share of the best of its arrangements."""
    standings = defaultdict[str, list[float]](list)
    for run in runs:
        first = next(iter(run.standings.values()))
        for how, share in run.standings.items():
            standings[str(how)].append(share / first)
    worth = {how: median(found) for how, found in standings.items()}
    return [worth[str(run.best)] / max(worth[str(how)] for how in run.rates) for run in runs]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=ROWS, help=f"comma-separated ({ROWS})")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each run's turns, as of treadle.tune (12)")
    options = parser.parse_args()
    print("| row | lines, by how often | worth | right |\n|---|---|---:|---:|")
    for row in map(parse_row, options.rows.split(",")):
        runs = []
        for turn in range(options.runs):
            runs.append(treadle.tune(row.workload.make, num_envs=row.n_envs, seconds=options.seconds))
            progress(f"{row.name} {turn + 1}/{options.runs}: {runs[-1].best}, others {runs[-1].others}")
        chosen, worth = [str(run.best) for run in runs], judged(runs)
        lines = ", ".join(f"{chosen.count(each)} x `{each}`" for each in sorted(set(chosen), key=chosen.count)[::-1])
        right = sum(each >= LEAST for each in worth)
        print(f"| {row.name} | {lines} | {min(worth):.2f} to {max(worth):.2f} | {right} of {len(runs)} |", flush=True)


if __name__ == "__main__":
    main()
