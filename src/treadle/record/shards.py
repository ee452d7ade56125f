"""A run in shards: machines that know nothing of one another make every n-th episode each, and `merge_shards` puts what
they have made together. Episode i is made from (seed, i) alone, so the result has the bytes of a run on one machine.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from treadle.errors import UsageError
from treadle.pool.options import path_of
from treadle.record import minari as minari_files
from treadle.record.merge import merge
from treadle.record.parts import recover
from treadle.record.reopening import KEPT, reopen
from treadle.record.run_directory import FAILURES, SUMMARY, RunDirectory
from treadle.record.summary import Summary, about_episodes, write_summary

MOST_NAMED = 20  # shards that are missing


def shard_of(text: str | None, episodes: int | None) -> tuple[int, int]:
    """(i, n) of "i/n"; (0, 1) of None. Raises UsageError for what is no shard of so many episodes."""
    if text is None:
        return 0, 1
    match = re.fullmatch(r"(\d+)/(\d+)", str(text))
    if match is None or not int(match[1]) < int(match[2]):
        raise UsageError(f"shard (--shard) is i/n with i from 0 to n - 1, such as 0/4, got {text!r}")
    if episodes is None:
        raise UsageError(
            "a shard of a number of steps cannot be made: which episodes the shortest prefix of so many steps has, "
            "lengths say that are not known here. Give --episodes (episodes=) instead"
        )
    i, n = int(match[1]), int(match[2])
    if i >= episodes:
        raise UsageError(f"shard {text} of {episodes} episodes is empty: make at most as many shards as episodes")
    return i, n


def merge_shards(
    shards: Sequence[str | Path], out: str | Path, *, force: bool = False, command: str = "treadle.merge_shards(...)"
) -> Summary:
    """Put the shards of a run together.

    Args:
        shards: the directories of all of them, in any order; they stay as they are.
        out: the directory that becomes that of the whole run: its files are those of a run without shards, but for
            times in the summary. It can be resumed, with more episodes, say.
        force: replace what is in `out`.
        command: what the summary says made the dataset.

    Returns:
        What came of it; `out`/summary.json says the same.

    Raises:
        UsageError: a shard is missing, is there twice, belongs to another run, is not finished or is damaged: it is
            named. Or `out` is not empty. OSError.
    """
    start = perf_counter()
    if isinstance(shards, str) or not isinstance(shards, Iterable):
        raise UsageError(f"shards is a list of directories, got {shards!r}")
    paths = [path_of("a shard", each) for each in shards]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("a directory is named twice")
    if path_of("out", out).resolve() in {path.resolve() for path in paths}:
        raise UsageError(f"{out} is one of the shards: choose another directory (out=, --out)")
    with ExitStack() as stack:
        places = {path: stack.enter_context(_existing(path)) for path in paths}
        first = _checked(places)
        arguments, output, format = first["arguments"], first["output"], first["arguments"]["format"]
        summaries = [place.summary() for place in places.values()]
        target = stack.enter_context(RunDirectory(out))
        target.check(arguments, target.path / output, force=force, resume=None)
        target.begin(arguments, target.path / output, first["objects"])
        spaces: list[Any] = [None, None, None]
        for place in places.values():
            data = place.path / output / "data" if format == "hdf5" else place.path / output
            file = data / minari_files.DATA_FILE if format == "hdf5" else data
            try:
                reopen(place.path / KEPT, file, format, target.parts)
                spaces = minari_files.described(data) if format == "hdf5" else spaces
            except (ValueError, FileNotFoundError) as error:
                target.abandon()
                raise UsageError(f"the dataset in {place.path} is damaged: {error}") from error
            failures = place.path / FAILURES
            if failures.is_dir() and not failures.is_symlink():
                shutil.copytree(failures, target.path / FAILURES, ignore=_links, dirs_exist_ok=True)
        notes = recover(target.parts)
        report = merge(
            target.parts, target.path, notes, env_id=summaries[0].env_id,
            policy=summaries[0].policy, observation_space=spaces[0], action_space=spaces[1], env_spec=spaces[2],
            format=format, kept=target.path / KEPT,
        )  # fmt: skip
        seconds = perf_counter() - start
        summary = replace(
            summaries[0],
            **about_episodes(notes),
            command=command,
            hash=report.hash,
            data_bytes=report.data_bytes,
            seconds=seconds,
            steps_per_second=sum(note.length for note in notes) / max(each.seconds for each in summaries),
            disk_bytes=report.nbytes,
            time_shares={},
            worker_shares=[],
            restarts=sum(each.restarts for each in summaries),
            speculative=sum(each.speculative for each in summaries),
            skipped=sorted((skip for each in summaries for skip in each.skipped), key=lambda skip: skip["index"]),
            warnings=[*dict.fromkeys(text for each in summaries for text in each.warnings), *report.warnings],
        )
        write_summary(target.path / SUMMARY, summary)
        target.settle()
        target.finish()
        return summary


def _existing(path: Path) -> RunDirectory:
    if not path.is_dir():
        raise UsageError(f"{path} is no directory of a run")
    return RunDirectory(path)


def _links(folder: str, names: list[str]) -> list[str]:
    """What is not copied: a link in a directory from somebody else may lead anywhere."""
    return [name for name in names if (Path(folder) / name).is_symlink()]


def _checked(places: dict[Path, RunDirectory]) -> dict[str, Any]:
    """What the whole run was begun with. Raises UsageError."""
    if not places:
        raise UsageError("name the directories of the shards")
    found: dict[int, Path] = {}
    whole: dict[str, Any] = {}
    count = 0
    for path, place in places.items():
        begun = place.begun() if place.begun_there else {}
        shard = begun.get("arguments", {}).pop("shard", None)
        if shard is None:
            raise UsageError(f"{path} is not of a run that was begun with --shard")
        if not place.complete:
            raise UsageError(f"shard {shard} in {path} is not finished: its command finishes it with --resume")
        try:
            i, n = map(int, shard.split("/"))
        except (AttributeError, ValueError):
            raise UsageError(f"{path} is damaged: {shard!r} is no shard") from None
        if not whole:
            whole, count = begun, n
            first = path
        named = [name for name in begun["arguments"] if begun["arguments"][name] != whole["arguments"].get(name)]
        named += ["n of --shard"] if n != count else []
        named += ["objects"] if begun["objects"] != whole["objects"] else []
        if named:
            raise UsageError(f"{path} is of another run than {first}: {', '.join(named)} differ")
        if i in found:
            raise UsageError(f"shard {shard} is there twice: {found[i]} and {path}")
        found[i] = path
    if missing := list(islice((f"{i}/{count}" for i in range(count) if i not in found), MOST_NAMED)):
        raise UsageError(f"not all shards of the run are here: {', '.join(missing)} missing")
    return whole
