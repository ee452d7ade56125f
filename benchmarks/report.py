"""From measures to figures a reader can check: medians and spreads, shares of the limit, the machine, the table."""

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.limit import Limit
from benchmarks.measure import Measure

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"
_DISTRIBUTIONS = ("treadle", "numpy", "gymnasium", "torch", "ale-py", "mujoco", "minigrid")
_DISTRIBUTIONS += ("stable-baselines3", "tianshou", "allenact")


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class Line:
    """One contestant on one row.

    rate: env steps per second. share: rate over the limit's rate of the same round; None when the limit was not
    measured. cpu_us: CPU microseconds per env step. cores: cores busy on average. Both are medians over the rounds.
    """

    row: str
    contestant: str
    rate: Spread
    share: Spread | None
    cpu_us: float
    cores: float


def summarise(row: str, rounds: Mapping[str, Sequence[Measure]]) -> list[Line]:
    """The lines of one row. rounds: measures by contestant, round by round, as many for each."""
    limit = rounds.get(Limit.name)
    lines = []
    for name, measures in rounds.items():
        rates = [m.steps_per_s for m in measures]
        shares = None if limit is None else [rate / m.steps_per_s for rate, m in zip(rates, limit, strict=True)]
        lines.append(
            Line(
                row,
                name,
                Spread.of(rates),
                None if shares is None else Spread.of(shares),
                median(m.cpu_us_per_step for m in measures),
                median(m.cores for m in measures),
            )
        )
    return lines


def take_turns(row: str, contestants: Mapping[str, Callable[[], Measure]], rounds: int) -> dict[str, list[Measure]]:
    """The contestants' measures by name, taken in turns, A B C A B C; each is told of as it comes."""
    measures: dict[str, list[Measure]] = {name: [] for name in contestants}
    for turn in range(rounds):
        for name, run in contestants.items():
            measures[name].append(found := run())
            progress(f"{row} {turn + 1}/{rounds} {name}: {found.steps_per_s:,.0f} steps/s")
    return measures


def machine() -> dict[str, Any]:
    """The machine and versions that a table must state; cores are those this process may use, memory is in GiB."""
    versions = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions,
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _field(path: str, key: str) -> str:
    """The first value of a `key : value` line in a file of /proc; empty when there is none."""
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def figure(value: float) -> str:
    """Three significant digits, thousands separated: 251234.5 -> '251,000', 6.14159 -> '6.14'."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def markdown(lines: Sequence[Line], notes: Sequence[str], facts: Mapping[str, Any]) -> str:
    """The table with what a reader needs to judge it. notes: sentences about who did not take part or failed."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    text = [
        f"{facts['date']}. {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['system']}; "
        f"{versions}.",
        f"{facts['rounds']} rounds of {facts['seconds']:g} s after {facts['warmup']:g} s of warm-up, contestants "
        f"interleaved, workers = {facts['workers']}, load average at start {facts['load_at_start']:g}. "
        "Medians, lowest to highest in brackets.",
        "",
        "| row | contestant | env steps/s | share of the limit | CPU us/step | cores used |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for line in lines:
        rate = f"{figure(line.rate.median)} ({figure(line.rate.low)} to {figure(line.rate.high)})"
        share = "-"
        if line.share is not None:
            share = f"{line.share.median:.2f} ({line.share.low:.2f} to {line.share.high:.2f})"
        text.append(f"| {line.row} | {line.contestant} | {rate} | {share} | {figure(line.cpu_us)} | {line.cores:.2f} |")
    if notes:
        text += ["", *(f"- {note}" for note in notes)]
    return "\n".join(text)


def write_between_markers(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replaces what stands between the markers in `path`. Raises ValueError unless it holds one of each, in order."""
    old = path.read_text(encoding="utf-8")
    head, first, rest = old.partition(begin)
    _, last, tail = rest.partition(end)
    if not first or not last or begin in rest or end in tail:
        raise ValueError(f"{path} must hold the lines {begin} and {end} once each, in this order")
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")


def publish(text: str, path: Path | None, begin: str, end: str) -> None:
    """Prints what was measured, and puts it between the markers in `path`, if there is one."""
    print(text)
    if path is not None:
        write_between_markers(path, text, begin, end)


def progress(text: str) -> None:
    """Says what is going on; on stderr, so that stdout holds the table alone."""
    print(text, file=sys.stderr, flush=True)
