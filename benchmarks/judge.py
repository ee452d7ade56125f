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
from benchmarks.rows import parse_row


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
    "| row | contestant | env steps/s | of the limit | x best loop | x best peer | p50 ms | p99 ms | CPU us/step "
    "| cores | first batch s | MiB a worker |"
)
_OVERVIEW = (
    "| row | limit, steps/s | best loop, of the limit | best parallel peer, of the limit | auto, of the limit "
    "| auto x best loop | auto x best peer | workers only | partial | rollout | regret of auto |"
)
IN_FULL = ("cartpole-8", "cartpole-64+mlp", "halfcheetah-8", "atari-8+cnn")  # rows of which a page shows every line


def lines(rows: Sequence[Judged]) -> str:
    """The table with a line for each contestant."""
    text = [_HEAD, "|---|---|" + "---:|" * 10]
    for row in rows:
        text += [_line(row.row, standing) for standing in row.standings]
    return "\n".join(text)


def _line(row: str, s: Standing) -> str:
    share = f"{s.share.median:.2f} ({s.share.low:.2f} to {s.share.high:.2f})" if s.share else "-"
    rate = f"{figure(s.rate.median)} ({figure(s.rate.low)} to {figure(s.rate.high)})"
    multiples = [_two(value) for value in (s.loop, s.peer)]
    rest = [figure(value) if value is not None else "-" for value in (s.p50, s.p99, s.cpu_us)]
    last = [f"{s.cores:.2f}", f"{s.first:.2f}", "-" if s.mib is None else f"{s.mib:.0f}"]
    return f"| {' | '.join([row, s.name, rate, share, *multiples, *rest, *last])} |"


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def overview(rows: Sequence[Judged]) -> str:
    """The table with a line for each row: the limit, the best of others, and Treadle's shares."""
    text = [_OVERVIEW, "|---|---:|---|---|" + "---:|" * 7]
    for row in rows:
        by_name = {standing.name: standing for standing in row.standings}
        limit, auto = by_name.get(Limit.name), by_name.get(AUTO)
        best = [_best(row.standings, loops) for loops in (True, False)]
        ours = [by_name.get(f"Treadle {name}") for name in ("workers only", "partial", "rollout")]
        shares = [_share(standing) for standing in ours]
        regret = (
            "-" if row.regret is None else f"{row.regret.median:.1%} ({row.regret.low:.1%} to {row.regret.high:.1%})"
        )
        auto_is = [_share(auto), _two(auto and auto.loop), _two(auto and auto.peer)]
        first = [row.row, "-" if limit is None else figure(limit.rate.median)]
        text.append(f"| {' | '.join([*first, *best, *auto_is, *shares, regret])} |")
    return "\n".join(text)


def workers_only(rows: Sequence[Judged]) -> str:
    """The table of what has no slot in the caller, as AsyncVectorEnv has none: the time that its batches take beyond
    those of the limit, and its medians as multiples of AsyncVectorEnv's. Empty where they were not there."""
    text = [
        "| row | batch of the limit, us | batch of workers only, us | difference, us "
        "| workers only x Gymnasium Async, of medians: steps/s | p99 | CPU a step |",
        "|---|" + "---:|" * 6,
    ]
    for row in rows:
        by_name = {standing.name: standing for standing in row.standings}
        limit, ours, theirs = (by_name.get(name) for name in (Limit.name, "Treadle workers only", "Gymnasium Async"))
        if limit is None or ours is None or theirs is None:
            continue
        times = [1e6 * parse_row(row.row).n_envs / each.rate.median for each in (limit, ours)]
        p99 = ours.p99 / theirs.p99 if ours.p99 and theirs.p99 else None
        multiples = [ours.rate.median / theirs.rate.median, p99, ours.cpu_us / theirs.cpu_us]
        cells = [*(figure(each) for each in (*times, times[1] - times[0])), *map(_two, multiples)]
        text.append(f"| {' | '.join([row.row, *cells])} |")
    return "\n".join(text) if len(text) > 2 else ""


def arms(rows: Sequence[Judged]) -> str:
    """The table of what `auto` chooses from, and of its choice, as multiples of the best plain loop."""
    names = (*ARMS, AUTO)
    text = [
        "| row | " + " | ".join(name.removeprefix("Treadle ") for name in names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    for row in rows:
        by_name = {standing.name: standing for standing in row.standings}
        found = [by_name.get(name) for name in names]
        if any(each is not None and each.loop is not None for each in found):
            text.append(f"| {row.row} | {' | '.join(_two(each and each.loop) for each in found)} |")
    return "\n".join(text) if len(text) > 2 else ""


def _best(standings: Sequence[Standing], loops: bool) -> str:
    """The best of the other libraries' loops, or of the rest of them, and its share."""
    found = [s for s in standings if not s.name.startswith(("Treadle", "limit")) and (s.name in LOOPS) is loops]
    best = max(found, key=lambda s: s.rate.median, default=None)
    return "-" if best is None else f"{_share(best)} {best.name}"


def _share(standing: Standing | None) -> str:
    return "-" if standing is None or standing.share is None else f"{standing.share.median:.2f}"


def markdown(rows: Sequence[Judged], notes: Sequence[str], facts: Mapping[str, Any], *, full: bool) -> str:
    """What a reader needs to judge it: the machine, the tables (a line for each row, then one for each contestant; not
    full: those of a few rows only), what imports cost, and notes."""
    everyone = [standing for row in rows for standing in row.standings]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    worst, again = max((s.foreign for s in everyone), default=0.0), sum(s.again for s in everyone)
    text = [
        f"{facts['date']}. {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['system']}; "
        f"{versions}.",
        f"{facts['rounds']} rounds of {facts['seconds']:g} s after {facts['warmup']:g} s of warm-up, contestants "
        f"interleaved, workers = {facts['workers']}, load average at start {facts['load_at_start']:g}. Medians, lowest "
        f"to highest in brackets (of the regret: its middle half). Others used {worst:.2f} cores at most; {again} "
        "turns were taken again.",
        "",
        overview(rows),
        *(line for table in (arms(rows), workers_only(rows)) if table for line in ("", table)),
    ]
    shown = [row for row in rows if full or row.row in IN_FULL]
    if shown:
        text += ["", lines(shown)]
    libraries: dict[str, float] = {}
    for standing in everyone:
        if standing.imported > 1e-3:  # else there is nothing that its users import at once
            library = standing.name.split()[0]
            libraries[library] = min(standing.imported, libraries.get(library, standing.imported))
    if libraries:
        text += ["", "Seconds to import: " + ", ".join(f"{name} {took:.2f}" for name, took in libraries.items()) + "."]
    if notes:
        text += ["", *(f"- {note}" for note in notes)]
    return "\n".join(text)
