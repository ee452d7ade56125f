"""`treadle check` and `treadle check-vector`."""

from __future__ import annotations

import sys
from json import dumps
from typing import Any

from treadle.cli import failures
from treadle.cli.options import Check, CheckVector
from treadle.cli.output import own_stdout
from treadle.testing.env_check import check_env
from treadle.testing.vector_check import check_vector_env


def run(options: Check) -> int:
    """Check, print the verdict, and return the exit code."""
    return _checked(check_env, options)


def run_vector(options: CheckVector) -> int:
    """As `run`, of a vector."""
    return _checked(check_vector_env, options)


def _checked(check: Any, options: Check | CheckVector) -> int:
    with own_stdout(options.json) as out:
        report = check(**options.arguments(), told=_tell)
        _tell("")
        print(dumps(report.as_dict(), indent=2) if options.json else report, file=out)
    return failures.OK if report.ok else failures.FAILED


def _tell(doing: str) -> None:
    """On a terminal, what is being done now; the verdict takes its place."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{doing and f'{doing} ...'}", end="", file=sys.stderr, flush=True)
