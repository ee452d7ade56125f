"""`python -m benchmarks.floor`: the figures that later changes are held against, stored in `floor.json`.

A row is one number of ours and, where there is one, the limit's number of the same round. Rows: those of
`benchmarks.real` without `@2` (rates of `auto`, partial batches and rollouts), collecting into a dataset, sampling,
planning, and starts (a first vector, `treadle eval`; seconds, against an interpreter that imports NumPy and Gymnasium).
Each turn of the last four kinds is a process of its own, contestants take turns, and the medians over the rounds count.

--against TREE measures a second tree of sources in the same rounds and prints the quotients: the comparison to trust,
since machines differ from day to day. The tree of a commit: `git archive COMMIT | tar x -C FOLDER`.
"""

import argparse
import contextlib
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.report import machine, progress
from benchmarks.workloads import SEED, WORKLOADS

ROOT = Path(__file__).parents[1]
STORED = Path(__file__).with_name("floor.json")
CONTESTANTS = "limit,auto,partial,rollout"
AGAINST = " (against)"
EPISODES = {"cartpole": 10_000, "halfcheetah": 100, "pong": 16}  # some seconds of work
SAMPLED = ("cartpole", "pong")
PLANNED = ("cartpole", "pong-ram")
STARTS = ("first vector", "second vector", "eval command")
Turn = Callable[[float], float]


def collecting(name: str, seconds: float) -> float:
    """Steps/s from the call to the finished dataset; nothing is verified."""
    from benchmarks.dataset import dataset

    out = Path(tempfile.mkdtemp(prefix="floor-"))
    try:
        made = dataset(WORKLOADS[name].make, out, episodes=EPISODES[name], seed=SEED, workers=_cores())
        assert made.summary is not None
        return made.summary.steps / made.summary.seconds
    finally:
        shutil.rmtree(out)


def collecting_limit(name: str, seconds: float) -> float:
    from benchmarks.collecting import limit

    return limit(name, _cores(), seconds, reseed=False).steps_per_s


def sampling(name: str, seconds: float) -> float:
    from benchmarks.sampling import treadle

    return treadle(name, _cores(), seconds, ordered=False, rates={}).steps_per_s


def sampling_limit(name: str, seconds: float) -> float:
    from benchmarks.sampling import limit

    return limit(name, _cores(), seconds).steps_per_s


def planning(contestant: str, name: str, seconds: float) -> float:
    from benchmarks.planning import contestants, turn

    return turn(contestants()[contestant](name, _cores()), seconds, moved=False)[0].steps_per_s


def starting(name: str, seconds: float) -> float:
    """Starts a second: of a vector of eight CartPoles up to its first step, or of a whole command."""
    if name == "eval command":
        command = [sys.executable, "-m", "treadle", "eval", "CartPole-v1", "--episodes", "10"]
        began = perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return 1 / (perf_counter() - began)
    import treadle

    make = treadle.make_vec  # resolved, with what it imports, before the clock starts
    took = 0.0
    for _ in range(1 + (name == "second vector")):
        began = perf_counter()
        with contextlib.closing(make("CartPole-v1", num_envs=8)) as envs:
            envs.reset(seed=SEED)
            envs.step(envs.action_space.sample())
            took = perf_counter() - began
    return 1 / took


def bare_start(seconds: float) -> float:
    """Interpreters a second that import NumPy and Gymnasium."""
    began = perf_counter()
    subprocess.run([sys.executable, "-c", "import numpy, gymnasium"], check=True)
    return 1 / (perf_counter() - began)


def rows() -> dict[str, dict[str, Turn]]:
    """Contestants by row; "limit" is measured once a round, whatever trees there are."""
    found: dict[str, dict[str, Turn]] = {}
    for name in EPISODES:
        found[f"collect {name}"] = {"limit": partial(collecting_limit, name), "Treadle": partial(collecting, name)}
    for name in SAMPLED:
        found[f"sample {name}"] = {"limit": partial(sampling_limit, name), "Treadle": partial(sampling, name)}
    for name in PLANNED:
        ours = {"limit": partial(planning, "limit", name), "Treadle": partial(planning, "Treadle, states", name)}
        found[f"plan {name}"] = ours
    for name in STARTS:
        found[f"start: {name}"] = {"limit": bare_start, "Treadle": partial(starting, name)}
    return found


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _turn(row: str, contestant: str, seconds: float, source: Path) -> float:
    """One turn in an interpreter of its own, which imports Treadle from `source`."""
    paths = [str(source / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.floor", "--turn", json.dumps([row, contestant, seconds])],
        cwd=tempfile.gettempdir(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    if done.returncode:  # else what packages of environments warn of, in each process, is not shown
        progress(done.stderr.rstrip())
        done.check_returncode()
    return float(done.stdout.splitlines()[-1])


def measure_turns(row: str, rounds: int, seconds: float, sources: Mapping[str, Path]) -> dict[str, list[float]]:
    """Rates by contestant, round by round; each round begins with another one."""
    turns = [(name, ending) for name in rows()[row] for ending in (sources if name == "Treadle" else [""])]
    found: dict[str, list[float]] = {name + ending: [] for name, ending in turns}
    for number in range(rounds):
        first = number % len(turns)
        for name, ending in turns[first:] + turns[:first]:
            rate = _turn(row, name, seconds, sources[ending])
            found[name + ending].append(round(rate, 4))
            progress(f"{row} {number + 1}/{rounds} {name + ending}: {rate:,.6g} a second")
    return found


def measure_real(row: str, rounds: int, seconds: float, sources: Mapping[str, Path]) -> dict[str, list[float]]:
    """Rates by contestant of a row of `benchmarks.real`."""
    from benchmarks.field import chosen, everyone
    from benchmarks.real import measure_row
    from benchmarks.rows import parse_row

    contestants = [one for one in chosen(everyone(), CONTESTANTS) if "groups" not in one.name]
    seats, _ = measure_row(
        parse_row(row), contestants, rounds=rounds, seconds=seconds, workers=_cores(), sources=sources
    )
    return {name: [round(one.steps_per_s, 1) for one in seat.taken] for name, seat in seats.items()}


def every_row() -> list[str]:
    from benchmarks.real import BUSY, ROWS

    return [name for name in (*ROWS, *BUSY) if "@2" not in name] + list(rows())


def shares(measures: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median over the rounds of each contestant's rate over the limit's of the same round."""
    limit = measures["limit"]
    return {
        name: round(median(a / b for a, b in zip(rates, limit, strict=True)), 3)
        for name, rates in measures.items()
        if name != "limit"
    }


def lines(row: str, measures: Mapping[str, Sequence[float]], stored: Mapping[str, Any]) -> list[str]:
    """A table row for each of our contestants: rate, share, share of the stored floor, quotient with the other tree."""
    found = []
    before = stored.get("rows", {}).get(row, {}).get("shares", {})
    for name, share in shares(measures).items():
        if name.endswith(AGAINST):
            continue
        other = measures.get(name + AGAINST)
        quotient = f"{median(a / b for a, b in zip(measures[name], other, strict=True)):.3f}" if other else "-"
        floor = f"{share / before[name]:.2f}" if before.get(name) else "-"
        found.append(f"| {row} | {name} | {median(measures[name]):,.4g} | {share:.3f} | {floor} | {quotient} |")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floor", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", metavar="PART,...", help="rows whose names contain one of the parts (all)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each contestant on each row (10)")
    parser.add_argument("--seconds", type=float, default=0.5, help="timed seconds of a turn (0.5; outside `real` 3 x)")
    parser.add_argument("--source", type=Path, default=ROOT, metavar="TREE", help="the tree whose Treadle is measured")
    parser.add_argument("--against", type=Path, metavar="TREE", help="another tree, measured in the same rounds")
    parser.add_argument("--store", type=Path, metavar="FILE", help="add what was measured to this file's rows")
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.turn:
        row, contestant, seconds = json.loads(options.turn)
        print(rows()[row][contestant](seconds))
        return 0
    parts = [part.strip() for part in options.rows.split(",")] if options.rows else [""]
    wanted = [name for name in every_row() if any(part in name for part in parts)]
    if not wanted:
        parser.error(f"no row among {', '.join(every_row())}")
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    sources = {"": options.source.resolve()} | ({AGAINST: options.against.resolve()} if options.against else {})
    facts = machine() | {"date": datetime.date.today().isoformat(), "rounds": options.rounds}
    out: dict[str, Any] = {"facts": facts, "rows": {}}
    if options.store is not None and options.store.exists():
        out["rows"] = json.loads(options.store.read_text(encoding="utf-8"))["rows"]
    table = [
        "| row | contestant | a second | of the limit | of the stored share | of the other tree |",
        "|---" * 6 + "|",
    ]
    for row in wanted:
        if row in rows():
            measures = measure_turns(row, options.rounds, 3 * options.seconds, sources)
        else:
            measures = measure_real(row, options.rounds, options.seconds, sources)
        table += lines(row, measures, stored)
        out["rows"][row] = {"shares": shares(measures), "rates": measures}
        if options.store is not None:
            options.store.write_text(json.dumps(out) + "\n", encoding="utf-8")
    print("\n".join(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
