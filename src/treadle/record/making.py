"""A run that ends in files: episodes are made, each is encoded and stored by its worker, all are merged in order.

No finished episode is lost: until all are merged they lie in `DIR/.parts`. `resume` continues a run that was stopped by
Ctrl-C, an environment that raises, a full disk, or a kill. A run that notices its stop merges the episodes 0, 1, ...
before the first missing one, like a run of just so many episodes. Later finished ones stay in `.parts`: to store them
too would favour short episodes.

The `Product` of the episodes is a dataset or an evaluation.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn, Protocol

from treadle.checks import check_whole
from treadle.drawing import in_notebook
from treadle.errors import UsageError, Where
from treadle.play.recipe import RolloutRecipe, Shares
from treadle.program.policies import policy_name
from treadle.progress import Progress, Shows, Standing
from treadle.record import minari as minari_files
from treadle.record.identity import identities
from treadle.record.journal import REMEDY, Damaged, EpisodeNote, Journal, read
from treadle.record.merge import MergeReport
from treadle.record.parts import KEPT, PartWriter, recover
from treadle.record.run_directory import SUMMARY, RunDirectory
from treadle.record.summary import Summary, about_episodes, time_shares, write_summary
from treadle.record.verify import verify as verify_episodes
from treadle.repro import versions
from treadle.sample.collection import CALLER
from treadle.sample.failed import CollectionFailed, Failures
from treadle.sample.named import env_name
from treadle.sample.run import Run
from treadle.sample.schedule import Schedule
from treadle.sample.skipping import Skipped, remedy

log = logging.getLogger("treadle")

RETRY = "retry"  # a way to resume: what was left out is tried again
REPLACE = "replace"  # what is there goes, and the run begins again


class Product(Protocol):
    """The product of a run's episodes; a base class.

    Attributes:
        output: its path in DIR; it is removed when another run begins there.
        data: its file of episodes, as `treadle.record.hdf5.assemble` writes it.
        packages: packages whose versions its summary has.
        writer: makes a worker's `PartWriter`, but for its directory.
    """

    output: Path
    data: Path
    packages: Sequence[str] = ()
    writer: Callable[..., PartWriter]

    def sink(self, parts: Path) -> Callable[[int, Any, Any], Any]:
        """Return a worker's sink, which stores its episodes: see `RolloutRecipe.sink`."""
        return partial(self.writer, str(parts))

    def damage(self) -> str:
        """Return the damage of its other files, where its data exists; "" without damage."""

    def begin(self, notes: Sequence[EpisodeNote]) -> None:
        """Begin in the run's directory, with the episodes of an earlier part, before the first episode is made."""

    def lose(self, skipped: Collection[Skipped]) -> None:
        """Note all episodes that are left out; the directory has their list, too."""
        return

    def have(self, note: EpisodeNote) -> None:
        """Note a finished episode."""

    def merge(self, parts: Path, notes: list[EpisodeNote], spaces: Any, spec: str | None) -> MergeReport:
        """Make the product of these parts. `spec`: of the environment, as JSON. Raises OSError and Damaged."""

    def remarks(self, notes: Sequence[EpisodeNote], summary: Summary) -> list[dict[str, Any]]:
        """Return the remarks of a summary of these episodes."""
        return []


@dataclass(frozen=True, repr=False)
class Stored:
    """The contents of a run's directory.

    Attributes:
        directory: the run's directory, `out`.
        path: the dataset's folder; None without a dataset.
        summary: the dataset's summary; None without a dataset.
        complete: True if all episodes are there.
        finished: number of stored episodes, those in `.parts` included.
        before: number of these that an earlier part of a resumed run made.
        unchanged: True if the run was complete before, so that nothing was done.
    """

    directory: Path
    path: Path | None
    summary: Summary | None
    complete: bool
    finished: int
    before: int = 0
    unchanged: bool = False

    @property
    def dataset_id(self) -> str | None:
        """Return the id for `minari.load_dataset`; None without a dataset."""
        return None if self.path is None else f"{minari_files.NAMESPACE}/{self.path.name}"

    def __repr__(self) -> str:
        if self.summary is None:
            return f"<Stored: no dataset, {self.finished:,} finished episodes in {self.directory}>"
        note = "" if self.complete else f", incomplete, {self.finished:,} episodes are finished"
        return f"<Stored: {self.summary.in_short} in {self.path}{note}>"

    def _repr_html_(self) -> str | None:
        found = self.summary
        return None if found is None else in_notebook(repr(self)[1:-1], found.returns, found.successes)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run. `stored`: a `Stored` for a dataset; for `evaluate` an `Evaluation`, None without episodes."""

    def __init__(self, stored: Any) -> None:
        super().__init__(stored)
        self.stored = stored

    def __str__(self) -> str:
        return "" if self.stored is None else f"{self.stored} (in .stored)"


@dataclass(frozen=True)
class Making:
    """How a run becomes files.

    Attributes:
        command: of the summary: what was typed, or the call that stands for it.
        resume, progress: as of `treadle.collect_dataset`.
        verify: how many episodes are made again to see whether the seed alone decides them. Of a complete run that is
            resumed so many are made again if it were fewer.
        shard: (i, n): the episodes i, i + n, i + 2n, ... are made.
    """

    command: str
    resume: bool | str = False
    verify: int = 0
    shard: tuple[int, int] = (0, 1)
    progress: Shows = False


def make(
    run: Run,
    product: Product,
    place: RunDirectory,
    how: Making,
    *,
    about: Mapping[str, Any],
    tell: Callable[[Standing], None] | None = None,
) -> Stored:
    """Play a run and make the product of its episodes in a directory that is claimed.

    Args:
        about: entries of `run.json` besides those of the run.
        tell: called with the standing of the run, at most ten times a second.

    Raises:
        As `treadle.collect_dataset`.
    """
    resume, verify = how.resume, how.verify
    check_whole(0, none=False, verify=verify)
    if resume not in (True, False, RETRY, REPLACE):
        raise UsageError(f"resume is True, False, {RETRY!r} or {REPLACE!r}, got {resume!r}")
    force, retry_skipped, resume = resume == REPLACE, resume == RETRY, resume in (True, RETRY)
    arguments, objects = {**run.as_json(), **about}, identities(**run.objects())
    checked = place.check(arguments, product.output, force=force, resume=resume, objects=objects)
    had: list[EpisodeNote] = []
    left_out: list[Skipped] = []
    reopened = False
    if resume and place.complete and (found := place.summary()):
        if not product.data.exists():
            log.warning(
                "the run in %s was complete, but its dataset %s is gone: it is made again", place.path, product.output
            )
        else:
            _check_size(product.data, found)
            damage = product.damage()
            if not damage and not checked.grown and not (retry_skipped and found.skipped):
                found = _verified_again(place.path, run, product, found, verify)
                return Stored(place.path, product.output, found, True, found.episodes, found.episodes, True)
            if damage:
                log.warning("damaged: %s; the dataset is put together again from its data", damage)
            left_out = [] if retry_skipped else [Skipped(**each) for each in found.skipped]
            had, reopened = place.reopen(product.data, left_out), True
    elif resume:
        had, left_out = place.recover(), [] if retry_skipped else place.skipped()
    for warning in checked.warnings:
        log.warning("%s", warning)
    shown = Progress(how.progress)

    def standing(now: Standing) -> None:
        if run.kept is not None:
            now.result = f"{sum(not note.unfit for note in going.notes.values()):,} of {run.kept:,} kept"
        for each in filter(None, (tell, shown.tell)):
            each(now)
        place.check_there()

    going = _Going(place, run, product, replace(run.recipe, sink=product.sink(place.parts)), how.shard)
    going.begin(had, left_out, standing)

    def prepare() -> None:
        if reopened:
            place.reopened()
        if not (resume and place.parts.exists()):
            place.begin(arguments, product.output, objects)
        else:
            if retry_skipped:
                place.note_skipped([])
            if checked.grown:
                place.grow(arguments)
        product.begin(had)
        product.lose(left_out)

    with shown:
        return going.go(prepare, verify, how.command)


def _verified_again(place: Path, run: Run, product: Product, summary: Summary, count: int) -> Summary:
    """The summary of a complete run in the directory `place`, of which `count` episodes are made again unless so many
    were before."""
    if min(count, summary.episodes) <= len(summary.verified.get("episodes", ())):
        return summary
    try:
        notes = [record.note for record in read(place / KEPT, "kept")]
    except (OSError, ValueError) as error:
        log.warning("no episode is made again to verify the run: %s", error)
        return summary
    verified, said = verify_episodes(run, notes, count, product.data)
    summary = replace(summary, verified=verified, warnings=list(dict.fromkeys([*summary.warnings, *said])))
    summary = replace(summary, remarks=product.remarks(notes, summary))
    write_summary(place / SUMMARY, summary)
    return summary


def _check_size(path: Path, summary: Summary) -> None:
    """Raises Damaged where a complete run's data file is a copy that was cut short."""
    size = path.stat().st_size
    if summary.data_bytes not in (0, size):
        text = f"it has {size:,} bytes and was written with {summary.data_bytes:,}"
        raise Damaged(f"{path} is damaged: {text}; {REMEDY}")


@dataclass
class _Going:
    """A run that is made, from its workers' start to its summary. `_recipe`: with the sink that stores episodes."""

    _place: RunDirectory
    _run: Run
    _product: Product
    _recipe: RolloutRecipe
    _shard: tuple[int, int]

    def begin(self, had: list[EpisodeNote], left_out: list[Skipped], tell: Callable[[Standing], None]) -> None:
        """Start the workers. Nothing is written yet."""
        run = self._run
        self.notes = {note.index: note for note in had}
        self._had = frozenset(self.notes)
        before = [each for each in left_out if each.index not in self.notes]
        self._failures = Failures(before, self._note_skipped)
        self._skipped = self._failures.left_out
        schedule = self._schedule({note.index: note.length for note in had})
        so_far = schedule.skipped, schedule.episodes, len(had)
        if run.skipping.skip and left_out and (why := run.skipping.too_many(*so_far)):
            goes_on = f"--resume {remedy(*so_far)} goes on, --resume --retry-skipped tries them again"
            raise UsageError(f"{why}; {goes_on} (max_skipped=, resume={RETRY!r})")
        began = perf_counter()
        self._collection = run.collection(
            schedule, recipe=self._recipe, failures=self._failures, keep=self._place.keep_failure, tell=tell
        )
        # how long a cluster takes to start says nothing of the rate
        self._start = began if run.cluster is None else perf_counter()
        self._starting = self._start - began
        self._spec = _limited(self._collection.pool.descriptions[0].metadata["spec"], self._recipe.max_steps)

    def go(self, prepare: Callable[[], None], verify: int, command: str) -> Stored:
        """Make room (`prepare`), now that all environments could be built; collect, merge, verify, summarize."""
        stopped: KeyboardInterrupt | CollectionFailed | None = None
        shares: dict[int, Shares] = {}
        report: MergeReport | None = None
        verdict = ""
        run, place = self._collection, self._place
        try:
            with run:
                prepare()
                self._collect()
                shares = run.shares()
                verdict = run.verdict(shares, sum(note.length for note in self.notes.values()))
        except (KeyboardInterrupt, CollectionFailed) as error:
            stopped = error
        place.check_there()
        collected = perf_counter() - self._start
        if stopped is not None or run.tally.restarts:
            # a worker may have stored an episode and died (or been stopped) before it could tell
            self.notes = {note.index: note for note in recover(place.parts)}
        notes, skipped, complete = self._prefix()
        if complete and stopped is None and (why := self._run.too_rare(len(notes), len(self._unfit))):
            stopped, complete = CollectionFailed(why, where=Where(phase="stream"), reason=why), False
        try:
            report = self._product.merge(place.parts, notes, run.spaces, self._spec) if notes else None
        except (OSError, Damaged) as error:
            if not isinstance(stopped, CollectionFailed):
                stopped = _unmerged(error, len(self.notes))
        except KeyboardInterrupt as error:
            stopped = error
        if report is None:
            self._raise(stopped, self._stored(None, None, False))
        seconds = perf_counter() - self._start
        made = [note for note in notes if note.index not in self._had]
        summary = Summary(
            **about_episodes(notes),
            **report.about,
            command=command,
            versions=versions("treadle", "gymnasium", "numpy", *self._product.packages, *_packages(self._spec)),
            env_id=env_name(self._run.recipe.env.env),
            policy=policy_name(self._run.policy),
            seed=self._run.seed,
            recoverable=self._spec is not None,
            inference=run.stats(),
            verdict=verdict,
            before=len(notes) - len(made),
            seconds=seconds,
            start_seconds=self._starting,
            steps_per_second=sum(note.length for note in made) / seconds,
            time_shares=time_shares(shares.values(), seconds - collected),
            worker_shares=[min(1.0, each.busy / collected) for at, each in sorted(shares.items()) if at != CALLER],
            restarts=run.tally.restarts,
            added=run.tally.added,
            speculative=run.tally.speculative,
            skipped=[vars(each) for each in skipped],
            unfit=dict(sorted(Counter(each.unfit for each in self._unfit).items())),
            warnings=[*run.notes(), *report.warnings],
        )
        if not complete:
            summary.warnings.append(
                f"incomplete: the run was stopped after {len(notes)} episodes in a row were finished"
            )
        elif verify and stopped is None:
            try:
                few = min(verify, run.source.workers)
                verified, said = verify_episodes(self._run, notes, verify, self._product.data, few)
                summary = replace(summary, verified=verified, warnings=[*summary.warnings, *said])
            except KeyboardInterrupt:
                summary.warnings.append("verification was interrupted; the dataset is complete")
        summary = replace(summary, remarks=self._product.remarks(notes, summary))
        write_summary(place.path / SUMMARY, summary)
        if complete:
            place.finish()
        stored = self._stored(report, summary, complete)
        if not complete:
            self._raise(stopped, stored)
        return stored

    def _collect(self) -> None:
        notes = self.notes
        with Journal(self._place.parts, 0) as sent:
            for index, _, result in self._collection:
                notes[index] = note = sent.note(result)
                self._product.have(note)

    def _note_skipped(self, failures: Failures) -> None:
        self._place.note_skipped(failures.left_out.values())
        self._product.lose(failures.left_out.values())

    def _prefix(self) -> tuple[list[EpisodeNote], list[Skipped], bool]:
        """Return (notes, left out, complete) of the episodes 0, 1, ... before the first missing one.

        complete: True if they are the whole run.
        """
        lengths = {note.index: note.length for note in self.notes.values()}
        schedule = self._schedule(lengths)
        run = range(schedule.prefix)
        found = [self.notes[index] for index in run if index in lengths]
        notes, self._unfit = [e for e in found if not e.unfit], [e for e in found if e.unfit]
        return notes, [self._skipped[index] for index in run if index in schedule.skipped], schedule.complete

    def _schedule(self, have: dict[int, int]) -> Schedule:
        unfit = [note.index for note in self.notes.values() if note.unfit]
        return self._run.schedule(have=have, skipped=self._skipped, shard=self._shard, unfit=unfit)

    def _stored(self, report: MergeReport | None, summary: Summary | None, complete: bool) -> Stored:
        path = None if report is None else report.path
        return Stored(self._place.path, path, summary, complete, len(self.notes), len(self._had))

    def _raise(self, stopped: KeyboardInterrupt | CollectionFailed | None, stored: Stored) -> NoReturn:
        if not stored.finished:
            self._place.abandon()
        if isinstance(stopped, CollectionFailed):
            stopped.finished, stopped.stored = stored.finished, stored
            raise stopped
        raise Interrupted(stored) from None


def _unmerged(error: OSError | Damaged, finished: int) -> CollectionFailed:
    # what failed is in the text of the error
    reason = str(error) if isinstance(error, Damaged) else f"{error.strerror}: {error.filename}"
    failed = CollectionFailed(reason, where=Where(phase="write"), reason=reason)
    failed.__cause__ = error
    failed.finished = finished
    return failed


def _limited(spec: str | None, max_steps: int | None) -> str | None:
    """The spec whose environment is cut after as many steps as the run's were."""
    if spec is None or max_steps is None:
        return spec
    fields = json.loads(spec)
    fields["max_episode_steps"] = min(max_steps, fields.get("max_episode_steps") or max_steps)
    return json.dumps(fields)


def _packages(spec: str | None) -> list[str]:
    """Return the packages whose versions decide an environment's behaviour, as far as its entry point shows."""
    if spec is None:
        return []
    entry = str(json.loads(spec).get("entry_point") or "")
    return [entry.split(":")[0].split(".")[0].replace("_", "-"), "mujoco" if "mujoco" in entry else "treadle"]
