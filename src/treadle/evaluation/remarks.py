"""Remarks that a reader of an evaluation needs before believing its numbers: pure decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from treadle.drawing import counted
from treadle.record.journal import EpisodeNote
from treadle.sample.scores import ScoreRemark, wilson
from treadle.sample.skipping import Skipped

MOSTLY = 0.5  # share of episodes that were cut, from which on the limit decides more than the policy


def remarks_of(
    notes: Sequence[EpisodeNote],
    left_out: Sequence[Skipped] = (),
    verified: Mapping[str, Sequence[int]] | None = None,
    drawn: bool = False,
) -> tuple[ScoreRemark, ...]:
    """The remarks on episodes that were played.

    Args:
        notes: of them, as a worker wrote them with `scores`.
        left_out: of the run.
        verified: as `treadle.record.summary.Summary` has it.
        drawn: was a policy asked to draw its actions?
    """
    found = [*_of_episodes(notes), *_of_missing(notes, left_out)]
    if unequal := tuple((verified or {}).get("unequal", ())):
        found.append(
            ScoreRemark(
                f"{counted(len(unequal))} played again came out differently: the seed does not decide all", unequal
            )
        )
    if drawn:
        found.append(ScoreRemark("a model's actions were drawn, not its best ones (--stochastic, deterministic=False)"))
    return tuple(found)


def _of_episodes(notes: Sequence[EpisodeNote]) -> Iterator[ScoreRemark]:
    n = len(notes)
    if solved := tuple(note.index for note in notes if note.about.get("solved")):
        yield ScoreRemark(f"{counted(len(solved))} had succeeded at the reset, before the policy acted", solved)
    same = Counter(note.digest for note in notes)
    if len(same) < n:
        again = tuple(note.index for note in notes if same[note.digest] > 1)
        yield ScoreRemark(f"{counted(n)} are {len(same):,} different ones: others are the same throughout", again)
    still = {note.about.get("still") for note in notes if note.length > 1}
    if len(still) == 1 and None not in still:
        yield ScoreRemark("the policy's actions never change", tuple(note.index for note in notes))
    cut = tuple(note.index for note in notes if note.truncated and not note.terminated)
    if len(cut) > MOSTLY * n:
        yield ScoreRemark(f"{len(cut):,} of {counted(n)} were cut by the time limit", cut)


def _of_missing(notes: Sequence[EpisodeNote], left_out: Sequence[Skipped]) -> Iterator[ScoreRemark]:
    if not left_out:
        return
    asked = len(notes) + len(left_out)
    text = f"{len(left_out):,} of {counted(asked)} could not be played"
    if any(note.success is not None for note in notes):
        successes = sum(note.success is True for note in notes)
        low, high = wilson(successes, asked)
        text += f"; if they count as failures, success is {successes / asked:.1%} [{low:.1%}, {high:.1%}]"
    yield ScoreRemark(text, tuple(each.index for each in left_out))
