"""What lies in a run's directory, as far as it can be read: while the run goes on, after a kill, in directories of
earlier versions, and of strangers. Nothing is written, imported or unpickled, and no name in a file leads outside."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import UsageError
from treadle.play.episode import SUCCESS_KEYS
from treadle.record.hdf5 import INDEX, library
from treadle.record.journal import Record, journals, read
from treadle.record.parts import KEPT
from treadle.record.run_directory import ARGUMENTS, FILMS, LINES, PARTS, SKIPPED, SUMMARY, RunFiles, below
from treadle.record.summary import unsealed
from treadle.reports.inert import Inert
from treadle.repro import MOST_BYTES
from treadle.whole_file import opened, read_json

ENDS = ("terminated", "truncated", "error")
MOST_STEPS = 1 << 24  # of an episode whose rewards are read
_DAMAGE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, RuntimeError, OverflowError)
_CAUSE = re.compile(r"(?P<kind>[\w.]+)(?:: (?P<message>.*?))?(?: \(?(?P<place>[^\s()]+:\d+)\)?)?", re.DOTALL)
_FILM = re.compile(r"episode-(\d+)_[\w.+-]*\.(?:mp4|png)")


@dataclass(frozen=True)
class Cause:
    """Why an episode could not be played. `message` is in one line; `place` is such as "reach.py:31", or ""."""

    kind: str
    place: str = ""
    message: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.kind}{self.message and ': '}{self.message}{self.place and ' '}{self.place}"


@dataclass(frozen=True)
class Played:
    """An episode. `returns`: its undiscounted return, which may be NaN; None, as `length` and `seconds`: unknown."""

    index: int
    seed: int | None
    returns: float | None
    length: int | None
    end: str
    success: bool | None = None
    seconds: float | None = None
    cause: Cause | None = None
    task: str = ""


class Run:
    """A run's directory, read.

    Attributes:
        directory: where it is.
        inert: makes its texts harmless; all that are here are.
        arguments: of `run.json`, {} without it; secrets are hidden.
        summary: what `summary.json` says, {} without it; its texts are as they lie there.
        episodes: by index.
        wanted: how many were asked for; None: steps decide, or nobody knows.
        over: is there nothing left to be made?
        unread: what could not be read, a line each.

    Raises:
        UsageError: it is no directory, or holds nothing of a run.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise UsageError(f"{directory} is no directory")
        self.directory, self.unread, self.inert = directory, list[str](), Inert(directory, {})
        self._records: dict[int, Record] = {}  # of what is not merged yet
        self._stored: dict[int, int] = {}  # index -> number in the data file
        begun: Any = {}
        if (directory / ARGUMENTS).exists():
            with self._tried(ARGUMENTS):
                begun = dict(RunFiles(directory).written()[0]["arguments"])
        self.inert = Inert(directory, begun)
        self.arguments, self.summary = self.inert.value(begun), self._json(directory / SUMMARY)
        episodes = self._lines() if (directory / LINES).exists() else self._of_dataset()
        self.episodes = tuple(sorted(episodes, key=lambda each: each.index))
        if not (begun or self.summary or episodes):
            raise UsageError(f"{directory} holds nothing of a run: no {ARGUMENTS}, {SUMMARY}, {LINES} or dataset")
        wanted = begun.get("episodes")
        self.wanted = wanted if type(wanted) is int and wanted >= 0 else None
        shard = re.fullmatch(r"(\d+)/([1-9]\d*)", str(begun.get("shard")))
        if shard and self.wanted is not None:
            self.wanted = len(range(int(shard[1]), self.wanted, int(shard[2])))
        whole = bool(self.summary) and not (directory / PARTS).exists()
        self.over = whole or not begun or self.wanted == len(episodes)

    @contextmanager
    def _tried(self, name: str) -> Iterator[None]:
        """In the block a file is read; that it cannot be read is noted."""
        try:
            yield
        except _DAMAGE as error:
            self.unread.append(self.inert.text(f"{name} could not be read ({type(error).__name__}: {error})"))

    def _json(self, path: Path) -> dict[str, Any]:
        """{}: there is none, or it is damaged."""
        if path.exists():
            with self._tried(path.name):
                content = read_json(path, MOST_BYTES)
                return unsealed(content) if isinstance(content, dict) else {"skipped": content}
        return {}

    def _lines(self) -> list[Played]:
        """Of `episodes.jsonl`; of an index that is there twice the later line."""
        found, bad = dict[int, Played](), 0
        with self._tried(LINES), opened(self.directory / LINES) as file:
            for line in file:
                try:
                    each = self._of_line(json.loads(line))
                except _DAMAGE:
                    bad += line.endswith(b"\n")  # the last one may just be written
                    continue
                found[each.index] = each
        self.unread += [f"{bad:,} lines of {LINES} could not be read"] * bool(bad)
        if not self._noted():  # steps alone are stored, in the order of indices
            played = sorted(each.index for each in found.values() if each.end != ENDS[2])
            self._stored = {index: number for number, index in enumerate(played)}
        return list(found.values())

    def _of_line(self, said: dict[str, Any]) -> Played:
        end, success, error = said.get("end"), said.get("success"), said.get("error")
        total, length, seconds = (_number(said.get(key)) for key in ("return", "length", "seconds"))
        return Played(
            int(said["index"]),
            None if said.get("seed") is None else int(said["seed"]),
            math.nan if total is None and end in ENDS[:2] else total,
            None if length is None else int(length),
            end if end in ENDS else ENDS[2] if error else ENDS[0],
            success if isinstance(success, bool) else None,
            seconds,
            self._cause(error) if error or end == ENDS[2] else None,
            self.inert.text(said.get("task") or ""),
        )

    def _cause(self, error: Any) -> Cause:
        """Of a text such as "KeyError: 'corner' reach.py:31"."""
        said = self.inert.text(error or "unknown")
        found = _CAUSE.fullmatch(said)
        if found is None:
            return Cause("error", "", said)
        return Cause(found["kind"], (found["place"] or "").rpartition("/")[2], found["message"] or "")

    def _noted(self) -> list[Played]:
        """Of the notes beside a dataset, and of what is not merged yet."""
        found, lost = dict[int, Played](), list[int | None]()
        kept, folder = self.directory / KEPT, self.directory / PARTS
        for path in [kept] * kept.exists() + journals(folder):
            with self._tried(path.name):
                below(self.directory, str(path.relative_to(self.directory)))
                for record in read(path, lost=lost):
                    note = record.note
                    end = ENDS[1] if note.truncated and not note.terminated else ENDS[0]
                    each = Played(note.index, note.seed, note.total_reward, note.length, end, note.success)
                    found[note.index] = each
                    if path != kept:
                        self._records[note.index] = record
                    else:
                        self._stored[note.index] = len(self._stored)
        self.unread += [f"{len(lost):,} stored episodes are damaged"] * bool(lost)
        return list(found.values())

    def _data(self) -> Path | None:
        """The file with what is stored of each step; None: there is none."""
        for pattern in ("treadle/*/data/*.hdf5", "data/*.hdf5", "*.hdf5", "*/data/*.hdf5"):
            for path in sorted(self.directory.glob(pattern)):
                with self._tried(path.name):
                    return below(self.directory, str(path.relative_to(self.directory)))
        return None

    def _outlined(self) -> list[Played]:
        """Of the data file alone."""
        path, found = self._data(), list[Played]()
        if path is not None:
            with self._tried(path.name):
                for number, each, _ in outlines(path):
                    found.append(each)
                    self._stored[each.index] = number
        return found

    def _left_out(self, said: Any) -> list[Played]:
        """Of what a summary, or the parts, say of episodes that failed."""
        found = []
        for each in said if isinstance(said, list) else []:
            with self._tried("an episode that was left out"):
                kind, line = each.get("kind") or "", each.get("line")
                place = f"{each.get('file', '').replace(chr(92), '/').rpartition('/')[2]}:{line}" if line else ""
                told = Cause(self.inert.text(kind), self.inert.text(place), self.inert.text(each.get("message", "")))
                cause = told if kind else self._cause(each["cause"])
                found.append(Played(int(each["index"]), int(each["seed"]), None, None, ENDS[2], cause=cause))
        return found

    def _of_dataset(self) -> list[Played]:
        """Those that are stored, and those that were left out."""
        episodes, parts = self._noted() or self._outlined(), self.directory / PARTS
        said = self._json(parts / SKIPPED) if parts.exists() else {}
        there = {each.index for each in episodes}
        lacks = self._left_out(said.get("skipped", self.summary.get("skipped")))
        return [*episodes, *(each for each in lacks if each.index not in there)]

    def rewards(self, indices: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Of episodes with these indices, as far as they are kept: (index, float array[steps])."""
        wanted, path = list(indices), self._data()
        for index in wanted:
            if index in self._records:
                with self._tried("a journal"):
                    if (found := _rewards(self._records[index])) is not None:
                        yield index, found
        numbers = {
            self._stored[index]: index for index in wanted if index in self._stored and index not in self._records
        }
        if path is not None and numbers:
            with self._tried(path.name):
                for number, each, rewards in outlines(path, numbers):
                    if each.index in (number, numbers[number]):
                        yield numbers[number], rewards

    def films(self) -> dict[int, Path]:
        """By index; of several of an episode the first by name."""
        found: dict[int, Path] = {}
        for path in sorted((self.directory / FILMS).glob("episode-*_*")):
            named = _FILM.fullmatch(path.name)
            if named and path.is_file() and self.directory.resolve() in path.resolve().parents:
                found.setdefault(int(named[1]), path)
        return found


def outlines(path: Path, numbers: Iterable[int] | None = None) -> Iterator[tuple[int, Played, np.ndarray]]:
    """Of episodes of a data file, which may be somebody else's: number, what is known, rewards. `numbers`: None: all.
    One that is not there, is longer than `MOST_STEPS`, or whose data lie in another file, is left out.

    Raises OSError, ValueError, RuntimeError or KeyError: the file cannot be read.
    """
    with opened(path):
        pass
    with library().File(path, "r", locking=False) as file:
        for number in range(len(file)) if numbers is None else numbers:
            group = _own(file, f"episode_{number}")
            if (rewards := _row(group, "rewards")) is None:
                continue
            infos = _own(group, "infos")
            said = (found for key in SUCCESS_KEYS if (found := _row(infos, key)) is not None and len(found))
            index, seed = (group.attrs.get(name) for name in (INDEX, "seed"))
            cut, over = (_row(group, name) for name in ("truncations", "terminations"))
            truncated = cut is not None and any(cut[-1:]) and not (over is not None and any(over[-1:]))
            yield number, Played(
                number if index is None else int(index), None if seed is None else int(seed), float(rewards.sum()),
                len(rewards), ENDS[truncated], next((bool(each[-1]) for each in said), None),
            ), rewards  # fmt: skip


def _own(group: Any, name: str) -> Any:
    """What a group holds under this name, in this file; None: nothing."""
    if not isinstance(group, library().Group):
        return None
    link = group.get(name, getlink=True) if name in group else None
    return group[name] if isinstance(link, library().HardLink) else None


def _row(group: Any, name: str) -> np.ndarray | None:
    """The numbers, one a step; None: there are none in this file."""
    found = _own(group, name)
    there = isinstance(found, library().Dataset) and not found.is_virtual and not found.external
    if not there or found.ndim != 1 or found.size > MOST_STEPS or found.dtype.kind not in "biuf":
        return None
    values: np.ndarray = found[()]
    return values


def _rewards(record: Record) -> np.ndarray | None:
    """Of an episode in a journal; None: it has none, or more than `MOST_STEPS`."""
    head, data = record.sections
    at = 0
    for path, code, shape, rows, sizes in json.loads(bytes(head))[1]:
        if path == ["rewards"]:
            count = int(np.dtype(code).itemsize * shape[0])
            if np.dtype(code).kind not in "biuf" or count > 8 * MOST_STEPS:
                return None
            pieces = [data[at + sum(sizes[:i]) : at + sum(sizes[: i + 1])] for i in range(len(sizes))]
            plain = [zlib.decompressobj().decompress(piece, count) if rows else bytes(piece) for piece in pieces]
            return np.frombuffer(b"".join(plain)[:count], code)
        at += sum(sizes)
    return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
