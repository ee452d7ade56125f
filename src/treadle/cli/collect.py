"""`treadle collect`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from treadle.cli import failures
from treadle.cli.options import CollectOptions
from treadle.cli.output import own_stdout
from treadle.record.dataset import Interrupted, Stored, collect_dataset
from treadle.record.summary import Summary, as_json
from treadle.sample.failed import CollectionFailed
from treadle.sample.progress import Progress, duration, print_table

SHOWN = 5  # episodes that are left out and named in the closing table


def run(options: CollectOptions, given: Sequence[str]) -> int:
    """Collect, show what came of it, and return the exit code."""
    arguments = options.arguments()
    command = shlex.join(["treadle", *given])
    with own_stdout(options.json) as out:
        stored: Stored | None = None
        try:
            with Progress(show=not options.quiet) as progress:
                stored = collect_dataset(**arguments, command=command, watch=progress)
        except Interrupted as interrupt:
            stored, code = interrupt.stored, failures.CTRL_C
            failures.say(f"interrupted: {_left(stored, options.force)}")
        except CollectionFailed as error:
            stored, code = error.stored, failures.FAILED
            failures.tell(error, debug=options.debug)
            if stored is not None:
                failures.say(_left(stored, options.force))
        else:
            code = failures.OK
        if stored is None or stored.summary is None:
            return code
        summary = stored.summary
        for warning in summary.warnings if code == failures.OK else ():
            failures.say(f"warning: {warning}")
        if options.json:
            print(as_json(vars(summary)), file=out)
        elif not options.quiet and code == failures.OK:
            _show(options, stored, summary)
        return code


def _left(stored: Stored, forced: bool) -> str:
    """What a stopped run leaves."""
    if not stored.finished:
        return "no episode was finished"
    many = f"{stored.finished:,} finished episode{'s are' if stored.finished > 1 else ' is'} kept in {stored.directory}"
    if stored.summary is not None:
        first = stored.summary.episodes
        merged = "it is" if stored.finished == 1 else "the first of them is" if first == 1 else ""
        many += f"; {merged or f'the first {first:,} of them are'} merged into {stored.path}"
    return f"{many}; the same command with --resume {'in place of --force ' if forced else ''}continues"


def _besides(stored: Stored, summary: Summary) -> str:
    """What else there is to say of the number of episodes."""
    before = [f"{stored.before:,} from before"] if stored.before else []
    missing = [f"{len(summary.skipped):,} left out"] if summary.skipped else []
    return f" ({', '.join(before + missing)})" if before or missing else ""


def _all(episodes: int) -> str:
    return f"all {episodes:,} episodes are" if episodes > 1 else "the episode is"


def _show(options: CollectOptions, stored: Stored, summary: Summary) -> None:
    if stored.unchanged:
        print(f"nothing to do: {_all(summary.episodes)} there")
    elif stored.before == stored.finished:
        print(f"no episode was missing: {_all(summary.episodes)} merged now")
    n = summary.episodes
    mean = sum(summary.returns) / n
    std = (sum((value - mean) ** 2 for value in summary.returns) / n) ** 0.5
    lengths = summary.lengths
    over = f" ({summary.steps - options.steps:,} more than asked: whole episodes)" if options.steps else ""
    rows = [
        ("episodes", f"{n:,}{_besides(stored, summary)}"),
        ("steps", f"{summary.steps:,}{over}"),
        (
            "return",
            f"mean {mean:,.2f}  std {std:,.2f}  min {min(summary.returns):,.2f}  max {max(summary.returns):,.2f}",
        ),
        ("length", f"mean {summary.steps / n:,.1f}  min {min(lengths):,}  max {max(lengths):,}"),
        ("ended", f"{summary.terminated:,} terminated, {summary.truncated:,} truncated"),
        ("time", f"{duration(summary.seconds)}, {summary.steps_per_second:,.0f} steps/s"),
        ("on disk", f"{size(summary.disk_bytes)} ({size(summary.raw_bytes)} before compression)"),
        ("busy", "  ".join(f"{share:.0%}" for share in summary.worker_shares) + "  of the time, by worker"),
        ("spent", "  ".join(f"{name} {share:.0%}" for name, share in summary.time_shares.items())),
    ]
    if summary.restarts or summary.speculative:
        workers = f"{summary.restarts} worker{'' if summary.restarts == 1 else 's'} replaced"
        episodes = f"{summary.speculative} episode{'' if summary.speculative == 1 else 's'} begun and not needed"
        rows.append(("besides", f"{workers}, {episodes}"))
    rows += [("" if i else "left out", line) for i, line in enumerate(left_out(summary))]
    if stored.dataset_id is not None and not summary.recoverable:
        rows.append(("note", "recover_environment() cannot make this environment: it or its wrapper has no spec"))
    rows.append(("hash", summary.hash))
    print_table(rows)
    print(closing_line(stored))


def left_out(summary: Summary) -> list[str]:
    """A line for each of the first episodes that are missing."""
    lines = [f"episode {each['index']} (seed {each['seed']}): {each['cause']}" for each in summary.skipped[:SHOWN]]
    more = len(summary.skipped) - len(lines)
    return [*lines, f"and {more:,} more; all are in summary.json"] if more else lines


def closing_line(stored: Stored) -> str:
    """How to read the dataset."""
    if stored.dataset_id is None:
        path = os.path.relpath(stored.path or stored.directory, Path.cwd())
        return f'python -c "import numpy; print(numpy.load({path!r}).files)"'
    directory = shlex.quote(os.path.relpath(stored.directory, Path.cwd()))
    return (
        f"MINARI_DATASETS_PATH={directory} python -c "
        f"\"import minari; print(minari.load_dataset('{stored.dataset_id}'))\""
    )


def size(count: float) -> str:
    """Bytes as people read them: "12.3 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
