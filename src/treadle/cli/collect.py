"""`treadle collect`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from treadle.cli import failures
from treadle.cli.options import Collect
from treadle.cli.process import load_files, own_stdout
from treadle.cli.report import beside
from treadle.progress import print_table, printable
from treadle.record.dataset import Interrupted, Stored, collect_dataset, store
from treadle.record.summary import Summary, summary_json, summary_rows
from treadle.sample.failed import CollectionFailed
from treadle.sample.run import Run, StoredKeywords


def run(options: Collect) -> int:
    """Collect, show what came of it, and return the exit code."""
    given = options.arguments()
    stores = {name: given.pop(name) for name in ("out", "name", "resume", "verify", "shard")}
    command = shlex.join(["treadle", *options.words])
    with own_stdout(options.json) as out:
        stored: Stored | None = None
        load_files(options.words)
        try:
            made = Run.of(collect_dataset, StoredKeywords, **given)
            stored = store(made, command=command, progress=not options.quiet, **stores)
        except Interrupted as interrupt:
            stored, code = interrupt.stored, failures.CTRL_C
            failures.say(f"interrupted: {_left(stored, options.force)}")
        except CollectionFailed as error:
            stored, code = error.stored, failures.FAILED
            failures.tell(error, debug=options.debug)
            if stored is not None:
                failures.say(_left(stored, options.force, error.resumed))
        else:
            code = failures.OK
        if options.report and stored is not None and stored.finished:
            beside(options.out)
        if stored is None or stored.summary is None:
            return code
        summary = stored.summary
        for warning in summary.warnings if code == failures.OK else ():
            failures.say(f"warning: {warning}")
        if options.json:
            print(summary_json(summary), file=out)
        elif not options.quiet and code == failures.OK:
            _show(options, stored, summary)
        return code


def _left(stored: Stored, forced: bool, more: str = "") -> str:
    """Return what a stopped run leaves. `more`: the option that --resume needs besides."""
    if not stored.finished:
        return "no episode was finished"
    many = f"{stored.finished:,} finished episode{'s are' if stored.finished > 1 else ' is'} kept in {stored.directory}"
    if stored.summary is not None:
        first = stored.summary.episodes
        merged = "it is" if stored.finished == 1 else "the first of them is" if first == 1 else ""
        many += f"; {merged or f'the first {first:,} of them are'} merged into {stored.path}"
    resume = f"--resume {more}".strip()
    return f"{many}; the same command with {resume} {'in place of --force ' if forced else ''}continues"


def _all(episodes: int) -> str:
    return f"all {episodes:,} episodes are" if episodes > 1 else "the episode is"


def _show(options: Collect, stored: Stored, summary: Summary) -> None:
    if stored.unchanged:
        print(f"nothing to do: {_all(summary.episodes)} there")
    elif stored.before == stored.finished:
        print(f"no episode was missing: {_all(summary.episodes)} merged now")
    rows = summary_rows(summary, before=stored.before, wanted=options.steps)
    print_table(rows)
    print(printable(closing_line(stored)))


def closing_line(stored: Stored) -> str:
    """How to read the dataset."""
    directory = shlex.quote(os.path.relpath(stored.directory, Path.cwd()))
    return (
        f"MINARI_DATASETS_PATH={directory} python -c "
        f"\"import minari; print(minari.load_dataset('{stored.dataset_id}'))\""
    )
