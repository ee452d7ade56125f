"""Scores of episodes: the quality of a policy, and the difference of two.

Episode i of two policies starts from the same seed, so their returns are compared in pairs. That takes the luck of the
start out of the difference.

Intervals are percentile bootstraps (Efron 1979). The mean is taken of each of `RESAMPLES` samples drawn with
replacement. The interval holds the middle `CONFIDENCE` of those means. Its randomness comes from the run's seed. Rates
of success have Wilson's score interval (Wilson 1927), which is right for few episodes and for rates near 0 and 1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import NormalDist
from typing import Any

import numpy as np

from treadle import seeding, trees
from treadle.drawing import counted, in_notebook
from treadle.errors import UsageError
from treadle.play.episode import Episode, success_of
from treadle.sample.skipping import Skipped

CONFIDENCE = 0.95
RESAMPLES = 10_000
Z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2)
SCORE_HEADER = ("episode", "return", "steps", "end", "seed")
_BOOTSTRAP = 4  # the first number of the seed path of bootstraps


@dataclass(frozen=True)
class Score:
    """The score of one episode.

    Attributes:
        index: index of the episode in the run.
        seed: seed of the environment's reset.
        total_reward: undiscounted return.
        length: number of steps.
        terminated: True if the last step terminated the episode.
        truncated: True if the last step cut the episode.
        success: True or False as the episode's last info says; None: the info says nothing.
    """

    index: int
    seed: int
    total_reward: float
    length: int
    terminated: bool
    truncated: bool
    success: bool | None = None

    @property
    def end(self) -> str:
        """How it ended."""
        how = "terminated" if self.terminated else "truncated"
        return how if self.success is None else f"{how}, {'success' if self.success else 'no success'}"

    @property
    def cells(self) -> tuple[str, ...]:
        """As people read it, below `SCORE_HEADER`."""
        return str(self.index), f"{self.total_reward:,.2f}", f"{self.length:,}", self.end, str(self.seed)


@dataclass(frozen=True)
class ScoreRemark:
    """A remark for the reader of an evaluation.

    Attributes:
        text: one sentence.
        episodes: indices of its episodes.
    """

    text: str
    episodes: tuple[int, ...] = ()


@dataclass(frozen=True, repr=False)
class Evaluation:
    """One policy's result.

    Attributes:
        policy: its name.
        scores: one for each episode, by index.
        mean: mean of the returns.
        std: standard deviation of the returns (population).
        low, high: ends of the bootstrap interval of the mean, at `CONFIDENCE`.
        success: share of episodes that were successes, 0 to 1; None if no episode's last info says. If some do, an
            episode whose last info says nothing counts as no success.
        success_low, success_high: ends of Wilson's interval of that share, at `CONFIDENCE`; None without `success`.
        tasks: task name -> that task's result, for a suite; its scores keep the indices of the run. {}: no suite.
        left_out: episodes that failed and were left out (on_error="skip").
        remarks: what a reader of these numbers should know.
        inference: statistics of the policy's batches in the caller, as `treadle.sample.batching.BatchFormer.stats`;
            {}: the caller did not ask it.
        verdict: why the run was not faster, and what to change (`treadle.verdict`).
    """

    policy: str
    scores: tuple[Score, ...]
    mean: float
    std: float
    low: float
    high: float
    success: float | None = None
    success_low: float | None = None
    success_high: float | None = None
    tasks: dict[str, Evaluation] = field(default_factory=dict)
    left_out: tuple[Skipped, ...] = ()
    remarks: tuple[ScoreRemark, ...] = ()
    inference: dict[str, Any] = field(default_factory=dict, compare=False)
    verdict: str = field(default="", compare=False)

    @property
    def returns(self) -> np.ndarray:
        """float64[episodes]: the return of each episode, in the order of `scores`."""
        return np.array([score.total_reward for score in self.scores], np.float64)

    def __str__(self) -> str:
        """In one line."""
        if len(self.scores) == 1:  # one says nothing of the spread
            return f"{self.policy}: return {self.mean:,.2f}, 1 episode"
        success = ""
        if self.success is not None:
            success = f", success {self.success:.1%} [{self.success_low:.1%}, {self.success_high:.1%}]"
        return (
            f"{self.policy}: mean return {self.mean:,.2f}, {CONFIDENCE:.0%} interval [{self.low:,.2f}, "
            f"{self.high:,.2f}], std {self.std:,.2f}{success}, {len(self.scores):,} episodes"
        )

    def __repr__(self) -> str:
        return f"<Evaluation {self}>"

    def _repr_html_(self) -> str:
        said = "; ".join([str(self), *(f"{task}: {each}" for task, each in self.tasks.items())])
        return in_notebook(said, [each.total_reward for each in self.scores], [each.success for each in self.scores])


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two policies on the same seeds.

    Attributes:
        first, second: each one's own result.
        difference: mean over episodes of the first one's return minus the second one's.
        low, high: ends of the bootstrap interval of `difference`, over pairs, at `CONFIDENCE`.
        wins, ties, losses: numbers of episodes in which the first one's return was greater, equal, smaller.
    """

    first: Evaluation
    second: Evaluation
    difference: float
    low: float
    high: float
    wins: int
    ties: int
    losses: int

    def __str__(self) -> str:
        """In one line."""
        count = self.wins + self.ties + self.losses
        interval = f", {CONFIDENCE:.0%} interval [{self.low:+,.2f}, {self.high:+,.2f}]" if count > 1 else ""
        return (
            f"difference: {self.difference:+,.2f}{interval}; better in {self.wins}, equal in {self.ties}, "
            f"worse in {self.losses} of {counted(count)}"
        )

    def __repr__(self) -> str:
        return f"<Comparison of {self.first.policy} with {self.second.policy}: {self}>"


def score_of(episode: Episode, success: bool | None = None) -> Score:
    """Return the score of an episode."""
    end = bool(episode.terminated[-1]), bool(episode.truncated[-1])
    return Score(episode.index, episode.seed, episode.total_reward, len(episode), *end, success)


def about_of(episode: Episode, success_keys: Sequence[str]) -> dict[str, Any]:
    """Return an episode's facts for remarks, as JSON. Call it in the process that made the episode.

    "seconds": its duration. "solved": it was a success at its reset. "still": a digest of its action, where all its
    actions are the same.
    """
    about: dict[str, Any] = {"seconds": round(episode.seconds, 6)}
    if success_of(episode.first_info, success_keys):
        about["solved"] = True
    actions = [*trees.leaves(episode.actions)]
    first = [each[:1] for each in actions]
    if len(episode) > 1 and all(_alike(each, one) for each, one in zip(actions, first, strict=True)):
        about["still"] = digest_of(first)
    return about


def _alike(rows: Any, first: Any) -> bool:
    return bool((rows == first).all()) if isinstance(rows, np.ndarray) else all(each == first[0] for each in rows)


def digest_of(values: Iterable[Any]) -> str:
    """blake2b-128 of arrays and lists, 32 hexadecimal digits."""
    state = hashlib.blake2b(digest_size=16)
    for value in values:
        state.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return state.hexdigest()


def compare(first: Evaluation, second: Evaluation, seed: int = 0) -> Comparison:
    """Compare two evaluations, episode by episode, on the same seeds.

    Args:
        first, second: results of `evaluate` for the same environment, seed and number of episodes. Episodes that either
            one left out are not compared.
        seed: seed of the bootstrap.

    Raises:
        UsageError: the two evaluations are not of the same episodes.
    """
    for each in (first, second):
        if not isinstance(each, Evaluation):
            raise UsageError(f"two results of treadle.evaluate are compared, got {each!r}")
    lost = {each.index for each in (*first.left_out, *second.left_out)}
    one, two = ([score for score in each.scores if score.index not in lost] for each in (first, second))
    if not one or [(s.index, s.seed) for s in one] != [(s.index, s.seed) for s in two]:
        raise UsageError(
            "two policies are compared on the same episodes: give both evaluations the same seed and count"
        )
    differences = np.array([a.total_reward - b.total_reward for a, b in zip(one, two, strict=True)], np.float64)
    low, high = bootstrap(differences, seed)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    mean = float(differences.mean())
    return Comparison(first, second, mean, low, high, wins, len(differences) - wins - losses, losses)


def bootstrap(values: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean of float64[n], n >= 1, at `CONFIDENCE`."""
    rng = np.random.Generator(np.random.PCG64(seeding.derive(seed, _BOOTSTRAP)))
    n = len(values)
    at_once = max(1, 1_000_000 // n)  # bounds the memory, not the result
    means = [
        values[rng.integers(0, n, (min(at_once, RESAMPLES - start), n))].mean(axis=1)
        for start in range(0, RESAMPLES, at_once)
    ]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def evaluation_of(policy: str, scores: list[Score], seed: int) -> Evaluation:
    """The result of a policy's scores, by index; `seed`: of the bootstrap."""
    returns = np.array([score.total_reward for score in scores], np.float64)
    low, high = bootstrap(returns, seed)
    rates: Any = success_rate([score.success for score in scores]) or ()
    return Evaluation(policy, tuple(scores), float(returns.mean()), float(returns.std()), low, high, *rates)


def success_rate(said: Sequence[bool | None]) -> tuple[float, float, float] | None:
    """Return the share of successes and its Wilson interval; None when no episode says. An episode that says nothing
    (None) where others do is not a success."""
    if all(each is None for each in said):
        return None
    successes = sum(each is True for each in said)
    return successes / len(said), *wilson(successes, len(said))


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Wilson's score interval of a share of `count` >= 1 trials, at `CONFIDENCE`."""
    share, scale = successes / count, 1 + Z**2 / count
    middle = (share + Z**2 / (2 * count)) / scale
    half = Z / scale * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


class SoFar:
    """The result of an evaluation at work; each episode is counted once, however often the result is asked for."""

    def __init__(self) -> None:
        self._count = self._successes = self._said = 0
        self._sum = self._squares = 0.0

    def text(self, episodes: Iterable[Any]) -> str:
        """Return the rate of success with Wilson's interval, or the mean return with that of a normal distribution; ""
        of fewer than two returns. `episodes`: those of the call before, then others."""
        for each in islice(episodes, self._count, None):
            self._count += 1
            self._sum += each.total_reward
            self._squares += each.total_reward**2
            self._said += each.success is not None
            self._successes += each.success is True
        n = self._count
        if self._said:
            low, high = wilson(self._successes, n)
            return f"success {self._successes / n:.0%} [{low:.0%}, {high:.0%}]"
        if n < 2:
            return ""
        mean = self._sum / n
        half = Z * math.sqrt(max(0.0, self._squares / n - mean**2) / (n - 1))
        return f"mean return {mean:,.2f} [{mean - half:,.2f}, {mean + half:,.2f}]"
