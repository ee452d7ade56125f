"""Which failing episodes a run goes on without, and how many: pure decisions, no processes.

An episode is left out by its index, never for another reason than its own failure in a reset or step: leaving out what
is slow, or what a worn environment fails in, would favour some episodes over others. So what raises is tried once more
in a new environment, and what costs a worker its life is given to fresh ones, as the first that they play.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from treadle.errors import UsageError
from treadle.pool.options import check_whole

FIRST = 10  # of the first so many episodes at least one must succeed
SHARE, LEAST = 0.05, 3
DEATHS = 3
HINT = 'on_error="skip" (--on-error skip) leaves such an episode out'


@dataclass(frozen=True)
class Skipped:
    """An episode that a run went on without.

    Attributes:
        index: which episode of the run.
        seed: what its reset was given.
        cause: in one line, such as "ValueError: boom (env.py:12)".
    """

    index: int
    seed: int
    cause: str


@dataclass(frozen=True)
class Skipping:
    """What becomes of an episode that fails.

    Attributes:
        skip: is it left out? Else the run ends.
        most: how many may be left out: a number, or as a float above 0 and below 1 a share, which always allows
            `LEAST`.
        deaths: how many fresh workers an episode may cost before it counts as failed.
    """

    skip: bool
    most: int | float = SHARE
    deaths: int = DEATHS

    @classmethod
    def of(cls, on_error: str, max_skipped: int | float | None, max_deaths: int) -> Skipping:
        """The arguments as users give them. Raises UsageError."""
        if on_error not in ("stop", "skip"):
            raise UsageError(f"on_error is 'stop' or 'skip', got {on_error!r}")
        if max_skipped is not None:
            if on_error == "stop":
                raise UsageError("max_skipped is for on_error='skip' (--on-error skip) only")
            whole = isinstance(max_skipped, int) and not isinstance(max_skipped, bool) and max_skipped >= 0
            if not whole and not (isinstance(max_skipped, float) and 0 < max_skipped < 1):
                raise UsageError(
                    f"max_skipped is a number of episodes, or a share above 0 and below 1, got {max_skipped!r}"
                )
        check_whole(none=False, max_deaths=max_deaths)
        return cls(on_error == "skip", SHARE if max_skipped is None else max_skipped, max_deaths)

    def too_many(self, skipped: Collection[int], episodes: int | None, made: int) -> str:
        """Why a run cannot go on without these episodes; "" when it can.

        Args:
            skipped: their indices.
            episodes: how many the run asks for; None when steps decide.
            made: how many are finished.
        """
        first = range(FIRST if episodes is None else min(FIRST, episodes))
        if all(index in skipped for index in first):
            return f"all of the first {len(first)} episodes have failed" if len(first) > 1 else "the episode has failed"
        total = episodes or made + len(skipped)
        allowed = self.most if isinstance(self.most, int) else max(LEAST, int(self.most * total))
        if len(skipped) <= allowed:
            return ""
        return f"{len(skipped)} of {total} episodes have failed, more than the {allowed} of max_skipped (--max-skipped)"
