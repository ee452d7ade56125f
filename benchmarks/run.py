"""`python -m benchmarks.run`: measures the contestants against the limit, row by row, and prints the table.

Contestants take turns, A B C A B C, so that a machine that slows down for a minute slows all of them. Each turn
builds its envs anew, warms up, is measured and closes, so that nothing of one runs while another is measured.
"""

import argparse
import datetime
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.contestants import Contestant, ours, peers
from benchmarks.measure import Measure
from benchmarks.report import Line, figure, machine, markdown, progress, summarise, write_between_markers
from benchmarks.workloads import DEFAULT_ROWS, WORKLOADS, Row, parse_row

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def run_turn(contestant: Contestant, row: Row, *, workers: int, seconds: float, warmup: float) -> Measure:
    """One contestant's turn on one row: build, warm up, measure, close. seconds and warmup are wall time."""
    session = contestant.setup(row.workload, row.n_envs, workers)
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


def select(contestants: Sequence[Contestant], wanted: Sequence[str]) -> list[Contestant]:
    """Those whose name contains one of `wanted`, in any case; all if it is empty. ValueError for one that fits none."""
    if not wanted:
        return list(contestants)
    for word in wanted:
        if not any(word.lower() in contestant.name.lower() for contestant in contestants):
            raise ValueError(f"no contestant {word!r} among {', '.join(contestant.name for contestant in contestants)}")
    return [c for c in contestants if any(word.lower() in c.name.lower() for word in wanted)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant on each row (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="timed seconds of a turn (2)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds stepped before the clock starts (0.5)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="cores to use (all)")
    parser.add_argument(
        "--only",
        default=",".join(DEFAULT_ROWS),
        metavar="ROW,...",
        help=f"rows to measure, WORKLOAD-N with any N; workloads: {', '.join(WORKLOADS)} (%(default)s)",
    )
    parser.add_argument(
        "--contestants", default="", metavar="NAME,...", help="parts of names; keep `limit` to get shares (all)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every single measure to this JSON file")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.parent.name}/{PAGE.name}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own). Returns 1 when a contestant failed, else 0."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.workers < 1 or options.seconds <= 0 or options.warmup < 0:
        parser.error("--rounds and --workers must be at least 1, --seconds above 0, --warmup not below 0")
    own = ours()
    try:
        rows = [parse_row(name.strip()) for name in options.only.split(",")]
        contestants = select(
            [*peers(), *own], [name.strip() for name in options.contestants.split(",") if name.strip()]
        )
    except ValueError as error:
        parser.error(str(error))
    facts: dict[str, Any] = machine() | {
        "date": datetime.date.today().isoformat(),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "warmup": options.warmup,
        "workers": options.workers,
    }
    lines: list[Line] = []
    refusals: dict[tuple[str, str], list[str]] = {}  # (contestant, why) -> rows
    failures: list[str] = []
    raw: dict[str, dict[str, list[Any]]] = {}
    for row in rows:
        taking_part = []
        for contestant in contestants:
            why = contestant.refusal(row.workload)
            if why is None:
                taking_part.append(contestant)
            else:
                refusals.setdefault((contestant.name, why), []).append(row.name)
        measures, row_failures = run_row(
            row,
            taking_part,
            rounds=options.rounds,
            workers=options.workers,
            seconds=options.seconds,
            warmup=options.warmup,
        )
        lines += summarise(row.name, measures)
        failures += row_failures
        raw[row.name] = {name: [asdict(m) for m in ms] for name, ms in measures.items()}
    notes = [] if own else ["Treadle not measured: benchmarks/ours.py is missing."]
    notes += [f"{name} not measured on {', '.join(on)}: {why}." for (name, why), on in refusals.items()]
    notes += failures
    table = markdown(lines, notes, facts)
    print(table)
    if options.out is not None:
        document = {"facts": facts, "notes": notes, "measures": raw}
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.write:
        write_between_markers(PAGE, table)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
