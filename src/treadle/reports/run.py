"""The contents of a report about one run: its numbers and texts, read from its directory, without any HTML.

Intervals are those of `treadle.sample.scores`: Wilson's score interval of a share (Wilson 1927), and a percentile
bootstrap of a mean (Efron 1979), both at 95 %.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treadle.drawing import BINS
from treadle.errors import UsageError
from treadle.play.episode import SUCCESS_KEYS
from treadle.record.hdf5 import INDEX, library
from treadle.record.journal import Record
from treadle.record.outcomes import Outcome, json_of, outcomes_of, tried
from treadle.record.run_directory import ARGUMENTS, FILMS, LINES, PARTS, SUMMARY
from treadle.record.summary import read_summary, summary_rows
from treadle.reports.inert import Inert
from treadle.sample.scores import ScoreRemark, bootstrap, wilson
from treadle.sample.skipping import by_cause
from treadle.whole_file import opened

ROWS = 1_000  # episodes up to which each has a row in the HTML, and a curve
POINTS = 48  # of a curve
MOST_STEPS = 1 << 24  # of an episode whose rewards are read
ARGUED = ("env_kwargs", "max_episode_steps", "reset_options", "wrappers", "shard")  # arguments that are told
TOLD = ("time", "verdict", "spent", "busy", "on disk", "hash")  # and what of the summary
_FILM = re.compile(r"episode-(\d+)_[\w.+-]*\.(?:mp4|png)")


@dataclass(frozen=True)
class Share:
    """The share `count` of `of`, and the ends `low` and `high` of its interval at 95 %, from 0 to 1."""

    count: int
    of: int
    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    """Statistics of finite numbers.

    Attributes:
        count: how many there are.
        mean: with `low` and `high`, the ends of its interval at 95 %.
        std: the standard deviation of the population.
        least, median, most: quantiles.
        bins: how many numbers lie in each of equal bins.
    """

    count: int
    mean: float
    low: float
    high: float
    std: float
    least: float
    median: float
    most: float
    bins: list[int]


class Curve(NamedTuple):
    """The return so far, at up to `POINTS` steps from the first to the last.

    Attributes:
        points: a byte for each of these steps, 0 for `low` and 255 for `high`.
        low, high: the ends of the scale; 0 is between them.
    """

    points: bytes
    low: float
    high: float


class Run:
    """A run's directory, read. All texts are inert; they may hold markup, which the page escapes.

    Attributes:
        name: of the directory.
        policy, env, seed: those of the run, as texts; "unknown ..." if the directory does not name them.
        command: the command line that made the run; "": unknown.
        outcomes: of all episodes that are known, in the order of indices.
        played: outcomes of the episodes that were not left out.
        left_out: indices of the others.
        wanted: number of episodes that were asked for; None: steps decide, or it is unknown.
        over: True once the run is complete.
        success: rate of success of the episodes played; None: the environment does not say. An episode that says
            nothing where others do is not a success.
        counted: the same rate if episodes that were left out count as failures; None: `success` is None, or no episode
            was left out.
        returns, lengths: of the episodes played; None: no finite value is known.
        odd: indices of episodes whose return is not finite; `returns` leaves them out.
        tasks: index -> task; {}: the run has no tasks.
        causes: (cause, indices) of the episodes that were left out.
        remarks: of the run, and of files that could not be read.
        replayed: how many episodes were played again, and how many of them were unequal.
        curves: index -> curve, of all episodes or of those that `_shown` names.
        films: index -> file.
        facts: (name, value), for the end of the page.

    Raises:
        UsageError: the path is not a directory, or holds nothing of a run.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise UsageError(f"{directory} is not a directory")
        found, unread = outcomes_of(directory)
        if not found and (data := data_of(directory)):
            with tried(data.name, unread):
                found = [each for each, _ in outlines(data)]
        begun, said = json_of(directory, ARGUMENTS, unread).get("arguments"), json_of(directory, SUMMARY, [])
        begun = begun if isinstance(begun, dict) else {}
        if not (begun or said or found):
            raise UsageError(f"{directory} holds nothing of a run: no {ARGUMENTS}, {SUMMARY}, {LINES} or dataset")
        self._inert = Inert(directory, begun)
        text, arguments = self._inert.text, self._inert.value(begun)
        self.outcomes, self.played = found, [each for each in found if each.lost is None]
        self.name = text(directory.resolve().name) or "run"
        self.policy = text(said.get("policy") or arguments.get("policy") or "unknown policy")
        self.env = text(said.get("env_id") or arguments.get("env") or "unknown environment")
        root = arguments.get("seed", said.get("seed"))
        self.seed, self._root = text("unknown" if root is None else root), root if isinstance(root, int) else 0
        self.command = self._inert.command(str(said.get("command") or ""))
        self.wanted = wanted_of(begun)
        whole = bool(said) and not (directory / PARTS).exists()
        self.over = whole or not begun or self.wanted == len(found)
        self.left_out = [each.index for each in found if each.lost is not None]
        self.success, self.returns, self.lengths = self._scored(self.played)
        lacks, known = len(self.left_out), self.success
        self.counted = share(known.count, known.of + lacks) if known and lacks else None
        self.odd = [each.index for each in self.played if each.finite is None]
        self.tasks = self._tasks(arguments)
        causes = by_cause(each.lost for each in found if each.lost is not None)
        self.causes = [(text(cause), [each.index for each in same]) for cause, same in causes]
        self.remarks = [each for key in ("remarks", "warnings") for each in self._remarked(said.get(key))]
        self.replayed = [len(_list(said.get("verified"), key)) for key in ("episodes", "unequal")]
        self.films = films_of(directory)
        self.facts = [*self._facts(directory, arguments, said.get("versions"))]
        wanted = self._shown()
        self.curves = {
            index: drawn for index, rewards in rewards_of(directory, wanted, unread) if (drawn := curve(rewards))
        }
        self.remarks[:0] = [ScoreRemark(text(each)) for each in dict.fromkeys(unread)]

    @property
    def failed(self) -> list[int]:
        """Indices of the episodes played without success; [] if the environment does not say."""
        return [] if self.success is None else [each.index for each in self.played if not each.success]

    @property
    def best(self) -> list[int]:
        """Indices of the episodes with a finite return, the highest return first."""
        finite = [(-each.finite, each.index) for each in self.played if each.finite is not None]
        return [index for _, index in sorted(finite)]

    @property
    def replay(self) -> str:
        """The command that plays an episode again, without the episode, for the folder that holds the directory."""
        return shlex.join(["treadle", "replay", f"./{self.name}" if self.name.startswith("-") else self.name])

    def cause(self, each: Outcome) -> str:
        """Return the reason why an episode was left out; "": it was played."""
        return "" if each.lost is None else self._inert.text(by_cause([each.lost])[0][0])

    def _scored(self, played: Sequence[Outcome]) -> tuple[Share | None, Spread | None, Spread | None]:
        """Return (rate of success, returns, lengths) of these episodes; None for each that is unknown."""
        told = any(each.success is not None for each in played)
        rate = share(sum(each.success is True for each in played), len(played)) if told else None
        returns = spread([each.total_reward for each in played], self._root)
        return rate, returns, spread([each.length for each in played], self._root)

    def _tasks(self, arguments: dict[str, Any]) -> dict[int, str]:
        """Return index -> task of each episode; {}: the run has no tasks."""
        names = list(_list(arguments, "tasks"))
        each = max(1, (self.wanted or 0) // max(1, len(names)))
        return {at.index: names[min(at.index // each, len(names) - 1)] for at in self.outcomes} if names else {}

    def by_task(self) -> Iterator[tuple[str, Share | None, Spread | None]]:
        """Yield (task, rate of success, returns) of the first `ROWS` // 10 tasks; nothing if there is only one task."""
        names = [*dict.fromkeys(self.tasks.values())]
        for name in names[: ROWS // 10] if len(names) > 1 else []:
            yield name, *self._scored([each for each in self.played if self.tasks[each.index] == name])[:2]

    def _remarked(self, said: Any) -> Iterator[ScoreRemark]:
        """Yield the remarks of a list in the summary; nothing for another value."""
        for each in said if isinstance(said, list) else []:
            about = each if isinstance(each, dict) else {"text": each}
            indices = tuple(index for index in _list(about, "episodes") if type(index) is int)
            yield ScoreRemark(self._inert.text(about.get("text", "")), indices)

    def _shown(self) -> list[Outcome]:
        """Return the episodes whose curves a page has: all, or of many the best, worst, remarked, failed, and some."""
        if len(self.played) <= ROWS:
            return self.played
        best, few = self.best, ROWS // 20
        remarked = [index for each in self.remarks for index in each.episodes]
        wanted = {*best[:few], *best[-few:], *remarked[: ROWS // 5], *self.failed[: ROWS // 2]}
        wanted |= {each.index for each in self.played[:: -(-len(self.played) // (ROWS // 5))]}
        return [each for each in self.played if each.index in wanted]

    def _facts(self, directory: Path, arguments: dict[str, Any], versions: Any) -> Iterator[tuple[str, str]]:
        for key in ARGUED:
            if value := arguments.get(key):
                yield key.replace("_", " "), self._inert.text(value)
        if isinstance(versions, dict):
            yield "versions", self._inert.text(", ".join(f"{name} {version}" for name, version in versions.items()))
        with tried(SUMMARY, []):
            told = summary_rows(read_summary(directory / SUMMARY))
            yield from ((what, self._inert.text(value)) for what, value in told if what in TOLD)


def _list(said: Any, key: str) -> Any:
    """Return the list or dict below a key; [] for any other value."""
    found = said.get(key) if isinstance(said, dict) else None
    return found if isinstance(found, list | dict) else []


def wanted_of(arguments: dict[str, Any]) -> int | None:
    """Return the number of episodes that a run, or its shard, was asked for.

    None: steps decide, or the arguments do not say.
    """
    wanted, shard = arguments.get("episodes"), re.fullmatch(r"(\d+)/([1-9]\d*)", str(arguments.get("shard")))
    if type(wanted) is not int or wanted < 0:
        return None
    return len(range(int(shard[1]), wanted, int(shard[2]))) if shard else wanted


def films_of(directory: Path) -> dict[int, Path]:
    """Return index -> film of a run; of several films of an episode, the first by name."""
    found: dict[int, Path] = {}
    for path in sorted((directory / FILMS).glob("episode-*_*")):
        named = _FILM.fullmatch(path.name)
        if named and path.is_file() and directory.resolve() in path.resolve().parents:
            found.setdefault(int(named[1]), path)
    return found


def share(count: int, of: int) -> Share | None:
    """Return the share with Wilson's interval at 95 %; None: `of` is 0."""
    return Share(count, of, *wilson(count, of)) if of else None


def spread(values: Iterable[float | None], seed: int = 0) -> Spread | None:
    """Return statistics of those values that are finite numbers. `seed`: of the bootstrap.

    None: no value is finite, or the mean or its interval is not.
    """
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
        bins = np.histogram(finite, edges)[0].tolist()
        mean, std = float(finite.mean()), float(finite.std())
    if not math.isfinite(mean + low + high):
        return None
    return Spread(len(finite), mean, low, high, std, least, median, most, bins)


def curve(rewards: np.ndarray) -> Curve | None:
    """Return the curve of the return so far; None: the sum of rewards is not finite, or `rewards` is empty."""
    total = np.cumsum(np.asarray(rewards, np.float64))
    if not len(total) or not np.all(np.isfinite(total)):
        return None
    shown = total[np.linspace(0, len(total) - 1, min(POINTS, len(total))).round().astype(int)]
    low, high = min(0.0, float(shown.min())), max(0.0, float(shown.max()))
    scaled = (shown - low) / (high - low) * 255 if high > low else np.zeros(len(shown))
    return Curve(scaled.round().astype(np.uint8).tobytes(), low, high)


def gap(a: Outcome, b: Outcome) -> float | None:
    """Return the return of `a` minus that of `b`; None: one of them is unknown or not finite."""
    return None if a.finite is None or b.finite is None else a.finite - b.finite


def paired(first: Run, second: Run) -> list[tuple[Outcome, Outcome]]:
    """Return pairs of episodes of the two runs that began from the same seed, in the same task.

    Pairs in which one alone succeeds come first, then those with the largest gap. Raises UsageError without any pair.
    """

    def key(run: Run, each: Outcome) -> tuple[str, int | None]:
        return run.tasks.get(each.index, ""), each.seed

    found = {key(second, each): each for each in second.played if each.seed is not None}
    pairs = [(each, found[key(first, each)]) for each in first.played if key(first, each) in found]
    if not pairs:
        raise UsageError(f"{first.name} and {second.name} have no episode of the same seed: nothing can be compared")
    return sorted(pairs, key=lambda pair: (pair[0].success == pair[1].success, -abs(gap(*pair) or 0.0), pair[0].index))


# -- what is stored of each step, in a file that may be another user's -----------------------------------------------


def data_of(directory: Path) -> Path | None:
    """Return the file of the stored steps; None: the directory has none."""
    for pattern in ("treadle/*/data/*.hdf5", "data/*.hdf5", "*.hdf5", "*/data/*.hdf5"):
        for path in sorted(directory.glob(pattern)):
            if path.resolve().is_relative_to(directory.resolve()):
                return path
    return None


def rewards_of(directory: Path, outcomes: Iterable[Outcome], unread: list[str]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (index, array[steps] of rewards) of those of these episodes whose rewards are kept.

    Texts about files that cannot be read are added to `unread`.
    """
    stored = dict[int, int]()
    for each in outcomes:
        if each.record is not None:
            with tried("a journal", unread):
                if (found := _of_record(each.record)) is not None:
                    yield each.index, found
        elif each.number is not None:
            stored[each.number] = each.index
    if stored and (data := data_of(directory)):
        with tried(data.name, unread):
            for each, rewards in outlines(data, stored):
                if each.number is not None and each.index in (each.number, stored[each.number]):
                    yield stored[each.number], rewards


def outlines(path: Path, numbers: Iterable[int] | None = None) -> Iterator[tuple[Outcome, np.ndarray]]:
    """Yield (outcome, rewards) of episodes of a data file, which may be a stranger's.

    `numbers`: of the episodes in the file; None: all. An episode is left out if it is not there, is longer than
    `MOST_STEPS`, or its data lie in another file.

    Raises MissingExtra; and OSError, ValueError, RuntimeError or KeyError if the file cannot be read.
    """
    opened(path).close()
    with library().File(path, "r", locking=False) as file:
        for number in range(len(file)) if numbers is None else numbers:
            group = _own(file, f"episode_{number}")
            if (rewards := _row(group, "rewards")) is None:
                continue
            said = [found for key in SUCCESS_KEYS if (found := _row(_own(group, "infos"), key)) is not None]
            index, seed = (group.attrs.get(name) for name in (INDEX, "seed"))
            over = _row(group, "terminations")
            yield (
                Outcome(
                    number if index is None else int(index),
                    None if seed is None else int(seed),
                    float(rewards.sum()),
                    len(rewards),
                    "terminated" if over is None or any(over[-1:]) else "truncated",
                    next((bool(each[-1]) for each in said if len(each)), None),
                    number=number,
                ),
                rewards,
            )


def _own(group: Any, name: str) -> Any:
    """Return the value that a group holds under this name in this file; None: it holds none."""
    if not isinstance(group, library().Group):
        return None
    link = group.get(name, getlink=True) if name in group else None
    return group[name] if isinstance(link, library().HardLink) else None


def _row(group: Any, name: str) -> np.ndarray | None:
    """Return the numbers under this name, one a step; None: there are none in this file, or more than `MOST_STEPS`."""
    found = _own(group, name)
    there = isinstance(found, library().Dataset) and not found.is_virtual and not found.external
    if not there or found.ndim != 1 or found.size > MOST_STEPS or found.dtype.kind not in "biuf":
        return None
    values: np.ndarray = found[()]
    return values


def _of_record(record: Record) -> np.ndarray | None:
    """Return the rewards of an episode in a journal; None: it has none, or more than `MOST_STEPS`."""
    head, data = record.sections
    at = 0
    for path, code, shape, rows, sizes in json.loads(bytes(head))[1]:
        if path == ["rewards"] and np.dtype(code).kind in "biuf" and shape[0] <= MOST_STEPS:
            count = int(np.dtype(code).itemsize * shape[0])
            pieces = [data[at + sum(sizes[:i]) : at + sum(sizes[: i + 1])] for i in range(len(sizes))]
            plain = [zlib.decompressobj().decompress(piece, count) if rows else bytes(piece) for piece in pieces]
            return np.frombuffer(b"".join(plain)[:count], code)
        at += sum(sizes)
    return None
