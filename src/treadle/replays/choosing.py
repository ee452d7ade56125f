"""Which episodes are looked at, by their results; and what a film of one is called."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.errors import UsageError
from treadle.record.journal import journals, read
from treadle.record.parts import KEPT
from treadle.record.run_directory import FAILURES, PARTS
from treadle.repro import SUFFIX

ERROR = "error"


@dataclass(frozen=True)
class Row:
    """How an episode ended.

    Attributes:
        index: which it is of its run.
        total_reward: its return; NaN: nobody knows.
        length: steps.
        end: "terminated", "truncated" or "error".
        success: was it one? None: its environment does not say.
    """

    index: int
    total_reward: float = math.nan
    length: int = 0
    end: str = ERROR
    success: bool | None = None

    @property
    def failed(self) -> bool:
        """Was it no success, or has it come to no end?"""
        return self.success is False or self.end == ERROR

    @property
    def film(self) -> str:
        """The name of its film without a suffix, such as "episode-0017_return-20.0_failure"."""
        end = self.end if self.success is None or self.end == ERROR else "success" if self.success else "failure"
        total = f"{self.total_reward:{'.1f' if abs(self.total_reward) < 1e9 else '.3g'}}"
        known = "" if math.isnan(self.total_reward) else f"_return-{total}"
        return f"episode-{self.index:04}{known}_{end}"


def chosen(
    rows: Iterable[Row], *, best: int = 0, worst: int = 0, failed: int = 0, episodes: Sequence[int] = ()
) -> list[int]:
    """Indices in their order, each once.

    Args:
        best, worst: so many with the largest and the smallest returns, of those that came to an end; of equal ones the
            first.
        failed: the first so many that failed.
        episodes: these besides.
    """
    known = sorted(rows, key=lambda row: row.index)
    ended = [row for row in known if row.end != ERROR and not math.isnan(row.total_reward)]
    found = sorted(ended, key=lambda row: -row.total_reward)[:best]
    found += sorted(ended, key=lambda row: row.total_reward)[:worst]
    found += [row for row in known if row.failed][:failed]
    return sorted({*episodes, *(row.index for row in found)})


def rows_of(directory: Path) -> list[Row]:
    """Of what a run has finished, complete or not, and of what failed in it. Nothing of it is unpickled.

    Raises:
        UsageError: what says so is damaged.
    """
    failures = (path.stem.rpartition("-")[2] for path in (directory / FAILURES).glob(f"episode-*{SUFFIX}"))
    rows = {int(index): Row(int(index)) for index in failures if index.isdecimal()}
    try:
        for file in (directory / KEPT, *journals(directory / PARTS)):
            for note, *_ in read(file, lost=[]) if file.exists() else ():
                end = "terminated" if note.terminated else "truncated"
                rows[note.index] = Row(note.index, note.total_reward, note.length, end, note.success)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{directory} does not say what came of its episodes ({error})") from error
    return list(rows.values())
