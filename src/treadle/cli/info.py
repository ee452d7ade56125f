"""`treadle info`."""

from __future__ import annotations

from json import dumps

from treadle.cli import failures
from treadle.cli.options import Info
from treadle.testing.machine import machine


def run(options: Info) -> int:
    """Look at the machine, print what was seen, and return the exit code."""
    report = machine()
    print(dumps(report.as_dict(), indent=2) if options.json else report)
    return failures.OK
