"""A run in shards: machines that know nothing of one another make every n-th episode each, and `merge_shards` puts what
they have made together. Episode i is made from (seed, i) alone, so the result has the bytes of a run on one machine.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from treadle.checks import path_of, suggests
from treadle.errors import UsageError
from treadle.record import minari as minari_files
from treadle.record.journal import EpisodeNote, Journal, read
from treadle.record.merge import MergeReport, altered, data_file, merge
from treadle.record.parts import KEPT, recover, reopen
from treadle.record.run_directory import FAILURES, SUMMARY, RunDirectory, remove
from treadle.record.summary import Summary, about_episodes, write_summary
from treadle.sample.skipping import Skipped

MOST_NAMED = 20  # shards that are missing


def shard_of(text: str | None, episodes: int | None) -> tuple[int, int]:
    """(i, n) of "i/n"; (0, 1) of None. Raises UsageError for what is not a shard of so many episodes."""
    if text is None:
        return 0, 1
    match = re.fullmatch(r"(\d+)/(\d+)", str(text))
    if match is None or not int(match[1]) < int(match[2]):
        raise UsageError(f"shard (--shard) is i/n with i from 0 to n - 1, such as 0/4, got {text!r}")
    if episodes is None:
        raise UsageError(
            "shard (--shard) goes with a number of episodes, not of steps: a shard does not know the lengths of the "
            "other shards' episodes. Give --episodes (episodes=) instead"
        )
    i, n = int(match[1]), int(match[2])
    if i >= episodes:
        raise UsageError(f"shard {text} of {episodes} episodes is empty: make at most as many shards as episodes")
    return i, n


@suggests
def merge_shards(
    shards: Sequence[str | Path],
    out: str | Path,
    *,
    force: bool = False,
    allow_missing: bool = False,
    command: str = "treadle.merge_shards(...)",
) -> Summary:
    """Put the shards of a run together.

    Args:
        shards: the directories of all of them, in any order; they stay as they are.
        out: the directory of the whole run. Its files are those of a run without shards, except for times in the
            summary. `run.json` is signed if this user has signed all shards. The run can be resumed, and extended.
        force: replace the contents of `out`.
        allow_missing: go on without missing shards, and with the episodes of an unfinished one before its first gap.
            Then `out` is an unfinished run, which its command completes with --resume. The summary's `missing` lists
            the gaps, and its `hash` ends with "-incomplete".
        command: text for the summary's `command`.

    Returns:
        The summary, as in `out`/summary.json.

    Raises:
        Damaged: episodes of a shard differ from the written ones; they are named. Nothing is left in `out`.
        UsageError: a shard is missing, named twice, of another run, unfinished or damaged; or `out` is not empty.
    """
    start = perf_counter()
    if isinstance(shards, str) or not isinstance(shards, Iterable):
        raise UsageError(f"shards is a list of directories, got {shards!r}")
    paths = [path_of("a shard", each) for each in shards]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("a directory is named twice")
    if path_of("out", out).resolve() in {path.resolve() for path in paths}:
        raise UsageError(f"{out} is one of the shards: choose another directory (out=, --out)")
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path} is not the directory of a run")
    with ExitStack() as stack:
        places = {path: stack.enter_context(RunDirectory(path)) for path in paths}
        first, count, numbered = _checked(places, allow_missing)
        arguments, output = first["arguments"], first["output"]
        summaries = {path: found for path, place in places.items() if (found := place.summary())}
        said = list(summaries.values())
        if not said:
            raise UsageError("no shard has a summary.json yet: continue one with --resume, and stop it with Ctrl-C")
        target = stack.enter_context(RunDirectory(out))
        target.check(arguments, target.path / output, force=force, resume=None)
        own = not any(place.written()[1] for place in places.values())  # a stranger's is not signed as this user's
        gathered = target.new_parts()  # what is in `out` stays until all shards have been read
        spaces, skipped = _gathered(places, summaries, output, gathered)
        notes = recover(gathered)
        settled = {note.index for note in notes} | {each.index for each in skipped}
        ends, missing = _holes(settled, arguments["episodes"], count, numbered)
        if missing and not allow_missing:
            raise UsageError(f"shard {missing[0]['shard']} is damaged: it lacks episode {min(ends.values())}")
        merged = [note for note in notes if note.index < ends.get(note.index % count, 0)]
        if not merged:
            raise UsageError("the shards have no episode that is finished")
        target.begin(arguments, target.path / output, first["objects"], sign=own)
        try:
            target.note_skipped(skipped)
            skipped = [each for each in skipped if each.index < ends.get(each.index % count, 0)]
            about = minari_files.About(Path(output).stem, said[0].policy, *spaces)
            report = merge(target.parts, target.path, merged, about)
            for failures in (path / FAILURES for path in places):
                if failures.is_dir() and not failures.is_symlink():
                    shutil.copytree(failures, target.path / FAILURES, ignore=_links, dirs_exist_ok=True)
            summary = replace(
                _together(said, merged, skipped, report),
                command=command,
                hash=f"{report.hash}-incomplete" if missing else report.hash,
                missing=missing,
                seconds=perf_counter() - start,
            )
            write_summary(target.path / SUMMARY, summary)
        except BaseException:
            remove(target.path / FAILURES)
            target.abandon()
            raise
        if not missing:
            target.finish()
        return summary


def _gathered(
    places: dict[Path, RunDirectory], summaries: dict[Path, Summary], output: str, parts: Path
) -> tuple[list[Any], list[Skipped]]:
    """Put what all shards have among `parts`. Their spaces, as `minari.described` gives them, and what they left out.

    Raises Damaged, and UsageError for other damage.
    """
    spaces: list[Any] = [None, None, None]
    skipped: list[Skipped] = []
    for path, place in places.items():
        dataset = place.path / output
        try:
            if place.complete:
                summary = summaries[path]
                skipped += [Skipped(**each) for each in summary.skipped]
                for text in altered(dataset, summary):
                    raise ValueError(text)
                reopen(place.path / KEPT, data_file(dataset), parts)
            else:
                skipped += place.skipped()
                with Journal(parts, 0) as gathered:
                    for journal in place.journals():
                        for record in read(journal, "hdf5"):
                            gathered.write([record.buffer[record.begin : record.end]])
            if (dataset / "data").is_dir():
                spaces = minari_files.described(dataset / "data")
        except (ValueError, KeyError, ArithmeticError, FileNotFoundError) as error:
            raise UsageError(f"the dataset in {place.path} is damaged: {error}") from error
    if spaces[0] is None:
        raise UsageError("no shard has a dataset yet: continue one with --resume, and stop it with Ctrl-C")
    return spaces, skipped


def _holes(
    settled: Collection[int], episodes: int, count: int, places: dict[int, Path]
) -> tuple[dict[int, float], list[dict[str, Any]]]:
    """Of each shard the first episode that it lacks (inf: none), and what `Summary.missing` says of those that do.
    `places`: the shards' directories, by number."""
    ends, missing = dict[int, float](), list[dict[str, Any]]()
    for i in range(min(count, episodes)):
        first = next((index for index in range(i, episodes, count) if index not in settled), None)
        ends[i] = math.inf if first is None else first
        if first is not None:
            cause = f"{places[i]} is not finished" if i in places else "it is not among the directories"
            missing.append({"shard": f"{i}/{count}", "episodes": len(range(first, episodes, count)), "cause": cause})
    return ends, missing


def _together(
    said: Sequence[Summary], notes: Sequence[EpisodeNote], skipped: Iterable[Skipped], report: MergeReport
) -> Summary:
    """The summary of a run whose shards have `said` these, as far as that follows from them."""
    names = max((each.verified for each in said), key=len)
    return replace(
        said[0],
        **about_episodes(notes),
        **report.about,
        steps_per_second=sum(note.length for note in notes) / max(each.seconds for each in said),
        time_shares={},
        worker_shares=[],
        before=0,
        verified={name: sorted(i for each in said for i in each.verified.get(name, ())) for name in names},
        restarts=sum(each.restarts for each in said),
        speculative=sum(each.speculative for each in said),
        skipped=[vars(each) for each in sorted(skipped, key=lambda each: each.index)],
        warnings=[*dict.fromkeys(text for each in said for text in each.warnings), *report.warnings],
    )


def _links(folder: str, names: list[str]) -> list[str]:
    """Return the links, which are not copied: those in another user's directory may lead anywhere."""
    return [name for name in names if (Path(folder) / name).is_symlink()]


def _checked(places: dict[Path, RunDirectory], allow_missing: bool) -> tuple[dict[str, Any], int, dict[int, Path]]:
    """Return the arguments of the whole run, its number of shards, and theirs with their directories. Raises
    UsageError."""
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
        if not (place.complete or allow_missing):
            raise UsageError(
                f"shard {shard} in {path} is not finished: its command finishes it with --resume; allow_missing=True "
                "(--allow-missing) takes what it has"
            )
        try:
            i, n = shard_of(shard, begun["arguments"]["episodes"])
        except (KeyError, TypeError, ValueError):
            raise UsageError(f"{path} is damaged: {shard!r} is not a shard") from None
        if not whole:
            whole, count = begun, n
            first = path
        this = {**begun["arguments"], "--name": begun["output"], "n of --shard": n}
        that = {**whole["arguments"], "--name": whole["output"], "n of --shard": count}
        unlike = [f"{key} is {value!r}, not {that.get(key)!r}" for key, value in this.items() if value != that.get(key)]
        unlike += ["its objects (a policy, a function) are others"] if begun["objects"] != whole["objects"] else []
        if unlike:
            raise UsageError(f"{path} is of another run than {first}: {'; '.join(unlike)}")
        if i in found:
            raise UsageError(f"shard {shard} is there twice: {found[i]} and {path}")
        found[i] = path
    missing = list(islice((f"{i}/{count}" for i in range(count) if i not in found), MOST_NAMED))
    if missing and not allow_missing:
        raise UsageError(
            f"not all shards of the run are here: {', '.join(missing)} missing; allow_missing=True (--allow-missing) "
            "goes on without them"
        )
    return whole, count, found
