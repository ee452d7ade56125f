"""Is a dataset what its seed says? Some of its episodes are made again, in fresh environments, and compared.

An environment may carry something over from one episode to the next, or look at the clock; then an episode depends on
more than its seed. That cannot be seen from one run, so a few episodes are played a second time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from treadle import seeding
from treadle.record.columns import columns_of, digester
from treadle.record.journal import EpisodeNote
from treadle.record.merge import load
from treadle.record.parts import Format, PartWriter
from treadle.sample.caller import collection
from treadle.sample.episode import Episode
from treadle.sample.failed import CollectionFailed
from treadle.sample.rollout_slot import RolloutRecipe
from treadle.sample.schedule import Schedule

_PATH = 3  # the first number of the seed path of this choice

Merge = Callable[[Path, Path, Sequence[int]], Any]


def choose(root: int, notes: Sequence[EpisodeNote], count: int) -> list[int]:
    """`count` of the episodes (or all there are), drawn from the run's seed; their indices, in order."""
    rng = np.random.Generator(np.random.PCG64(seeding.derive(root, _PATH)))
    picked = rng.choice(len(notes), min(count, len(notes)), replace=False)
    return sorted(notes[i].index for i in picked)


def verify(
    recipe: RolloutRecipe,
    root: int,
    notes: Sequence[EpisodeNote],
    count: int,
    parts: Path,
    format: Format,
    merge: Merge,
    *,
    workers: int | None = None,
    **pool_options: Any,
) -> list[str]:
    """Make `count` random episodes again and compare them with what is stored.

    Args:
        recipe: what made them.
        root: the run's seed.
        notes: of the stored episodes.
        parts: where they are.
        format: which the parts are written for.
        merge: makes a dataset, called with (parts, out, indices).

    Returns:
        One line for each episode that came out differently, naming the first step that differs; none is good.
    """
    chosen = choose(root, notes, count)
    if not chosen:
        return []
    digests = {note.index: note.digest for note in notes}
    unlike: dict[int, tuple[Episode, str, tuple[int, str] | None]] = {}
    said: list[str] = []
    try:
        for episode, digest, spaces in _made(recipe, root, chosen, workers, pool_options):
            if digest != digests[episode.index]:
                difference = _difference(episode, spaces, recipe, parts, format, merge)
                unlike[episode.index] = episode, digest, difference
        # once more, in the same way: what now differs again is not decided by the seed, wherever it is made
        once_more = {e.index: digest for e, digest, _ in _made(recipe, root, list(unlike), workers, pool_options)}
    except CollectionFailed as error:
        once_more = {}
        said.append(f"an episode could not be made again in a fresh environment: {error}")
    for index, (episode, digest, difference) in sorted(unlike.items()):
        said.append(_told(episode, difference, recipe, once_more.get(index, digest) == digest))
    return said


def _made(
    recipe: RolloutRecipe, root: int, chosen: Sequence[int], workers: int | None, pool_options: dict[str, Any]
) -> Iterator[tuple[Episode, str, tuple[Any, Any]]]:
    """Episodes in fresh environments, with their digests and spaces."""
    if not chosen:
        return
    last, digest = max(chosen), digester()
    schedule = Schedule(last + 1, have={i: 0 for i in range(last + 1) if i not in set(chosen)})
    again = replace(recipe, sink=None, fresh_env=True)
    with collection(again, schedule, root=root, workers=workers, **pool_options) as run:
        for _, _, episode in run:
            columns, _ = columns_of(episode, infos=recipe.infos)
            yield episode, digest(columns).hex(), run.spaces


def _told(episode: Episode, difference: tuple[int, str] | None, recipe: RolloutRecipe, repeats: bool) -> str:
    """`repeats`: was it the same both times that it was made in a fresh environment?"""
    step, name = difference or (0, "its encoding")
    stateful = recipe.policy not in (None, "random")
    if name.split("/")[0] == "infos":
        advice = "an info may hold the time or an address; --no-infos leaves infos out"
    elif recipe.asking is not None and recipe.asking.pad_to is None and (repeats or step > 0):
        advice = (
            "the policy's actions may depend in their last bits on the batch that a row is in: --pad-to 8 (or a "
            "multiple of it) may mend that"
        )
    elif not repeats:
        advice = (
            "and differently once more: the seed does not decide it. reset(seed=...) must seed all that the "
            "environment draws from (super().reset(seed=seed), then self.np_random)"
        )
        advice += ", and a policy of its own must take rng or reset(seed=...)" if stateful else ""
    elif recipe.fresh_env:
        advice = "although every episode had an environment of its own: something besides the seed decides"
        advice += ", perhaps a policy that keeps a state from one episode to the next" if stateful else ""
    elif stateful:
        advice = (
            "either the environment keeps something from one episode to the next (--fresh-env, which builds an "
            "environment per episode, may mend that) or the policy does (a reset(seed=...) or rng mends that)"
        )
    else:
        advice = "--fresh-env, which builds an environment per episode, may mend that"
    return (
        f"episode {episode.index} (seed {episode.seed}) was made again and came out differently, first at step {step} "
        f"({name}); {advice}"
    )


def _difference(
    episode: Episode, spaces: tuple[Any, Any], recipe: RolloutRecipe, parts: Path, format: Format, merge: Merge
) -> tuple[int, str] | None:
    """The first step in which an episode differs from the stored one, 0 being the reset, and in what."""
    work = Path(tempfile.mkdtemp(prefix="verify-", dir=parts))
    try:
        writer = PartWriter(work / "parts", 0, *spaces, infos=recipe.infos, format=format)
        writer.add(episode)
        writer.close()
        merge(parts, work / "stored", [episode.index])
        merge(work / "parts", work / "again", [episode.index])
        return first_difference(_arrays(work / "stored"), _arrays(work / "again"))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _arrays(directory: Path) -> dict[str, Any]:
    """The values of the one episode in a dataset, time first, by path."""
    dataset: Any = load(directory)
    if isinstance(dataset, dict):
        return dataset
    episode = next(iter(dataset.iterate_episodes()))
    names = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
    return dict(found for name in names for found in _leaves(getattr(episode, name), name))


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(value, f"{path}/{key}")
    else:
        yield path, tree


def first_difference(stored: dict[str, Any], again: dict[str, Any]) -> tuple[int, str] | None:
    """The first step at which two episodes differ, and the path of the value; None when all are equal.

    Args:
        stored, again: sequences of rows by path; observations and infos have the reset's row first.
    """
    found: list[tuple[int, str]] = []
    for name in dict.fromkeys((*stored, *again)):
        first = 0 if name.split("/")[0] in ("observations", "infos") else 1
        if name not in stored or name not in again:
            found.append((first, name))
            continue
        a, b = stored[name], again[name]
        rows = min(len(a), len(b))
        unequal = (row for row in range(rows) if not _same(a[row], b[row]))
        row = next(unequal, None if len(a) == len(b) else rows)
        if row is not None:
            found.append((row + first, name))
    return min(found, key=lambda each: each[0], default=None)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, str | bytes):
        return a == b
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()
