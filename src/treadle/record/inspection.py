"""What is in a run's directory, and whether it is what was written. Nothing there is changed, locked or waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from treadle.errors import UsageError
from treadle.progress import Standing
from treadle.record.journal import EpisodeNote, journals, read
from treadle.record.parts import KEPT, again
from treadle.record.run_directory import ARGUMENTS, FAILURES, PARTS, SUMMARY, begun_at, intact, skipped_at
from treadle.record.shards import checks, data_file, shard_of
from treadle.record.summary import Summary, read_summary
from treadle.record.told import rows_of
from treadle.repro import SUFFIX, Repro
from treadle.sample.schedule import Schedule


def about(directory: Path) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """A run as (what, value); and for JSON its "arguments", its "summary" (None where there is none yet), and as
    "unfinished" what is said of a run that is not complete (else "").

    Raises:
        UsageError: there is no run, or `run.json` or `summary.json` is damaged.
    """
    begun, parts = begun_at(directory), directory / PARTS
    arguments, summary, unfinished = begun["arguments"], _summary(directory), ""
    if parts.exists() or summary is None:
        lost: list[int | None] = []
        notes = {record.note.index: record.note for path in journals(parts) for record in read(path, lost=lost)}
        mean = sum(note.total_reward for note in notes.values()) / max(1, len(notes))
        shard = shard_of(arguments.get("shard"), arguments["episodes"])
        of = Schedule(arguments["episodes"], arguments["steps"], shard=shard).standing()
        wanted = f"{of.of_episodes:,} episodes" if of.of_episodes else f"the episodes of {of.of_steps:,} steps"
        unfinished = (
            f"{len(notes):,} of {wanted} are finished (mean return {mean:,.2f}), {len(skipped_at(parts)):,} left out, "
            f"{len(lost):,} damaged; the run's command with --resume continues"
        )
    named = {"environment": "env", "policy": "policy", "seed": "seed", "shard": "shard"}
    rows = [(what, str(arguments[name])) for what, name in named.items() if name in arguments]
    rows += [("unfinished", unfinished)] if unfinished else []
    if summary is not None:
        rows += [
            ("dataset", str(directory / begun["output"])),
            *rows_of(summary),
        ]
    return rows, {"arguments": arguments, "unfinished": unfinished, "summary": vars(summary) if summary else None}


def damage(directory: Path, tell: Callable[[Standing], None] = lambda now: None) -> tuple[int, list[str]]:
    """How many stored episodes were read; and a line for each that is not what was written, and for each other file.

    Args:
        directory: of a run, complete or not.
        tell: called with how far it is, after each episode.

    Raises:
        UsageError: there is no run.
    """
    said: list[str] = []
    now = Standing()

    def see(note: EpisodeNote) -> None:
        now.episodes, now.steps = now.episodes + 1, now.steps + note.length
        now.made_steps = now.steps
        tell(now)

    parts = directory / PARTS
    if not (directory / ARGUMENTS).exists():
        raise UsageError(f"{directory} is no directory of a run: it has no {ARGUMENTS}")
    with _noted(said):
        begun = begun_at(directory)
        for path in journals(parts):
            lost: list[int | None] = []
            with _noted(said):
                for record in read(path, lost=lost):
                    see(record.note)
            said += [f"episode {'(which cannot be read)' if i is None else i} in {path} is damaged" for i in lost]
        with _noted(said):
            skipped_at(parts)
        for file in sorted((directory / FAILURES).glob(f"*{SUFFIX}")):
            with _noted(said):
                Repro.load(file)
        summary = _summary(directory)
        if summary is None:
            return now.episodes, said
        now.of_episodes = now.episodes + summary.episodes
        dataset = directory / begun["output"]
        for name, digest in checks(begun, dataset).items():  # a run that grows has other arguments
            if summary.checks.get(name, digest) != digest and (name != ARGUMENTS or not parts.exists()):
                said.append(f"{name} is not what was written")
        file = data_file(dataset)
        for note, record_again in again(directory / KEPT, file):
            see(note)
            said += [] if record_again else [f"episode {note.index} in {file} is damaged"]
    return now.episodes, said


def _summary(directory: Path) -> Summary | None:
    path = directory / SUMMARY
    with intact(path):
        return read_summary(path) if path.exists() else None


@contextmanager
def _noted(said: list[str]) -> Iterator[None]:
    """What reading raises becomes a line."""
    try:
        yield
    except (ValueError, TypeError, KeyError, RuntimeError, OSError) as error:
        said.append(str(error))
