"""`treadle dataset merge`, `info`, `verify` and `export`."""

from __future__ import annotations

import os
import shlex

from treadle.cli import failures
from treadle.cli.dataset_options import Export, Info, Merge, Verify
from treadle.errors import UsageError
from treadle.progress import Progress, print_table, printable
from treadle.record.lerobot import export_lerobot
from treadle.record.shards import merge_shards
from treadle.record.summary import as_json, summary_json, summary_rows
from treadle.record.verify import about, damage


def merge(options: Merge) -> int:
    """Merge, show what came of it, and return the exit code."""
    summary = merge_shards(**options.arguments(), command=shlex.join(["treadle", *options.words]))
    if summary.missing:
        lacks = sum(each["episodes"] for each in summary.missing)
        how = f"the run's command, without --shard, with --resume --out {options.out}"
        failures.say(f"{lacks:,} episodes are missing: {how} makes them")
    if options.json:
        print(summary_json(summary))
    elif not options.quiet:
        print_table(summary_rows(summary))
        print(f'python -c "import treadle; print(treadle.load({os.path.relpath(options.out)!r}))"')
    return failures.OK


def info(options: Info) -> int:
    """Show what a run is, and return the exit code."""
    rows, content = about(options.source)
    if options.json:
        print(as_json(content))
    else:
        print_table(rows)
    return failures.OK


def verify(options: Verify) -> int:
    """Say which stored episodes are damaged, and return the exit code."""
    with Progress(not options.quiet) as shown:
        count, damaged = damage(options.source, shown)
    if options.json:
        print(as_json({"episodes": count, "damaged": damaged}))
    else:
        print(printable("\n".join([*damaged, f"{count:,} episodes read, {len(damaged) or 'nothing'} damaged"])))
    return failures.FAILED if damaged else failures.OK


def export(options: Export) -> int:
    """Write a dataset in another format, say what was written, and return the exit code."""
    if options.format != "lerobot":
        raise UsageError(f"--format: only lerobot can be written, got {options.format!r}")
    told = export_lerobot(**options.arguments())
    print(f"{told.path}: {told.episodes:,} episodes, {told.frames:,} frames")
    for name in told.left_out:
        failures.say(f"{name} was left out: it has no fixed shape, and LeRobot's format no place for that")
    return failures.OK
