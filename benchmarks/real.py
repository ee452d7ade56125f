"""`python -m benchmarks.real`: what people run, stepped by everyone, as shares of what the machine can do at all.

A row is an environment and how many of them, with ready-made actions or with a policy between the steps, on an idle
machine or beside a stranger who takes one core (`+busy`). Each contestant sits in a process of its own with its envs
ready; they take turns, A B C A B C, each round beginning with another one. A turn in which somebody else used more than
0.2 cores is taken again. Shares are quotients of turns of the same round, tables show medians over the rounds.
"""

import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from benchmarks.contestants import Contestant
from benchmarks.field import chosen, everyone
from benchmarks.judge import judge, lines, markdown
from benchmarks.limit import LimitOfGroups
from benchmarks.measure import Measure, busy_seconds, cpu_by_pid
from benchmarks.report import machine, progress, write_between_markers
from benchmarks.rows import Row, parse_row

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
FOREIGN = 0.2  # cores that others may use during a turn
AGAIN = 3  # times that a turn is taken at most
WARMUP = 0.1  # seconds stepped before a turn's clock starts
AGAINST = " (against)"

_POLICIES = {
    "frozenlake-8": "",
    "taxi-8": "",
    "blackjack-8": "",
    "cartpole-1": "mlp",
    "cartpole-2": "mlp",
    "cartpole-8": "mlp mlp@2 wait",
    "cartpole-64": "mlp mlp@2 wait",
    "cartpole-128": "mlp mlp@2 wait",
    "halfcheetah-8": "mlp mlp@2 wait",
    "hopper-8": "mlp mlp@2 wait",
    "humanoid-8": "mlp mlp@2 wait",
    "pong-8": "wait",
    "atari-8": "cnn cnn@2 wait",
    "minigrid-8": "mlp mlp@2 wait",
    "python100us-8": "mlp mlp@2 wait",
    "python1ms-8": "mlp mlp@2 wait",
    "python10ms-8": "mlp wait",
    "images-32": "cnn cnn@2 wait",
}
BUSY = ("cartpole-8+busy", "halfcheetah-8+busy", "atari-8+busy")
# whose steps are short, or whose policy has threads
SHORT = (
    "frozenlake-8",
    "taxi-8",
    "blackjack-8",
    "cartpole-1",
    "cartpole-1+mlp",
    "cartpole-2",
    "cartpole-2+mlp",
    "cartpole-8",
    "cartpole-8+mlp",
    "cartpole-8+mlp@2",
    "cartpole-64+mlp",
    "cartpole-64+mlp@2",
    "halfcheetah-8+mlp",
    "halfcheetah-8+mlp@2",
    "atari-8+cnn@2",
    "images-32+cnn",
)
ROWS = tuple(
    name for row, policies in _POLICIES.items() for name in (row, *(f"{row}+{policy}" for policy in policies.split()))
)
QUICK = ("cartpole-8", "cartpole-8+mlp", "halfcheetah-8", "halfcheetah-8+mlp", "atari-8", "atari-8+wait")
LOOPS_ALONE = "limit,Sync,Dummy,Puffer,auto,serial,inline"
QUICK_CONTESTANTS = "limit,Sync,Async,SB3,Puffer,auto,serial,workers only,partial,rollout"


@dataclass
class Seat:
    """A contestant's process. stderr: what it writes there, in which packages of environments warn: shown if it fails.
    started: what it said of its start; taken: its turns, and what others used in each."""

    name: str
    process: subprocess.Popen[str]
    stderr: IO[str]
    started: dict[str, Any] = field(default_factory=dict)
    taken: list[Measure] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)
    again: int = 0

    def ask(self, what: str) -> dict[str, Any]:
        """Sends a line, returns the answer. Raises EOFError when the process has ended or is about to."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(what, file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        if not line or "error" in found:
            status = self.process.wait(30)
            self.stderr.seek(0)
            progress(self.stderr.read().rstrip())
            raise EOFError(found.get("error", f"it ended with status {status}"))
        return found

    def turn(self, seconds: float) -> None:
        """Steps for so long, and again while somebody else disturbs it; the calmest counts."""
        best: tuple[float, Measure] | None = None
        for attempt in range(AGAIN):
            self.ask(str(WARMUP))
            before, began = _others(), perf_counter()
            found = Measure(**self.ask(str(seconds)))
            foreign = (_others() - before) / (perf_counter() - began)
            self.again += attempt > 0
            if best is None or foreign < best[0]:
                best = foreign, found
            if best[0] <= FOREIGN:
                break
        assert best is not None
        self.foreign.append(best[0])
        self.taken.append(best[1])

    def said(self) -> dict[str, Any]:
        """All of it, for `judge` and a file."""
        taken = [asdict(found) for found in self.taken]
        return {"start": self.started, "foreign": self.foreign, "again": self.again, "taken": taken}

    def close(self) -> None:
        """Asks it to end; kills it after 30 s."""
        try:
            self.process.communicate("\n", timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        self.stderr.close()


def _others() -> float:
    """Seconds that cores have been at work for anybody but this process and what descends from it."""
    own = os.times()
    return busy_seconds() - sum(cpu_by_pid().values()) - own.user - own.system - own.children_user - own.children_system


def seated(row: Row, contestant: Contestant, workers: int, source: Path, name: str) -> Seat:
    """Starts a contestant's process and waits until it has stepped. source: the tree whose Treadle it imports."""
    asked = {"row": row.name, "contestant": contestant.name, "library": contestant.library, "workers": workers}
    paths = [str(source / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - the seat's, which closes it
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.seat", json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=tempfile.gettempdir(),  # not here: one of the libraries leaves a link where it is imported
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    seat = Seat(name, process, stderr)
    try:
        seat.started = seat.answer()
        imported = seat.started["treadle"]
        if imported and not Path(imported).is_relative_to(source):
            raise ImportError(f"it has imported {imported}, not {source}")
    except BaseException:
        process.kill()
        seat.close()
        raise
    return seat


@contextlib.contextmanager
def a_stranger(there: bool) -> Iterator[None]:
    """A process that takes a core as long as it lasts, at everybody's priority."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if there else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def measure_row(
    row: Row,
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    seconds: float,
    workers: int,
    sources: Mapping[str, Path],
) -> tuple[dict[str, Seat], list[str]]:
    """All rounds of a row: those who finished them by name, and a sentence for each who did not take part or failed.

    sources: the trees whose Treadle is measured, by what is added to its names.
    """
    seats: dict[str, Seat] = {}
    notes = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(a_stranger(row.busy))
        for contestant in contestants:
            why = contestant.refusal(row)
            if why is not None:
                if contestant.name != LimitOfGroups.name:
                    notes.append(f"{contestant.name} not measured on {row.name}: {why}.")
                continue
            ours = contestant.name.startswith("Treadle")
            for ending, source in sources.items() if ours else [("", ROOT)]:
                name = contestant.name + ending
                try:
                    seats[name] = seated(row, contestant, workers, source, name)
                except (EOFError, ImportError) as error:
                    notes.append(f"{name} cannot step {row.name}: {error}.")
                    progress(notes[-1])
                else:
                    stack.callback(seats[name].close)
        for number in range(rounds):
            order = list(seats)
            first = number % max(1, len(order))
            for name in order[first:] + order[:first]:
                seat = seats[name]
                try:
                    seat.turn(seconds)
                except EOFError as error:
                    notes.append(f"{name} failed on {row.name} in round {number + 1}: {error}.")
                    progress(notes[-1])
                    del seats[name]
                    continue
                progress(
                    f"{row.name} {number + 1}/{rounds} {name}: {seat.taken[-1].steps_per_s:,.0f} steps/s, "
                    f"others {seat.foreign[-1]:.2f} cores"
                )
    return seats, notes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", metavar="ROW,...", help="WORKLOAD-N[+POLICY][+busy], any of them (all of the table)")
    parser.add_argument("--contestants", metavar="PART,...", help="parts of names; keep `limit` to get shares (all)")
    parser.add_argument("--rounds", type=int, help="turns of each contestant on each row (5)")
    parser.add_argument("--seconds", type=float, help="timed seconds of a turn (1)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="cores to use (all)")
    parser.add_argument("--source", type=Path, default=ROOT, metavar="PATH", help="the tree whose Treadle is measured")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another tree of sources: Treadle's lines twice")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add every single measure to this file's")
    parser.add_argument("--show", action="store_true", help="measure nothing: the tables of what the JSON file holds")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to this file, too")
    parser.add_argument("--write", action="store_true", help=f"put the overview into {PAGE.parent.name}/{PAGE.name}")
    parser.add_argument("--loops", action="store_true", help="rows near a plain loop, loops and auto alone, 10 rounds")
    parser.add_argument("--quick", action="store_true", help="six rows, fewer contestants, 3 rounds of 0.5 s")
    parser.add_argument("--list", action="store_true", help="say the rows and contestants, and end")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own). Returns 1 when Treadle or the limit failed, else 0."""
    parser = _parser()
    options = parser.parse_args(argv)
    quick = options.quick
    if options.list:
        print("\n".join([*ROWS, *BUSY, "", *(contestant.name for contestant in everyone())]))
        return 0
    rounds = options.rounds or (3 if quick else 10 if options.loops else 5)
    seconds = options.seconds or (0.5 if quick else 1.0)
    named = options.rows.split(",") if options.rows else SHORT if options.loops else QUICK if quick else (*ROWS, *BUSY)
    who = (
        options.contestants
        if options.contestants is not None
        else LOOPS_ALONE
        if options.loops
        else QUICK_CONTESTANTS
        if quick
        else ""
    )
    try:
        rows = [parse_row(name.strip()) for name in named]
        contestants = chosen(everyone(), who)
    except ValueError as error:
        parser.error(str(error))
    facts: Mapping[str, Any] = machine() | {
        "date": datetime.date.today().isoformat(),
        "rounds": rounds,
        "seconds": seconds,
        "warmup": WARMUP,
        "workers": options.workers,
    }
    sources = {"": options.source.resolve()} | ({AGAINST: options.against.resolve()} if options.against else {})
    failed = False
    document: dict[str, Any] = {}
    if options.json is not None and options.json.exists():
        document = json.loads(options.json.read_text(encoding="utf-8"))
    for row in [] if options.show else rows:
        seats, notes = measure_row(
            row, contestants, rounds=rounds, seconds=seconds, workers=options.workers, sources=sources
        )
        document[row.name] = {"facts": facts, "notes": notes, "seats": {name: s.said() for name, s in seats.items()}}
        failed = failed or any(note.startswith(("Treadle", "limit")) and "cannot" in note for note in notes)
        print(lines([judge(row.name, document[row.name]["seats"])]), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if not document:
        parser.error("--show wants a --json FILE with measures")
    text = tables(document, full=True)
    print("\n" + text)
    if options.markdown is not None:
        options.markdown.write_text(text + "\n", encoding="utf-8")
    if options.write:
        write_between_markers(PAGE, tables(document, full=False))
    return int(failed)


def tables(document: Mapping[str, Any], *, full: bool) -> str:
    """The text for what a JSON file holds, rows in the order of the table; the facts are those of the busiest start."""
    known = [*ROWS, *BUSY]
    names = sorted(document, key=lambda name: known.index(name) if name in known else len(known))
    notes = [note for name in names for note in document[name]["notes"]]
    facts = max((document[name]["facts"] for name in names), key=lambda found: found["load_at_start"])
    return markdown([judge(name, document[name]["seats"]) for name in names], notes, facts, full=full)


if __name__ == "__main__":
    raise SystemExit(main())
