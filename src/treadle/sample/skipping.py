"""Which failing episodes a run goes on without, how many, and how they are told: pure decisions, no processes.

An episode is left out by its index, never for another reason than its own failure in a reset or step: leaving out what
is slow, or what a worn environment fails in, would favour some episodes over others. So what raises is tried once more
in a new environment, and what costs a worker its life is given to fresh ones, as the first that they play.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from treadle.errors import UsageError

FIRST = 10  # of the first so many episodes at least one must succeed
SHARE, LEAST = 0.05, 3
DEATHS = 3
NAMED = 5  # episodes of one cause that a line names
LONGEST = 120  # characters of a message in such a line
HINT = 'on_error="skip" (--on-error skip) leaves such an episode out'


@dataclass(frozen=True)
class Cause:
    """What an episode or a worker failed of. Failures whose kind, file and line are equal have one cause.

    Attributes:
        kind: the type of an exception, such as "KeyError"; of a death the signal, such as "SIGSEGV", or "exit code 3";
            "hang".
        file, line: the innermost frame of the user's own code, else the innermost frame that is not Treadle's; "" and
            None where no stack is known.
        message: of the exception, in one line.
    """

    kind: str
    file: str = ""
    line: int | None = None
    message: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Such as "KeyError: 'corner' reach.py:31"."""
        short = self.message if len(self.message) <= LONGEST else f"{self.message[: LONGEST - 3]}..."
        place = f" {os.path.basename(self.file)}:{self.line}" if self.file else ""
        return f"{self.kind}{short and ': '}{short}{place}"


@dataclass(frozen=True)
class Skipped:
    """An episode that a run went on without.

    Attributes:
        index: which episode of the run.
        seed: what its reset was given.
        cause: in one line, such as "ValueError: boom (env.py:12)".
        kind, message, file, line: see `Cause`; "" and None in what an older version has written.
        step: in which step, from 1; None: in its reset, or nobody knows.
        repro: the file that it can be replayed from, of a stored run below the run's directory; "": there is none.
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


def named(episodes: Sequence[int]) -> str:
    """The first of some episodes: "4, 9, ..."."""
    return ", ".join([*map(str, episodes[:NAMED]), *["..."][: len(episodes) - NAMED]])


def by_cause(skipped: Iterable[Skipped]) -> list[tuple[Cause, list[Skipped]]]:
    """Those of each cause by index, the most frequent cause first. A message that they do not share is not told."""
    groups: dict[Cause, list[Skipped]] = {}
    for each in sorted(skipped, key=lambda each: each.index):
        groups.setdefault(Cause(each.kind or each.cause, each.file, each.line, each.message), []).append(each)
    return [
        (cause if len({each.message for each in same}) == 1 else replace(cause, message=""), same)
        for cause, same in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]


def grouped(skipped: Iterable[Skipped]) -> list[str]:
    """A line for each cause: "10 x KeyError: 'corner' reach.py:31 (episodes 4, 9, ...)"."""
    return [
        f"{len(same):,} x {cause} (episode{'' if len(same) == 1 else 's'} {named([each.index for each in same])})"
        for cause, same in by_cause(skipped)
    ]


@dataclass(frozen=True)
class Skipping:
    """What becomes of an episode that fails.

    Attributes:
        skip: is it left out? Else the run ends.
        most: how many may be left out: a number, or as a float above 0 and below 1 a share, which always allows
            `LEAST`.
        deaths: so many fresh workers that an episode costs say that it has failed. So does one fewer (but no fewer than
            two) that crashed in the same line of the same step, a fresh one the last of them: seed and actions were the
            same, so the next would crash there, too.
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
        """How many of these deaths say that an episode has failed; 0: it is tried again.

        Args:
            deaths: of the workers that played it, the last one's a fresh worker's: was it fresh, and where it crashed;
                None: it did not, or nobody knows.
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
    """The option with which a run that `Skipping.too_many` has ended goes on (with --resume): it allows the share that
    has failed so far, of all episodes. Arguments: as there."""
    if _all_of_the_first(skipped, episodes):
        return "--retry-skipped"
    count = len(skipped)
    percent = max(-(-100 * count // total) for total in (episodes or made + count, made + count))
    return f"--max-skipped {f'{percent}%' if percent < 100 else max(count, (episodes or 1) - 1)}"


def _all_of_the_first(skipped: Collection[int], episodes: int | None) -> int:
    """How many the first episodes are, if all of them have failed; else 0."""
    first = range(FIRST if episodes is None else min(FIRST, episodes))
    return len(first) if all(index in skipped for index in first) else 0
