"""`treadle check`."""

from __future__ import annotations

from collections.abc import Callable
from json import dumps

from treadle.cli import failures
from treadle.cli.output import own_stdout
from treadle.testing.verdict import Report


def run(check: Callable[[], Report], as_json: bool) -> int:
    """Check, print the verdict, and return the exit code."""
    with own_stdout(as_json) as out:
        report = check()
        print(dumps(report.as_dict(), indent=2) if as_json else report, file=out)
    return failures.OK if report.ok else failures.FAILED


__all__ = ["run"]
