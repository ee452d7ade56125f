"""`treadle report`: what may be typed, and what it does."""
# ruff: noqa: RUF009 - `typed` makes a field

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path

from treadle.cli import failures
from treadle.cli.options import Command, typed
from treadle.errors import UsageError
from treadle.progress import printable


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Write the results of a run as one HTML file to share.

      treadle report out

      treadle report weak strong --out compared.html     (two runs, paired by seed)

    It needs no server, no network and no other file. It can be written while the run goes on, and for any dataset. It
    names no user, host or path outside the run, and hides arguments that hold a key, token or password.

    Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C.

    Attributes:
        directories: Directory of a run (--out of treadle collect or eval). The episodes of two directories are
            compared.
        out: The file to write.
    """

    directories: list[Path] = typed(MISSING, "DIR", position=True)
    out: Path | None = typed(None, "FILE", shown="report.html in DIR")


def beside(directory: Path) -> None:
    """Write that of a run whose command has --report, whatever ended it, and say where."""
    from treadle.reports.report import report

    failures.say(f"report: {report(directory)}")


def run(options: Report) -> int:
    """Write it, say where, and return the exit code."""
    from treadle.record.summary import as_json
    from treadle.reports.report import report

    if len(options.directories) > 2:
        raise UsageError(f"a report is about one run or two, got {len(options.directories)}")
    path = report(*options.directories, out=options.out)
    print(as_json({"report": str(path)}) if options.json else printable(str(path)))
    return failures.OK
