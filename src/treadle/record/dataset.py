"""A run that ends in a dataset: episodes are made, each is encoded and stored by its worker, all are merged in order.

Nothing that was finished is lost: until everything is merged the episodes lie in `DIR/.parts`, and a run that was
stopped (by Ctrl-C, an environment that raises, a full disk, a kill) is continued with `resume`. A run that is stopped
in a way that can be noticed merges the episodes 0, 1, ... up to the first one that is missing, which is what
a run of just so many episodes gives. Those finished beyond it stay in `.parts`: storing them too would favour short
ones.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn, Unpack

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle.checks import check_whole, path_of
from treadle.errors import MissingExtra, UsageError, Where
from treadle.play.recipe import RolloutRecipe, Shares
from treadle.program.policies import policy_name
from treadle.progress import Progress, Standing, html_table
from treadle.record import minari as minari_files
from treadle.record.columns import hasher
from treadle.record.hdf5 import deflater
from treadle.record.identity import identities
from treadle.record.journal import REMEDY, Damaged, EpisodeNote, Journal
from treadle.record.merge import MergeReport, data_file, merge
from treadle.record.parts import PartWriter, recover
from treadle.record.run_directory import FORMAT, SUMMARY, RunDirectory
from treadle.record.shards import shard_of
from treadle.record.summary import Summary, about_episodes, rows_of, time_shares, write_summary
from treadle.record.verify import verify as verify_episodes
from treadle.record.verify import verify_again
from treadle.repro import versions
from treadle.sample.collection import CALLER
from treadle.sample.failed import CollectionFailed, Failures
from treadle.sample.named import env_name, file_and_name
from treadle.sample.run import Run, RunKeywords
from treadle.sample.schedule import Schedule
from treadle.sample.skipping import Skipped, remedy
from treadle.whole_file import read_json

log = logging.getLogger("treadle")


@dataclass(frozen=True, repr=False)
class Stored:
    """What is in a run's directory now.

    Attributes:
        directory: DIR.
        path: the dataset's folder; None when there is none.
        summary: of the dataset; None when there is none.
        complete: does it have everything that was asked for?
        finished: episodes that are stored, those in `.parts` included.
        before: how many of them were there before (a resumed run).
        unchanged: was everything there already, so that nothing was done?
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
        """What `minari.load_dataset` takes; None when there is no dataset."""
        return None if self.path is None else f"{minari_files.NAMESPACE}/{self.path.name}"

    def __repr__(self) -> str:
        if self.summary is None:
            return f"<Stored: no dataset, {self.finished:,} finished episodes in {self.directory}>"
        note = "" if self.complete else f", incomplete, {self.finished:,} episodes are finished"
        return f"<Stored: {self.summary.in_short} in {self.path}{note}>"

    def _repr_html_(self) -> str | None:
        if self.summary is None:
            return html_table([("finished", f"{self.finished:,}"), ("in", str(self.directory))], title="no dataset")
        rows = rows_of(self.summary, before=self.before)
        return html_table(rows, title=f"{self.path}{'' if self.complete else ' (incomplete)'}")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run. `stored` says what is there."""

    stored: Stored

    def __init__(self, stored: Stored) -> None:
        super().__init__()
        self.stored = stored


def collect_dataset(
    env: str | EnvSpec | Callable[..., gym.Env],
    policy: Any = None,
    *,
    out: str | Path,
    name: str | None = None,
    force: bool = False,
    resume: bool = False,
    retry_skipped: bool = False,
    verify: int = 1,
    shard: str | None = None,
    shared_out: bool = False,
    command: str = "treadle.record.dataset.collect_dataset(...)",
    watch: Callable[[Standing], None] | None = None,
    progress: bool | None = False,
    **run: Unpack[RunKeywords],
) -> Stored:
    """Collect a dataset into the directory `out`.

    Args:
        env, policy, run: which episodes, and how workers are run: see `treadle.sample.run.Run`. One of `episodes` and
            `steps` is given. With on_error="skip" what is left out is in the summary's `skipped`; the others are
            numbered without gaps, and each has its index in the run as `episode_index`. The bytes are those of any run
            that leaves out the same episodes. With a cluster, episodes are encoded on its nodes, and their bytes
            written here.
        out: the directory; `MINARI_DATASETS_PATH` for loading. It holds one run.
        name: of the dataset, "reach-weak" or "reach-weak-v1", which Minari loads as "treadle/reach-weak-v1"; None: made
            of the environment's name, with its file's before it where it is named by one, and the policy's. A run that
            is resumed keeps its name.
        force: replace what an earlier run left in `out`; that is removed when all environments could be built.
        resume: continue the run that was begun in `out` with the same arguments, or with more `episodes` or `steps`:
            its finished episodes are kept, and it ends with the same bytes as if it had not been stopped. With nothing
            there it begins one, with a complete run there it does nothing, unless its dataset was removed,
            which is then made again. Objects (a policy, a function) are compared by what they are made of, not by name
            alone.
        retry_skipped: with `resume`: try those again that were left out, which else stay so.
        verify: how many episodes are made again to see whether the seed alone decides them; the summary's `verified`
            says which, and a difference is among its warnings. Of a complete run that is resumed so many are made again
            if it were fewer.
        shard: "i/n": make only the episodes i, i + n, i + 2n, ... of the `episodes`, for machines that know nothing of
            one another; `merge_shards` puts the n directories together, with the bytes of a run without.
        shared_out: with a cluster: `out` is a folder that all its nodes see, so each writes there what it has made.
        command: what the summary says made the dataset.
        watch: called with the standing of the run, at most ten times a second.
        progress: as for `collect`.

    Raises:
        UsageError: contradictory arguments; `out` in use, or not empty without `force` or `resume`, or begun with
            other arguments. MissingExtra: no Minari or h5py.
        StartupFailed: an environment could not be built. What was in `out` is untouched.
        CollectionFailed: the run was stopped; its `stored` (a `Stored`) says what is there.
        Interrupted: the same for Ctrl-C.
        Damaged: episodes that are there are not what was written; they are named, and nothing is changed.
        OSError: `out` cannot be made or written; or it was removed, moved or replaced during the run.
    """
    made = Run.of(collect_dataset, RunKeywords, env, policy, **run)
    if made.episodes is None and made.steps is None:
        raise UsageError("give either episodes or steps (--episodes N or --steps N)")
    if force and resume:
        raise UsageError("force starts again and resume continues: give one of them")
    check_whole(0, none=False, verify=verify)
    if retry_skipped and not resume:
        raise UsageError("retry_skipped is for a run that is resumed: give resume (--resume) too")
    part = shard_of(shard, made.episodes)
    _require_packages()
    arguments = {**made.as_json(), "format": FORMAT}
    if shard is not None:
        arguments["shard"] = shard
    objects = identities(**made.objects())
    name = None if name is None else minari_files.checked_name(name)
    default = minari_files.dataset_name(file_and_name(made.recipe.env.env), policy_name(policy))
    folder = path_of("out", out).absolute()
    with RunDirectory(out) as place:
        name = place.name_of(name, default) if resume else name or default
        output = folder / minari_files.NAMESPACE / name
        checked = place.check(arguments, output, force=force, resume=resume, objects=objects)
        had: list[EpisodeNote] = []
        left_out: list[Skipped] = []
        reopened = False
        if resume and place.complete and (found := place.summary()):
            if not data_file(output).exists():
                log.warning("the run in %s was complete, but its dataset %s is gone: it is made again", folder, output)
            else:
                _check_size(data_file(output), found)
                undescribed = _undescribed(output)
                if not undescribed and not checked.grown and not (retry_skipped and found.skipped):
                    found = verify_again(folder, made, found, verify, output)
                    return Stored(folder, output, found, True, found.episodes, found.episodes, True)
                if undescribed:
                    log.warning("damaged: %s; the dataset is put together again from its data", undescribed)
                left_out = [] if retry_skipped else [Skipped(**each) for each in found.skipped]
                had, reopened = place.reopen(data_file(output), left_out), True
        elif resume:
            had, left_out = place.recover(), [] if retry_skipped else place.skipped()
        for warning in checked.warnings:
            log.warning("%s", warning)
        sends = made.cluster is not None and not shared_out
        sink = partial(PartWriter, str(place.parts), infos=made.infos, send=sends)
        going = _Going(place, made, replace(made.recipe, sink=sink), part, env_name(made.recipe.env.env), name)
        shown = Progress(progress)

        def tell(now: Standing) -> None:
            for each in filter(None, (watch, shown.tell)):
                each(now)
            place.check_there()

        going.begin(had, left_out, tell)

        def prepare() -> None:
            if reopened:
                place.reopened()
            if not (resume and place.parts.exists()):
                place.begin(arguments, output, objects)
                return
            if retry_skipped:
                place.note_skipped([])
            if checked.grown:
                place.grow(arguments)

        with shown:
            return going.go(prepare, verify, command)


def _check_size(path: Path, summary: Summary) -> None:
    """Raises Damaged where a complete run's data file is a copy that was cut short."""
    size = path.stat().st_size
    if summary.data_bytes not in (0, size):
        text = f"it has {size:,} bytes and was written with {summary.data_bytes:,}"
        raise Damaged(f"{path} is damaged: {text}; {REMEDY}")


def _undescribed(output: Path) -> str:
    """What is wrong with the description of a complete run's dataset, without which Minari cannot load it; "" for
    nothing. A person may have changed its words."""
    path = output / "data" / minari_files.METADATA_FILE
    try:
        if type(read_json(path)) is not dict:
            return f"{path} is no JSON object"
    except (OSError, ValueError) as error:
        return f"{path}: {error}"
    return ""


def _require_packages() -> None:
    """Before any worker starts: what a dataset needs."""
    deflater()
    hasher()
    for package in ("minari", "h5py"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"a dataset needs the package {package}: pip install 'treadle[data]'")


@dataclass
class _Going:
    """A run that is made, from its workers' start to its summary. `_recipe`: with the sink that stores episodes."""

    _place: RunDirectory
    _run: Run
    _recipe: RolloutRecipe
    _shard: tuple[int, int]
    _env_id: str
    _name: str

    def begin(self, had: list[EpisodeNote], left_out: list[Skipped], tell: Callable[[Standing], None]) -> None:
        """Start the workers. Nothing is written yet."""
        run = self._run
        self._notes = {note.index: note for note in had}
        self._had = frozenset(self._notes)
        before = [each for each in left_out if each.index not in self._notes]
        self._failures = Failures(before, lambda failures: self._place.note_skipped(failures.left_out.values()))
        self._skipped = self._failures.left_out
        schedule = self._schedule({note.index: note.length for note in had})
        so_far = schedule.skipped, schedule.episodes, len(had)
        if run.skipping.skip and left_out and (why := run.skipping.too_many(*so_far)):
            goes_on = f"--resume {remedy(*so_far)} goes on, --resume --retry-skipped tries them again"
            raise UsageError(f"{why}; {goes_on} (max_skipped=, retry_skipped=True)")
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
        run, place = self._collection, self._place
        try:
            with run:
                prepare()
                self._collect()
                shares = run.shares()
        except (KeyboardInterrupt, CollectionFailed) as error:
            stopped = error
        place.check_there()
        collected = perf_counter() - self._start
        if stopped is not None or run.tally.restarts:
            # a worker may have stored an episode and died (or been stopped) before it could tell
            self._notes = {note.index: note for note in recover(place.parts)}
        notes, skipped, complete = self._prefix()
        try:
            about = minari_files.About(self._name, policy_name(self._run.policy), *run.spaces, self._spec)
            report = merge(place.parts, place.path, notes, about) if notes else None
        except (OSError, Damaged) as error:
            if not isinstance(stopped, CollectionFailed):
                stopped = _unmerged(error, len(self._notes))
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
            versions=versions("treadle", "gymnasium", "numpy", "minari", *_packages(self._spec)),
            env_id=self._env_id,
            policy=about.policy,
            seed=self._run.seed,
            recoverable=self._spec is not None,
            inference=run.stats(),
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
            warnings=[*run.notes(), *report.warnings],
        )
        if not complete:
            summary.warnings.append(
                f"incomplete: the run was stopped after {len(notes)} episodes in a row were finished"
            )
        elif verify and stopped is None:
            try:
                few = min(verify, run.source.workers)
                verified, said = verify_episodes(self._run, notes, verify, report.path, few)
                summary = replace(summary, verified=verified, warnings=[*summary.warnings, *said])
            except KeyboardInterrupt:
                summary.warnings.append("verification was interrupted; the dataset is complete")
        write_summary(place.path / SUMMARY, summary)
        if complete:
            place.finish()
        stored = self._stored(report, summary, complete)
        if not complete:
            self._raise(stopped, stored)
        return stored

    def _collect(self) -> None:
        notes = self._notes
        with Journal(self._place.parts, 0) as sent:
            for index, _, result in self._collection:
                note = sent.note(result)
                if not notes:
                    minari_files.require()  # to merge with: importing it takes 40 ms; the workers play on
                notes[index] = note

    def _prefix(self) -> tuple[list[EpisodeNote], list[Skipped], bool]:
        """The episodes 0, 1, ... that are there and belong to the run, those among them that are left out, and whether
        they are all of it."""
        lengths = {note.index: note.length for note in self._notes.values()}
        schedule = self._schedule(lengths)
        run = range(schedule.prefix)
        notes = [self._notes[index] for index in run if index in lengths]
        return notes, [self._skipped[index] for index in run if index in schedule.skipped], schedule.complete

    def _schedule(self, have: dict[int, int]) -> Schedule:
        return self._run.schedule(have=have, skipped=self._skipped, shard=self._shard)

    def _stored(self, report: MergeReport | None, summary: Summary | None, complete: bool) -> Stored:
        path = None if report is None else report.path
        return Stored(self._place.path, path, summary, complete, len(self._notes), len(self._had))

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
    """Packages whose version decides what an environment does, as far as its entry point tells."""
    if spec is None:
        return []
    entry = str(json.loads(spec).get("entry_point") or "")
    return [entry.split(":")[0].split(".")[0].replace("_", "-"), "mujoco" if "mujoco" in entry else "treadle"]
