"""The outcome of each episode of a run, from its directory.

The directory may be that of a run at work, of a killed one, of an earlier version or of a stranger. Nothing is written,
imported or unpickled, and no name in a file leads outside."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from treadle.record.journal import EpisodeNote, Record, journals, read
from treadle.record.parts import KEPT
from treadle.record.run_directory import PARTS, SKIPPED, SUMMARY, below
from treadle.record.summary import skipped_of, unsealed
from treadle.repro import MOST_BYTES
from treadle.sample.skipping import Skipped
from treadle.whole_file import read_json

ERROR = "error"
_DAMAGE = (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, ArithmeticError)


@dataclass(frozen=True)
class Outcome:
    """How an episode ended.

    Attributes:
        index: of the episode in its run.
        seed: of its reset; None, as of the next two: unknown.
        total_reward: its return, which may be NaN or infinite.
        length: steps.
        end: "terminated", "truncated" or "error".
        success: whether it was a success; None: its environment does not say.
        seconds: its duration; None: unknown.
        lost: why it could not be played; None: it was played, or the reason is unknown.
        number: its number in the data file; None: it is not there.
        record: its record, until it is merged.
    """

    index: int
    seed: int | None = None
    total_reward: float | None = None
    length: int | None = None
    end: str = ERROR
    success: bool | None = None
    seconds: float | None = None
    lost: Skipped | None = None
    number: int | None = None
    record: Record | None = None

    @classmethod
    def of(cls, found: EpisodeNote | Skipped) -> Outcome:
        """Of an episode that was played, or left out."""
        if isinstance(found, Skipped):
            return cls(found.index, found.seed, lost=found)
        end, about = "terminated" if found.terminated else "truncated", found.about
        return cls(found.index, found.seed, found.total_reward, found.length, end, found.success, about.get("seconds"))

    @property
    def finite(self) -> float | None:
        """The return; None: it is unknown, or no finite number."""
        return self.total_reward if math.isfinite(self.total_reward or 0.0) else None

    @property
    def failed(self) -> bool:
        """Return True if the episode was not a success, or did not end."""
        return self.success is False or self.end == ERROR

    def as_json(self) -> dict[str, Any]:
        """A line of `episodes.jsonl`, without its task and policy."""
        return {
            "index": self.index,
            "seed": self.seed,
            "return": self.finite,
            "length": self.length,
            "end": self.end,
            "success": self.success,
            "seconds": self.seconds,
            "error": self.lost.cause if self.lost else "",
        }


def outcomes_of(directory: Path) -> tuple[list[Outcome], list[str]]:
    """Of what a run has finished and left out, by index; and a line for each thing that could not be read."""
    unread, lost, found = list[str](), list[int | None](), dict[int, Outcome]()
    for path in (directory / KEPT, *journals(directory / PARTS)):
        if path.exists():
            with tried(path.name, unread):
                below(directory, str(path.relative_to(directory)))
                for number, record in enumerate(each for each in read(path, lost=lost) if not each.note.unfit):
                    where = {"number": number} if path.name == KEPT else {"record": record}
                    found[record.note.index] = replace(Outcome.of(record.note), **where)
    unread += [f"{len(lost):,} stored episodes are damaged"] * bool(lost)
    for name in (f"{PARTS}/{SKIPPED}", SUMMARY):
        said = json_of(directory, name, unread)
        with tried(name, unread):
            for each in skipped_of(said.get("skipped") or ()):
                found.setdefault(each.index, Outcome.of(each))
    return [found[index] for index in sorted(found)], unread


@contextmanager
def tried(name: str, unread: list[str]) -> Iterator[None]:
    """In the block a file is read; that it cannot be read is noted."""
    try:
        yield
    except _DAMAGE as error:
        unread.append(f"{name} could not be read ({type(error).__name__}: {error})")


def json_of(directory: Path, name: str, unread: list[str]) -> dict[str, Any]:
    """Return the content of a file; {} where it is missing or damaged."""
    if (directory / name).exists():
        with tried(name, unread):
            content = read_json(directory / name, MOST_BYTES)
            return unsealed(content) if isinstance(content, dict) else {"skipped": content}
    return {}
