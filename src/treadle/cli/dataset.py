"""`treadle dataset merge` and `treadle dataset export`."""

from __future__ import annotations

import os
import shlex

from treadle.cli import failures
from treadle.cli.options import Export, Merge
from treadle.errors import UsageError
from treadle.progress import print_table
from treadle.record.lerobot import export_lerobot
from treadle.record.shards import merge_shards
from treadle.record.summary import as_json
from treadle.record.told import rows_of


def merge(options: Merge) -> int:
    """Merge, show what came of it, and return the exit code."""
    summary = merge_shards(**options.arguments(), command=shlex.join(["treadle", *options.words]))
    if options.json:
        print(as_json(vars(summary)))
    elif not options.quiet:
        print_table(rows_of(summary, dataset=summary.recoverable))
        print(f'python -c "import treadle; print(treadle.load({os.path.relpath(options.out)!r}))"')
    return failures.OK


def export(options: Export) -> int:
    """Write a dataset in another format, say what was written, and return the exit code."""
    if options.format != "lerobot":
        raise UsageError(f"--format: only lerobot can be written, got {options.format!r}")
    told = export_lerobot(**options.arguments())
    print(f"{told.path}: {told.episodes:,} episodes, {told.frames:,} frames")
    for name in told.left_out:
        failures.say(f"{name} was left out: it has no fixed shape, and LeRobot's format no place for that")
    return failures.OK
