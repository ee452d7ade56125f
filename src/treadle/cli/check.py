"""`treadle check`."""

from __future__ import annotations

import sys
from json import dumps

from treadle.cli import failures
from treadle.cli.options import Check
from treadle.cli.process import own_stdout
from treadle.testing.env_check import check_env


def run(options: Check) -> int:
    """Check, print the verdict, and return the exit code."""
    with own_stdout(options.json) as out:
        report = check_env(**options.arguments(), progress=tell)
        tell("")
        print(dumps(report.as_dict(), indent=2) if options.json else report, file=out)
    return failures.OK if report.ok else failures.FAILED


def tell(doing: str) -> None:
    """On a terminal, what is being done now; the verdict takes its place."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{doing and f'{doing} ...'}", end="", file=sys.stderr, flush=True)
