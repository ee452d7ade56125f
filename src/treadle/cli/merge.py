"""`treadle dataset merge`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from treadle.cli import failures
from treadle.progress import print_table
from treadle.record.shards import merge_shards
from treadle.record.summary import as_json
from treadle.record.told import rows_of


def run(shards: Sequence[Path], out: Path, force: bool, quiet: bool, json: bool, given: Sequence[str]) -> int:
    """Merge, show what came of it, and return the exit code."""
    summary = merge_shards(shards, out, force=force, command=shlex.join(["treadle", *given]))
    if json:
        print(as_json(vars(summary)))
    elif not quiet:
        print_table(rows_of(summary, dataset=summary.recoverable))
    return failures.OK
