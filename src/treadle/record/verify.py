"""Verify a run: its files against their digests, and its episodes against their seeds.

`about` and `damage` read the files; they change nothing in the run's directory, take no lock and do not wait. `verify`
makes some episodes again in fresh environments and compares them.

An environment may carry state over from one episode to the next, or look at the clock. Then an episode depends on more
than its seed. One run cannot show that, so a few episodes are played a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from treadle import seeding
from treadle.errors import UsageError
from treadle.play.episode import Episode
from treadle.play.recipe import RolloutRecipe
from treadle.progress import Standing
from treadle.record.columns import Column, columns_of, digester
from treadle.record.hdf5 import arrays_of
from treadle.record.journal import EpisodeNote, read
from treadle.record.merge import altered, data_file
from treadle.record.parts import KEPT, again
from treadle.record.run_directory import ARGUMENTS, FAILURES, RunFiles
from treadle.record.shards import shard_of
from treadle.record.summary import summary_rows
from treadle.repro import SUFFIX, Repro
from treadle.sample.failed import CollectionFailed
from treadle.sample.run import Run
from treadle.sample.schedule import Schedule
from treadle.trees import first_difference

_PATH = 3  # the first number of the seed path of this choice
BY_BATCH = (
    "the policy's actions may depend in their last bits on the batch of a row. --pad-to 8 (or a multiple of it) "
    "may mend that"
)
CHANGES = (
    "and differently once more: the seed does not decide it. In reset(seed=...) the environment must seed all that it "
    "draws from (super().reset(seed=seed), then self.np_random)"
)
ANEW = "although every episode had an environment of its own: something besides the seed decides"
ADVICE = {  # by what came of it when it was made once more: without and with a policy that may keep something
    "changes": (CHANGES, f"{CHANGES}, and a policy of its own must take rng or reset(seed=...)"),
    "anew": (ANEW, f"{ANEW}, perhaps a policy that keeps a state from one episode to the next"),
    "kept": (
        "--fresh-env, which builds an environment per episode, may mend that",
        "the environment or the policy keeps something from one episode to the next. For the environment "
        "--fresh-env, which builds one per episode, may mend that; for the policy a reset(seed=...) or rng",
    ),
}


def choose(root: int, notes: Sequence[EpisodeNote], count: int) -> list[int]:
    """`count` of the episodes (or all there are), drawn from the run's seed; their indices, in order."""
    rng = np.random.Generator(np.random.PCG64(seeding.derive(root, _PATH)))
    picked = rng.choice(len(notes), min(count, len(notes)), replace=False)
    return sorted(notes[i].index for i in picked)


def verify(
    run: Run, notes: Sequence[EpisodeNote], count: int, stored: Path, workers: int | None = None
) -> tuple[dict[str, list[int]], list[str]]:
    """Make `count` random episodes again, here, and compare them with what is stored.

    Args:
        run: what made them.
        notes: of the stored episodes, in their order.
        stored: the file that holds them.
        workers: how many; None: as many as the run's.

    Returns:
        What `Summary.verified` says; and one line for each episode that came out differently, naming the first step
        that differs, or could not be made.
    """
    chosen = choose(run.seed, notes, count)
    digests = {note.index: note.digest for note in notes}
    unlike: dict[int, tuple[Episode, str, tuple[int, str] | None]] = {}
    said: list[str] = []
    made: list[int] = []
    try:
        for episode, digest, columns in _made(run, chosen, workers):
            made.append(episode.index)
            if digest != digests[episode.index]:
                before = arrays_of(stored, [note.index for note in notes].index(episode.index))
                seen = any(name.startswith("observations") for name in before)  # an evaluation stores none
                again = {"/".join(path): array for path, array in columns if seen or path[0] != "observations"}
                unlike[episode.index] = episode, digest, first_difference(before, again, _begins)
        # once more, in the same way: what now differs again is not decided by the seed, wherever it is made
        once_more = {e.index: digest for e, digest, _ in _made(run, list(unlike), workers)}
    except CollectionFailed as error:
        once_more = {}
        said.append(f"an episode could not be made again in a fresh environment: {error}")
    for index, (episode, digest, difference) in sorted(unlike.items()):
        said.append(_difference_text(episode, difference, run.recipe, once_more.get(index, digest) == digest))
    return {"episodes": sorted(made), "unequal": sorted(unlike)} if made else {}, said


def _made(run: Run, chosen: Sequence[int], workers: int | None) -> Iterator[tuple[Episode, str, list[Column]]]:
    """Episodes in fresh environments, with their digests and columns."""
    if not chosen:
        return
    last, digest = max(chosen), digester()
    schedule = Schedule(last + 1, have={i: 0 for i in range(last + 1) if i not in set(chosen)})
    again = replace(run.recipe, fresh_env=True)
    # what they print was shown when they were made, perhaps on nodes
    here = {"workers": workers or run.count, "skipping": None, "worker_output": "keep", "placement": None}
    with run.collection(schedule, recipe=again, **here) as playing:
        for _, _, episode in playing:
            columns, _ = columns_of(episode, infos=run.infos)
            yield episode, digest(columns).hex(), columns


def _difference_text(episode: Episode, difference: tuple[int, str] | None, recipe: RolloutRecipe, repeats: bool) -> str:
    """Return the warning about an episode. `repeats`: True if both plays in a fresh environment were the same."""
    step, name = difference or (0, "its encoding")
    stateful = recipe.policy not in (None, "random")
    if name.split("/")[0] == "infos":
        advice = "an info may hold the time or an address; --no-infos leaves infos out"
    elif recipe.asking is not None and recipe.asking.pad_to is None and (repeats or step > 0):
        advice = BY_BATCH
    else:
        cause = "changes" if not repeats else "anew" if recipe.fresh_env else "kept"
        advice = ADVICE[cause][stateful]
    return (
        f"episode {episode.index} (seed {episode.seed}) was made again and came out differently, first at step {step} "
        f"({name}); {advice}"
    )


def _begins(name: str) -> int:
    """The step of an array's first row, 0 being the reset."""
    return 0 if name.split("/")[0] in ("observations", "infos") else 1


def about(directory: Path) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Return the rows of a run's table, and a dict for JSON.

    The dict has the run's "arguments", its "summary" (None before the first), and the state of an incomplete run as
    "unfinished" (else "").

    Raises:
        UsageError: the directory has no run, or `run.json` or `summary.json` is damaged.
    """
    place = RunFiles(directory)
    begun, summary, unfinished = place.begun(), place.summary(), ""
    arguments = begun["arguments"]
    if not place.complete:
        lost: list[int | None] = []
        notes = {record.note.index: record.note for path in place.journals() for record in read(path, lost=lost)}
        mean = sum(note.total_reward for note in notes.values()) / max(1, len(notes))
        shard = shard_of(arguments.get("shard"), arguments["episodes"])
        of = Schedule(arguments["episodes"], arguments["steps"], shard=shard).standing()
        wanted = f"{of.of_episodes:,} episodes" if of.of_episodes else f"the episodes of {of.of_steps:,} steps"
        unfinished = (
            f"{len(notes):,} of {wanted} are finished (mean return {mean:,.2f}), {len(place.skipped()):,} left out, "
            f"{len(lost):,} damaged; the run's command with --resume continues"
        )
    named = {"environment": "env", "policy": "policy", "seed": "seed", "shard": "shard"}
    rows = [(what, str(arguments[name])) for what, name in named.items() if name in arguments]
    rows += [("unfinished", unfinished)] if unfinished else []
    if summary is not None:
        rows += [("dataset", str(directory / begun["output"])), *summary_rows(summary)]
    return rows, {"arguments": arguments, "unfinished": unfinished, "summary": vars(summary) if summary else None}


def damage(directory: Path, tell: Callable[[Standing], None] = lambda now: None) -> tuple[int, list[str]]:
    """Return the number of stored episodes that were read, and a line for each damaged episode and file.

    Args:
        directory: of a run, complete or not.
        tell: called with the `Standing` after each episode.

    Raises:
        UsageError: the directory has no run.
    """
    said: list[str] = []
    now = Standing()

    def see(note: EpisodeNote) -> None:
        now.episodes, now.steps = now.episodes + 1, now.steps + note.length
        now.made_steps = now.steps
        tell(now)

    place = RunFiles(directory)
    if not place.begun_there:
        raise UsageError(f"{directory} is not the directory of a run: it has no {ARGUMENTS}")
    with _noted(said):
        begun = place.begun()
        for path in place.journals():
            lost: list[int | None] = []
            with _noted(said):
                for record in read(path, lost=lost):
                    see(record.note)
            said += [f"episode {'(which cannot be read)' if i is None else i} in {path} is damaged" for i in lost]
        with _noted(said):
            place.skipped()
        for file in sorted((directory / FAILURES).glob(f"*{SUFFIX}")):
            with _noted(said):
                Repro.load(file)
        summary = place.summary()
        if summary is None:
            return now.episodes, said
        now.of_episodes = now.episodes + summary.episodes
        dataset = directory / begun["output"]
        said += altered(dataset, summary)
        file = data_file(dataset)
        for note, record_again in again(directory / KEPT, file):
            see(note)
            said += [] if record_again else [f"episode {note.index} in {file} is damaged"]
    return now.episodes, said


@contextmanager
def _noted(said: list[str]) -> Iterator[None]:
    """A block that reads: its exceptions become lines."""
    try:
        yield
    except (ValueError, TypeError, KeyError, RuntimeError, OSError) as error:
        said.append(str(error))
