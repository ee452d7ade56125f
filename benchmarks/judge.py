"""From a row's turns to its lines: shares of the limit, multiples of the best loop and peer, the regret of `auto`.

Everything is compared round by round, so that a machine that slows down for a while slows both sides of a quotient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from benchmarks.field import LOOPS
from benchmarks.limit import Limit
from benchmarks.ours import ARMS, AUTO
from benchmarks.report import Spread, figure


@dataclass(frozen=True)
class Standing:
    """One contestant on one row. rate: env steps a second. share: of the limit. loop, peer: multiples of the best plain
    loop and of the best other library; None where there is none, or it is that itself. p50, p99: of a batch, in ms.
    first: seconds from nothing to the first batch. mib: private memory of a worker. foreign: cores that others used."""

    name: str
    rate: Spread
    share: Spread | None
    loop: float | None
    peer: float | None
    p50: float | None
    p99: float | None
    cpu_us: float
    cores: float
    first: float
    mib: float | None
    imported: float
    foreign: float
    again: int


@dataclass(frozen=True)
class Regret:
    """What the best of what `auto` can choose reaches above it, as a part of the best: lowest quarter, median, highest
    quarter of the rounds."""

    best: str
    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Judged:
    """A row's lines."""

    row: str
    standings: tuple[Standing, ...]
    regret: Regret | None


def judge(row: str, seats: Mapping[str, Any]) -> Judged:
    """From what `benchmarks.real` writes to its JSON file for a row."""
    rates = {name: [t["env_steps"] / t["wall_s"] for t in seat["taken"]] for name, seat in seats.items()}
    ours = [name for name in rates if name.startswith("Treadle")]
    peers = {name: median(found) for name, found in rates.items() if name not in ours and not name.startswith("limit")}
    loops = {name: rate for name, rate in peers.items() if name in LOOPS}
    best_loop, best_peer = (max(them, key=them.__getitem__) if them else None for them in (loops, peers))

    def over(name: str, other: str | None) -> list[float] | None:
        return [a / b for a, b in zip(rates[name], rates[other], strict=True)] if other in rates else None

    standings = []
    for name, seat in seats.items():
        taken, start = seat["taken"], seat["start"]
        shares, loop, peer = over(name, Limit.name), over(name, best_loop), over(name, best_peer)
        quantile = {key: [t[key] for t in taken if t[key] is not None] for key in ("p50_ms", "p99_ms")}
        standings.append(
            Standing(
                name,
                Spread.of(rates[name]),
                None if shares is None else Spread.of(shares),
                None if loop is None else median(loop),
                None if peer is None else median(peer),
                *(median(found) if found else None for found in quantile.values()),
                cpu_us=median(1e6 * t["cpu_s"] / t["env_steps"] for t in taken),
                cores=median(t["cpu_s"] / t["wall_s"] for t in taken),
                first=start["first_batch_s"],
                mib=start["worker_mib"],
                imported=start["import_s"],
                foreign=max(seat["foreign"]),
                again=seat["again"],
            )
        )
    return Judged(row, tuple(standings), regret({name: rates[name] for name in (AUTO, *ARMS) if name in rates}))


def regret(rates: Mapping[str, Sequence[float]]) -> Regret | None:
    """None without `auto`, without another, or with fewer than two rounds. The best arm of the even rounds is compared
    in the odd ones, and the other way round: who is chosen because a round was kind to it gains nothing by that."""
    arms = [name for name in rates if name != AUTO]
    if AUTO not in rates or not arms or len(rates[AUTO]) < 2:
        return None
    found, best = [], ""
    for chosen, judged in ((0, 1), (1, 0)):
        best = max(arms, key=lambda name: median(rates[name][chosen::2]))
        pairs = zip(rates[best][judged::2], rates[AUTO][judged::2], strict=True)
        found += [1 - auto / arm for arm, auto in pairs]
    low, _, high = quantiles(found, n=4, method="inclusive")
    best = max(arms, key=lambda name: median(rates[name]))
    return Regret(best, low, median(found), high)


_HEAD = (
    "| row | contestant | env steps/s | of the limit | x best loop | x best peer | p50 ms | p99 ms | CPU us/step | cores "
    "| first batch s | MiB a worker |"
)


def markdown(rows: Sequence[Judged], notes: Sequence[str], facts: Mapping[str, Any] | None) -> str:
    """The table, below it the regret of `auto`, what imports cost, and notes. facts: the machine; None: the table alone."""
    text = [_HEAD, "|---|---|" + "---:|" * 10]
    for row in rows:
        text += [_line(row.row, standing) for standing in row.standings]
    regrets = [(row.row, row.regret) for row in rows if row.regret is not None]
    if regrets:
        text += ["", "| row | best of what `auto` can choose | its regret, median (middle half) |", "|---|---|---:|"]
        text += [f"| {row} | {r.best} | {r.median:.1%} ({r.low:.1%} to {r.high:.1%}) |" for row, r in regrets]
    if facts is None:
        return "\n".join(text)
    everyone = [standing for row in rows for standing in row.standings]
    libraries = {standing.name: standing.imported for standing in reversed(everyone) if standing.imported > 1e-3}
    imports = ", ".join(f"{name} {seconds:.2f}" for name, seconds in libraries.items())
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    head = [
        f"{facts['date']}. {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['system']}; "
        f"{versions}.",
        f"{facts['rounds']} rounds of {facts['seconds']:g} s after {facts['warmup']:g} s of warm-up, contestants "
        f"interleaved, workers = {facts['workers']}, load average at start {facts['load_at_start']:g}. Medians, lowest "
        f"to highest in brackets. Others used {max((s.foreign for s in everyone), default=0):.2f} cores at most; "
        f"{sum(s.again for s in everyone)} turns were taken again.",
        "",
    ]
    foot = ["", f"Seconds to import: {imports}."] if imports else []
    foot += ["", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join([*head, *text, *foot])


def _line(row: str, s: Standing) -> str:
    share = f"{s.share.median:.2f} ({s.share.low:.2f} to {s.share.high:.2f})" if s.share else "-"
    rate = f"{figure(s.rate.median)} ({figure(s.rate.low)} to {figure(s.rate.high)})"
    multiples = [f"{value:.2f}" if value is not None else "-" for value in (s.loop, s.peer)]
    rest = [figure(value) if value is not None else "-" for value in (s.p50, s.p99, s.cpu_us)]
    last = [f"{s.cores:.2f}", f"{s.first:.2f}", "-" if s.mib is None else f"{s.mib:.0f}"]
    return f"| {' | '.join([row, s.name, rate, share, *multiples, *rest, *last])} |"
