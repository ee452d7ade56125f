"""The findings of a check, for people and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from treadle.errors import TreadleError

FAULT, WARNING = "fault", "warning"
WIDTH = 110
MOST = 600  # characters of a finding


@dataclass(frozen=True)
class Finding:
    """One fault or warning of a check.

    Attributes:
        level: "fault": runs fail or cannot be repeated. "warning": the environment works, but will surprise its users.
        about: one word for the subject of the check.
        what: the observation, at most `MOST` characters.
        advice: the remedy; "": none is known.
    """

    level: str
    about: str
    what: str
    advice: str


@dataclass
class Report:
    """The result of a check.

    Attributes:
        subject: the name of the environment or machine.
        advice: remedies, by the `about` of a finding.
        findings: faults and warnings, in the order in which they were found.
        passed: descriptions of the checks that passed.
        facts: measured values by name, for people.
        details: further values, for programs.
    """

    subject: str
    advice: Mapping[str, str] = field(default_factory=dict, repr=False)
    findings: list[Finding] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if the check found no fault. Warnings may be there."""
        return not self.faults

    @property
    def faults(self) -> list[Finding]:
        """The findings that are faults."""
        return [each for each in self.findings if each.level == FAULT]

    def fault(self, about: str, what: str) -> None:
        """Add a fault."""
        self.add(FAULT, about, what)

    def warning(self, about: str, what: str) -> None:
        """Add a warning."""
        self.add(WARNING, about, what)

    def add(self, level: str, about: str, what: str, advice: str = "") -> None:
        """Add a finding, unless an equal one is there. `advice` "": the report's advice for `about`."""
        finding = Finding(level, about, short(what, MOST), advice or self.advice.get(about, ""))
        if finding not in self.findings:
            self.findings.append(finding)

    def found(self, about: str) -> bool:
        """Return True if there is a finding about this subject."""
        return any(each.about == about for each in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict for JSON, without the table `advice`."""
        return {"ok": self.ok, **{name: part for name, part in asdict(self).items() if name != "advice"}}

    def raise_for_faults(self) -> None:
        """Raise CheckFailed with the report's text if there is a fault."""
        if not self.ok:
            raise CheckFailed(str(self), report=self)

    def __str__(self) -> str:
        faults, others = len(self.faults), len(self.findings) - len(self.faults)
        counted = [f"{n} {word}{'s' if n > 1 else ''}" for n, word in ((faults, FAULT), (others, WARNING)) if n]
        lines = [f"{self.subject}: {', '.join(counted) or 'nothing to find fault with'}"]
        given: set[str] = set()  # advice, once each
        for each in self.findings:
            lines.append(f"  {each.level.upper():8}{each.about}: {_shown(each.what)}")
            lines += [f"          -> {_shown(each.advice)}"] if {each.advice} - given - {""} else []
            given.add(each.advice)
        lines += [f"  ok      {_shown(', '.join(self.passed))}"] if self.passed else []
        widest = max(map(len, self.facts), default=0)
        lines += [f"  {name:{widest}}  {value}" for name, value in self.facts.items()]
        return "\n".join(lines)


class CheckFailed(TreadleError, AssertionError):
    """A check has found faults. `report`: the check's `Report`."""

    report: Report


def short(text: str, most: int = 200) -> str:
    """Return the text in one line of at most `most` characters; a longer text loses its middle."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ... {text[5 - most // 3 :]}"


def _shown(text: str) -> str:
    """Return a text over several lines, indented from the second line on."""
    return textwrap.fill(" ".join(text.split()), WIDTH, subsequent_indent=" " * 10)
