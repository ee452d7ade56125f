"""The failing episodes that a run goes on without, their number and their report: pure decisions, no processes.

An episode is left out by its index, and for its own failure in a reset or step alone. To leave out slow episodes, or
failures of a worn environment, would favour some episodes over others. So an episode that raises is tried once more in
a new environment. One that kills a worker goes to fresh workers, as the first that they play.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.errors import UsageError

FIRST = 10  # of the first so many episodes at least one must succeed
SHARE, LEAST = 0.05, 3
DEATHS = 3
NAMED = 5  # episodes of one cause that a line names
LONGEST = 120  # characters of a message in such a line
HANG = "hang"
HINT = 'on_error="skip" (--on-error skip) leaves such an episode out'


@dataclass(frozen=True)
class Cause:
    """The cause of an episode's or worker's failure. Failures of equal kind, file and line have one cause.

    Attributes:
        kind: the type of an exception, such as "KeyError"; of a death the signal, such as "SIGSEGV", or "exit code 3";
            "hang".
        file, line: the innermost frame of the user's own code, else the innermost frame that is not Treadle's; "" and
            None where no stack is known.
        message: of the exception, in one line.
        function: of that frame; "" where no stack is known.
    """

    kind: str
    file: str = ""
    line: int | None = None
    message: str = field(default="", compare=False)
    function: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Such as "KeyError: 'corner' reach.py:31", or "hang in step reach.py:39"."""
        short = self.message if len(self.message) <= LONGEST else f"{self.message[: LONGEST - 3]}..."
        place = f" {os.path.basename(self.file)}:{self.line}" if self.file else ""
        if self.kind == HANG and self.function:
            place = f" in {self.function}{place}"
        return f"{self.kind}{short and ': '}{short}{place}"


@dataclass(frozen=True)
class Skipped:
    """An episode that a run went on without.

    Attributes:
        index: of the episode in the run.
        seed: of its reset.
        cause: in one line, such as "ValueError: boom (env.py:12)".
        kind, message, file, line, function: see `Cause`; "" and None in files of an older version.
        step: of the failure, from 1; None: in its reset, or unknown.
        repro: the file to replay it from, of a stored run below the run's directory; "": without such a file.
    """

    index: int
    seed: int
    cause: str
    kind: str = ""
    message: str = ""
    step: int | None = None
    file: str = ""
    line: int | None = None
    repro: str = ""
    function: str = ""


def named(episodes: Sequence[int]) -> str:
    """The first of some episodes: "4, 9, ..."."""
    return ", ".join([*map(str, episodes[:NAMED]), *["..."][: len(episodes) - NAMED]])


def by_cause(skipped: Iterable[Skipped]) -> list[tuple[str, list[Skipped]]]:
    """Return the episodes of each cause by index, below its name, the most frequent cause first.

    Messages that differ are left out. Hangs in one function have one cause, whose name lists the lines: a killed
    worker was anywhere in the function.
    """
    groups: dict[Any, list[Skipped]] = {}
    for each in sorted(skipped, key=lambda each: each.index):
        place = each.function if each.kind == HANG and each.function else each.line
        groups.setdefault((each.kind or each.cause, each.file, place), []).append(each)
    return [(_name(same), same) for same in sorted(groups.values(), key=len, reverse=True)]


def _name(same: Sequence[Skipped]) -> str:
    """The name of the cause that these episodes share."""
    first, lines = same[0], sorted({each.line for each in same if each.line is not None})
    message = first.message if len({each.message for each in same}) == 1 else ""
    cause = Cause(first.kind or first.cause, first.file, min(lines, default=None), message, first.function)
    return ", ".join([str(cause), *[named(lines[1:])] * (len(lines) > 1)])


def grouped(skipped: Iterable[Skipped]) -> list[str]:
    """A line for each cause: "10 x KeyError: 'corner' reach.py:31 (episodes 4, 9, ...)"."""
    return [
        f"{len(same):,} x {cause} (episode{'' if len(same) == 1 else 's'} {named([each.index for each in same])})"
        for cause, same in by_cause(skipped)
    ]


@dataclass(frozen=True)
class Skipping:
    """The treatment of episodes that fail.

    Attributes:
        skip: True: it is left out; False: the run ends.
        most: how many may be left out: a number, or as a float above 0 and below 1 a share, which always allows
            `LEAST`.
        deaths: an episode that kills so many fresh workers has failed. One fewer (at least two) suffices where they
            crashed in the same line of the same step, the last one fresh. Seed and actions were the same, so the next
            would crash there, too.
    """

    skip: bool
    most: int | float = SHARE
    deaths: int = DEATHS

    @classmethod
    def of(cls, on_error: str, max_skipped: int | float | None) -> Skipping:
        """The arguments as users give them. Raises UsageError."""
        if on_error not in ("raise", "skip"):
            raise UsageError(f"on_error is 'raise' or 'skip', got {on_error!r}")
        if max_skipped is not None:
            if on_error == "raise":
                raise UsageError("max_skipped is for on_error='skip' (--on-error skip) only")
            whole = isinstance(max_skipped, int) and not isinstance(max_skipped, bool) and max_skipped >= 0
            if not whole and not (isinstance(max_skipped, float) and 0 < max_skipped < 1):
                raise UsageError(
                    f"max_skipped is a number of episodes, or a share above 0 and below 1, got {max_skipped!r}"
                )
        return cls(on_error == "skip", SHARE if max_skipped is None else max_skipped, DEATHS)

    def hopeless(self, deaths: Sequence[tuple[bool, Any]]) -> int:
        """Return how many of these deaths prove that an episode has failed; 0: it is tried again.

        Args:
            deaths: of the workers that played it; the last is a fresh worker's. Each is True if the worker was fresh,
                and the place of its crash. The place is None without a crash, or where it is unknown.
        """
        fresh = sum(first for first, _ in deaths)
        alike = sum(at is not None and at == deaths[-1][1] for _, at in deaths)
        return fresh if fresh >= self.deaths else alike if alike >= max(2, self.deaths - 1) else 0

    def too_many(self, skipped: Collection[int], episodes: int | None, made: int) -> str:
        """Why a run cannot go on without these episodes; "" when it can.

        Args:
            skipped: their indices.
            episodes: how many the run asks for; None when steps decide.
            made: how many are finished.
        """
        if first := _all_of_the_first(skipped, episodes):
            return f"all of the first {first} episodes have failed" if first > 1 else "the episode has failed"
        total = episodes or made + len(skipped)
        # 0.29 * 100 is less than 29
        allowed = self.most if isinstance(self.most, int) else max(LEAST, int(round(self.most * total, 6)))
        if len(skipped) <= allowed:
            return ""
        return f"{len(skipped)} of {total} episodes have failed, more than the {allowed} of max_skipped (--max-skipped)"


def remedy(skipped: Collection[int], episodes: int | None, made: int) -> str:
    """Return the option that continues (with --resume) a run that `Skipping.too_many` has ended. It allows the share
    that has failed so far, of all episodes. Arguments: as there."""
    if _all_of_the_first(skipped, episodes):
        return "--retry-skipped"
    count = len(skipped)
    percent = max(-(-100 * count // total) for total in (episodes or made + count, made + count))
    return f"--max-skipped {f'{percent}%' if percent < 100 else max(count, (episodes or 1) - 1)}"


def _all_of_the_first(skipped: Collection[int], episodes: int | None) -> int:
    """How many the first episodes are, if all of them have failed; else 0."""
    first = range(FIRST if episodes is None else min(FIRST, episodes))
    return len(first) if all(index in skipped for index in first) else 0
