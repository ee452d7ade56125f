"""The numbers of a report, and what it says in words: a function of a run's directory, without any HTML.

Intervals are those of `treadle.sample.scores`: Wilson's score interval of a share (Wilson 1927), and a percentile
bootstrap of a mean (Efron 1979), both at 95 %.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import UsageError
from treadle.progress import duration
from treadle.record.summary import size
from treadle.reports.inert import Inert
from treadle.reports.reading import ENDS, Cause, Played, Run
from treadle.sample.scores import ScoreRemark, bootstrap, wilson

ROWS = 1_000  # episodes up to which each has a row in the HTML, and a curve
POINTS = 48  # of a curve
EXTREME = 10  # episodes that are called the best, and the worst
BINS = 32


@dataclass(frozen=True)
class Share:
    """`count` of `of`, and the interval of that share."""

    count: int
    of: int
    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    """Of finite numbers: mean with its interval, standard deviation of the population, quantiles, and a histogram:
    `bins[i]` of them lie between `edges[i]` and `edges[i + 1]`."""

    count: int
    mean: float
    low: float
    high: float
    std: float
    least: float
    median: float
    most: float
    bins: tuple[int, ...]
    edges: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """The return so far, at up to `POINTS` steps from the first to the last: bytes from `low` to `high`."""

    points: bytes
    low: float
    high: float


@dataclass(frozen=True)
class Group:
    """Failures of one cause. A message that they do not share is not told."""

    cause: Cause
    episodes: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """What a page shows of one run. Texts are inert; they may hold markup, which the page escapes.

    Attributes:
        name: the directory's own.
        success: of those played; None: the environment does not say. An episode that says nothing where others do is
            no success.
        counted: the same if those that could not be played count as failures; None: there are none.
        odd: episodes whose return is no finite number; they are in no mean.
        replayed: how many were played again, and how many of them were unequal.
        curves: by index, of all episodes or of those that `chosen` names.
        facts: (what, value), for the end of the page.
    """

    name: str
    policy: str
    env: str
    seed: str
    command: str
    episodes: tuple[Played, ...]
    wanted: int | None
    over: bool
    success: Share | None
    counted: Share | None
    returns: Spread | None
    lengths: Spread | None
    odd: tuple[int, ...]
    tasks: tuple[tuple[str, Share | None, Spread | None], ...]
    groups: tuple[Group, ...]
    remarks: tuple[ScoreRemark, ...]
    replayed: tuple[int, int]
    curves: dict[int, Curve]
    films: dict[int, Path]
    facts: tuple[tuple[str, str], ...]

    @property
    def played(self) -> list[Played]:
        """Those that were not left out."""
        return [each for each in self.episodes if each.end != ENDS[2]]

    @property
    def left_out(self) -> list[int]:
        """Indices of those that could not be played."""
        return [each.index for each in self.episodes if each.end == ENDS[2]]

    @property
    def failed(self) -> list[int]:
        """Indices of those that were played and were no success; [] where the environment does not say."""
        return [] if self.success is None else [each.index for each in self.played if not each.success]

    @property
    def best(self) -> list[int]:
        """Indices by return, the highest first; of those with a finite one."""
        finite = [each for each in self.played if each.returns is not None and math.isfinite(each.returns)]
        return [each.index for each in sorted(finite, key=lambda each: (-float(each.returns or 0), each.index))]

    @property
    def replay(self) -> str:
        """The command that plays an episode again, without the episode, for the folder that holds the directory."""
        return shlex.join(["treadle", "replay", f"./{self.name}" if self.name.startswith("-") else self.name])


def model_of(directory: str | Path) -> Model:
    """The model of a run. Raises UsageError: there is none in the directory."""
    run = Run(Path(directory))
    inert, said, played = run.inert, run.summary, [each for each in run.episodes if each.end != ENDS[2]]
    lacks, root = len(run.episodes) - len(played), run.arguments.get("seed", said.get("seed"))
    seed = root if isinstance(root, int) else 0
    successes = [each.success for each in played]
    success = share(successes.count(True), len(played)) if any(each is not None for each in successes) else None
    returns = [each.returns for each in played]
    name = inert.text(run.directory.resolve().name)
    names = sorted({each.task for each in played if each.task})
    model = Model(
        name=name or "run",
        policy=inert.text(said.get("policy") or run.arguments.get("policy") or "unknown policy"),
        env=inert.text(said.get("env_id") or run.arguments.get("env") or "unknown environment"),
        seed=inert.text("unknown" if root is None else root),
        command=inert.command(str(said.get("command") or "")),
        episodes=run.episodes,
        wanted=run.wanted,
        over=run.over,
        success=success,
        counted=share(success.count, success.of + lacks) if success and lacks else None,
        returns=spread(returns, seed),
        lengths=spread([each.length for each in played], seed),
        odd=tuple(each.index for each in played if each.returns is not None and not math.isfinite(each.returns)),
        tasks=tuple(_task(name, [each for each in played if each.task == name], seed) for name in names[: ROWS // 10])
        if len(names) > 1
        else (),
        groups=_groups(run.episodes),
        remarks=_remarks(run),
        replayed=_replayed(said.get("verified")),
        curves={},
        films=run.films(),
        facts=tuple(_facts(run, inert)),
    )
    for index, rewards in run.rewards(_chosen(model)):
        if (drawn := curve(rewards)) is not None:
            model.curves[index] = drawn
    if run.unread:  # what rewards could not be read is known by now
        told = tuple(ScoreRemark(text) for text in dict.fromkeys(run.unread))
        model = Model(**{**vars(model), "remarks": (*told, *model.remarks)})
    return model


def share(count: int, of: int) -> Share | None:
    """None: of nothing."""
    return Share(count, of, *wilson(count, of)) if of else None


def spread(values: Iterable[float | None], seed: int = 0) -> Spread | None:
    """Of those that are finite numbers; None: none is, or their mean is not. `seed`: of the bootstrap."""
    finite = np.array([value for value in values if value is not None and math.isfinite(value)], np.float64)
    if not len(finite):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = bootstrap(finite, seed)
        least, median, most = (float(each) for each in np.quantile(finite, [0, 0.5, 1]))
        whole = bool(np.all(finite == np.floor(finite))) and most - least < BINS and abs(least) < 2**50
        edges = np.arange(least - 0.5, most + 1) if whole else np.linspace(least, most, BINS + 1)
        if not np.all(np.diff(edges) > 0):  # too close together, or too far apart, for so many
            edges = np.array([least, max(most, np.nextafter(least, math.inf))])
        bins = np.histogram(finite, edges)[0]
        mean, std = float(finite.mean()), float(finite.std())
    if not math.isfinite(mean + low + high):
        return None
    return Spread(
        len(finite), mean, low, high, std, least, median, most, tuple(map(int, bins)), tuple(map(float, edges))
    )


def curve(rewards: np.ndarray) -> Curve | None:
    """None: there are no rewards, or one is no finite number."""
    total = np.cumsum(np.asarray(rewards, np.float64))
    if not len(total) or not np.all(np.isfinite(total)):
        return None
    shown = total[np.linspace(0, len(total) - 1, min(POINTS, len(total))).round().astype(int)]
    low, high = min(0.0, float(shown.min())), max(0.0, float(shown.max()))
    scaled = (shown - low) / (high - low) * 255 if high > low else np.zeros(len(shown))
    return Curve(scaled.round().astype(np.uint8).tobytes(), low, high)


def _chosen(model: Model) -> list[int]:
    """Whose curves a page has: all, or of many those that a reader asks for, and a sample."""
    every = [each.index for each in model.played]
    if len(every) <= ROWS:
        return every
    best, few = model.best, ROWS // 20
    remarked = [index for each in model.remarks for index in each.episodes]
    wanted = [*best[:few], *best[-few:], *remarked[: ROWS // 5], *model.failed[: ROWS // 2]]
    wanted += every[:: -(-len(every) // (ROWS // 5))]
    there = set(every)
    return [index for index in dict.fromkeys(wanted) if index in there]


def _task(name: str, episodes: Sequence[Played], seed: int) -> tuple[str, Share | None, Spread | None]:
    told = any(each.success is not None for each in episodes)
    rate = share(sum(each.success is True for each in episodes), len(episodes)) if told else None
    return name, rate, spread([each.returns for each in episodes], seed)


def _groups(episodes: Sequence[Played]) -> tuple[Group, ...]:
    found: dict[Cause, list[Played]] = {}
    for each in episodes:
        if each.cause is not None:
            found.setdefault(each.cause, []).append(each)
    groups = []
    for cause, same in sorted(found.items(), key=lambda item: -len(item[1])):
        messages = {each.cause.message for each in same if each.cause}
        told = cause if len(messages) == 1 else Cause(cause.kind, cause.place)
        groups.append(Group(told, tuple(each.index for each in same)))
    return tuple(groups)


def _remarks(run: Run) -> tuple[ScoreRemark, ...]:
    """What the run has remarked on."""
    found = []
    for key in ("remarks", "warnings"):
        said = run.summary.get(key)
        for each in said if isinstance(said, list) else []:
            about = each if isinstance(each, dict) else {"text": each}
            episodes = about.get("episodes")
            indices = tuple(index for index in episodes if type(index) is int) if isinstance(episodes, list) else ()
            found.append(ScoreRemark(run.inert.text(about.get("text", "")), indices))
    return tuple(found)


def _replayed(said: Any) -> tuple[int, int]:
    again, unequal = (said.get(key) if isinstance(said, dict) else None for key in ("episodes", "unequal"))
    return tuple(len(each) if isinstance(each, list) else 0 for each in (again, unequal))  # type: ignore[return-value]


def _facts(run: Run, inert: Inert) -> Iterable[tuple[str, str]]:
    said = run.summary
    for key in ("env_kwargs", "max_episode_steps", "reset_options", "wrappers", "imports", "shard"):
        if value := run.arguments.get(key):
            yield key.replace("_", " "), inert.text(value)
    versions = said.get("versions")
    if isinstance(versions, dict):
        yield "versions", inert.text(", ".join(f"{name} {version}" for name, version in versions.items()))
    machine = said.get("machine")
    if machine:
        yield "machine", inert.text(machine)
    seconds, rate, disk, busy = (said.get(key) for key in ("seconds", "steps_per_second", "disk_bytes", "time_shares"))
    if isinstance(seconds, int | float) and isinstance(rate, int | float) and math.isfinite(seconds):
        yield "time", f"{duration(seconds)}, {rate:,.0f} steps/s"
    if isinstance(busy, dict) and busy:
        parts = [(name, each) for name, each in busy.items() if isinstance(each, int | float)]
        yield "time spent on", inert.text(", ".join(f"{name} {each:.0%}" for name, each in parts))
    if isinstance(disk, int):
        yield "on disk", size(disk)
    if said.get("hash"):
        yield "hash", inert.text(said["hash"])


@dataclass(frozen=True)
class Pairs:
    """Two runs whose episodes began from the same seeds.

    Attributes:
        pairs: the first one's episode and the second one's, by the first one's index.
        wins, ties, losses: pairs in which the first one's return is greater, equal, smaller.
        difference: mean of the first one's return minus the second one's, over pairs of finite ones.
        only_first, only_second: pairs in which it alone was a success.
    """

    first: Model
    second: Model
    pairs: tuple[tuple[Played, Played], ...]
    wins: int
    ties: int
    losses: int
    difference: Spread | None
    only_first: int
    only_second: int


def paired(first: Model, second: Model) -> Pairs:
    """Raises UsageError: no episode of both began from the same seed."""
    found = {(each.task, each.seed): each for each in second.played if each.seed is not None}
    both = ((each, found.get((each.task, each.seed or 0))) for each in first.played if each.seed is not None)
    pairs = tuple((a, b) for a, b in both if b is not None)
    if not pairs:
        raise UsageError(f"{first.name} and {second.name} have no episode of the same seed: nothing can be compared")
    gaps = [gap(*pair) for pair in pairs]
    told = [gap for gap in gaps if gap is not None]
    wins, losses = sum(gap > 0 for gap in told), sum(gap < 0 for gap in told)
    return Pairs(
        first, second, pairs, wins, len(told) - wins - losses, losses, spread(told),
        sum(a.success is True and b.success is not True for a, b in pairs),
        sum(b.success is True and a.success is not True for a, b in pairs),
    )  # fmt: skip


def gap(a: Played, b: Played) -> float | None:
    """What the first one's return is more; None: one of them is no finite number."""
    if a.returns is None or b.returns is None or not math.isfinite(a.returns - b.returns):
        return None
    return a.returns - b.returns
