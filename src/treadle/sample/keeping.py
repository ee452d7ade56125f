"""Which episodes a run keeps of those that it tries: pure decisions."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from treadle.errors import UsageError
from treadle.play.episode import Episode
from treadle.sample.named import Named, reference_of

OPERATIONS = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
LEAST, TIMES = 1000, 100  # episodes that are tried at most, of all and for each one kept, where nobody says how many
_TERM = re.compile(r"(return|length)\s*(>=|<=|==|!=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)")


@dataclass(frozen=True)
class Keep:
    """The rule by which a run keeps episodes.

    Attributes:
        given: terms joined by "and", such as "length<50 and return>=10" or "success". Or a function of the Episode, or
            its name ("module:attr", "file.py:attr").
        terms: (text, key, operator, number) of each.

    Raises:
        UsageError: it is none of these.
    """

    given: str | Callable[[Episode], Any]
    terms: tuple[tuple[str, str, str, float], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        given = self.given
        if isinstance(given, str) and ":" in given:
            object.__setattr__(self, "given", Named(given))
        elif isinstance(given, str):
            texts = [each.strip() for each in re.split(r"\band\b", given)]
            object.__setattr__(self, "terms", tuple(map(_term, texts)))
        elif not callable(given):
            raise UsageError(f"keep (--keep) is a text or a function of an Episode, got {given!r}")

    def __str__(self) -> str:
        return str(reference_of(self.given))

    def unfit(self, episode: Episode, success: bool | None) -> str:
        """Why an episode is not kept: the first term that it fails, or the function's name; "": it is kept."""
        if callable(self.given):
            return "" if self.given(episode) else str(self)
        known = {"return": episode.total_reward, "length": len(episode), "success": success is True}
        missed = (text for text, key, does, number in self.terms if not OPERATIONS[does](known[key], number))
        return next(missed, "")


def _term(text: str) -> tuple[str, str, str, float]:
    found = _TERM.fullmatch(text)
    if found:
        return text, found[1], found[2], float(found[3])
    if text == "success":
        return text, text, "==", True
    raise UsageError(
        f"keep (--keep) takes success, or return or length with one of {' '.join(OPERATIONS)} and a number, not "
        f"{text!r}. Join terms by 'and', or give module:attr, a function of an Episode."
    )
