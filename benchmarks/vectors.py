"""`python -m benchmarks.vectors`: what a vector does besides stepping all of its envs at once (`benchmarks.real`).

Three kinds of tables, each with the limit and its peers in the same run, contestants interleaved:

- partial: whichever envs are ready first, under exponential step times, envs that compute and envs that wait;
- rollouts: images stored in blocks of 64 steps;
- safe: batches that are the caller's to keep, lent, against copies.

Treadle's vectors are made with their defaults but for what a contestant's name says; like their peers they reset in the
step after an end (NEXT_STEP), and rows that are such resets are not counted.
"""

import argparse
import datetime
import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.contestants import Contestant, GymnasiumAsync, Library, VectorSession
from benchmarks.field import chosen
from benchmarks.limit import Limit, LimitSession
from benchmarks.measure import Measure
from benchmarks.ours import Partial, Rollouts, T, Treadle, keeping
from benchmarks.report import figure, machine, markdown, progress, summarise, write_between_markers
from benchmarks.rows import Row
from benchmarks.workloads import SEED, WORKLOADS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- vectors:begin -->", "<!-- vectors:end -->"


class Stored(Library):
    """One of Gymnasium's vectors, each of its batches copied into the next of T rows."""

    def __init__(self, name: str, make: Callable[[list[Any]], Any]) -> None:
        self.name, self._make = name, make

    def setup(self, row: Row, workers: int) -> VectorSession:
        """workers is ignored: one process, or one for each env."""
        envs = self._make([row.workload.make] * row.n_envs)
        first = envs.reset(seed=SEED)[0]
        return VectorSession(keeping(envs.step, stored(envs)), row, first, close=envs.close, reset_rows=True)


class OneEach(Limit):
    """The limit of envs that wait: a process for each."""

    def setup(self, row: Row, workers: int) -> LimitSession:
        return LimitSession(row.workload, row.n_envs, row.n_envs)


class LimitStored(Limit):
    """The limit of those who store T steps: memory that is in no cache."""

    name = "the limit's loop, stored"

    def setup(self, row: Row, workers: int) -> LimitSession:
        return LimitSession(row.workload, row.n_envs, workers, kept=T)


def stored(envs: Any) -> Callable[[Any], None]:
    """Copies each batch into the next of T rows, over and over."""
    n, space = envs.num_envs, envs.single_observation_space
    rows = np.zeros((T, n, *space.shape), space.dtype)
    rest = np.zeros((T, n)), np.zeros((T, n), np.bool_), np.zeros((T, n), np.bool_)
    t = 0

    def keep(batch: Any) -> None:
        nonlocal t
        rows[t] = batch[0]
        for kept, part in zip(rest, batch[1:4], strict=True):
            kept[t] = part
        t = (t + 1) % T

    return keep


def copied(_: Any) -> Callable[[Any], Any]:
    """Copies each batch's observations to fresh memory, as safe batches are made elsewhere."""
    return lambda batch: batch[0].copy()


def held(_: Any) -> Callable[[Any], None]:
    """Holds on to the last four batches."""
    return deque[Any](maxlen=4).append


@dataclass(frozen=True)
class Table:
    """Contestants that are compared on one row. name: what `--only` selects by its beginning."""

    name: str
    row: Row
    contestants: tuple[Contestant, ...]


def tables() -> list[Table]:
    """All of them, in the order in which they are measured."""
    found = []
    computing = (
        Limit(),
        GymnasiumAsync(),
        Treadle("make_vec, step"),
        Partial("make_vec, recv(min=1)", batch=1, inline=0),
        Partial("make_vec, recv(min=4)", batch=4, inline=0),
        Partial("make_vec, recv(min=4), inline", batch=4),
    )
    waiting = (
        OneEach(),
        GymnasiumAsync(),
        Treadle("make_vec, step"),
        Partial("make_vec, recv(min=1)", batch=1),
        Partial("make_vec, recv(min=4)", batch=4),
    )
    found.append(Table("partial exp1ms-8", Row(WORKLOADS["exp1ms"], 8), computing))
    found.append(Table("partial sleep1ms-8", Row(WORKLOADS["sleep1ms"], 8), waiting))
    images = Row(WORKLOADS["images"], 32)
    storing = (
        Limit(),
        LimitStored(),
        Stored("Gymnasium Sync, stored", gym.vector.SyncVectorEnv),
        Stored("Gymnasium Async, stored", gym.vector.AsyncVectorEnv),
        Treadle("make_vec, stored", keep=stored),
        Rollouts("make_vec, rollout"),
        Rollouts("make_vec, rollout, inline=0", inline=0),
    )
    found.append(Table("rollouts images-32", images, storing))
    safe = (
        Limit(),
        Treadle("lent"),
        Treadle("lent, four held", keep=held),
        Treadle("fresh copies", keep=copied),
    )
    found.append(Table("safe images-32", images, safe))
    return found


def chosen_tables(only: str) -> list[Table]:
    """Those whose names have one of the comma-separated parts. Raises ValueError for a part that fits none."""
    parts = [part.strip() for part in only.split(",") if part.strip()]
    everything = tables()
    for part in parts:
        if not any(part in table.name for table in everything):
            raise ValueError(f"no table {part!r} among {', '.join(table.name for table in everything)}")
    return [table for table in everything if not parts or any(part in table.name for part in parts)]


def run_turn(contestant: Contestant, row: Row, *, workers: int, seconds: float, warmup: float) -> Measure:
    """One contestant's turn on one row: build, warm up, measure, close. seconds and warmup are wall time."""
    session = contestant.setup(row, workers)
    try:
        session.run(warmup)
        return session.run(seconds)
    finally:
        session.close()


def run_row(
    row: Row, contestants: Sequence[Contestant], *, rounds: int, workers: int, seconds: float, warmup: float
) -> tuple[dict[str, list[Measure]], list[str]]:
    """All rounds of one row.

    Returns the measures of every contestant that finished them all, by name, and a sentence for each that failed.
    """
    failures = []
    running = list(contestants)
    measures: dict[str, list[Measure]] = {contestant.name: [] for contestant in running}
    for number in range(1, rounds + 1):
        for contestant in list(running):
            try:
                result = run_turn(contestant, row, workers=workers, seconds=seconds, warmup=warmup)
            except Exception as error:  # noqa: BLE001  one contestant's failure must not lose the figures of all others
                failures.append(f"{contestant.name} failed on {row.name} in round {number}: {error!r}")
                running.remove(contestant)
                del measures[contestant.name]
                progress(failures[-1])
                continue
            measures[contestant.name].append(result)
            progress(
                f"{row.name} {number}/{rounds} {contestant.name}: {figure(result.steps_per_s)} steps/s, "
                f"{figure(result.cpu_us_per_step)} us of CPU a step, {result.cores:.2f} cores"
            )
    return measures, failures


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own). Returns 1 when a contestant failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vectors", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant on each row (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="timed seconds of a turn (2)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds stepped before the clock starts (0.5)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="cores to use (all)")
    parser.add_argument("--only", default="", metavar="PART,...", help="tables, by parts of their names (all)")
    parser.add_argument("--contestants", default="", metavar="PART,...", help="contestants, likewise (all)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every single measure to this JSON file")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.parent.name}/{PAGE.name}")
    options = parser.parse_args(argv)
    try:
        wanted = chosen_tables(options.only)
    except ValueError as error:
        parser.error(str(error))
    facts: dict[str, Any] = machine() | {"date": datetime.date.today().isoformat()}
    facts |= {name: getattr(options, name) for name in ("rounds", "seconds", "warmup", "workers")}
    lines, failures, raw = [], [], {}
    for table in wanted:
        measures, failed = run_row(
            table.row,
            chosen(table.contestants, options.contestants),
            rounds=options.rounds,
            workers=options.workers,
            seconds=options.seconds,
            warmup=options.warmup,
        )
        lines += summarise(table.name, measures)
        failures += failed
        raw[table.name] = {name: [asdict(m) for m in ms] for name, ms in measures.items()}
    text = markdown(lines, failures, facts)
    print(text)
    if options.out is not None:
        options.out.write_text(json.dumps({"facts": facts, "measures": raw}, indent=1) + "\n", encoding="utf-8")
    if options.write:
        write_between_markers(PAGE, text, BEGIN, END)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
