"""Evaluating: how good is a policy, and is it better than another one?

The same episodes as `collect` makes, without keeping them. Episode i of two policies starts from the same seed, so
their returns are compared in pairs, which takes the luck of the start out of the difference.

Intervals are percentile bootstraps (Efron 1979): the mean is taken of `RESAMPLES` samples drawn with replacement, and
the interval holds the middle `CONFIDENCE` of those means. Its randomness comes from the run's seed. Rates of success
have Wilson's score interval (Wilson 1927), which is right for few episodes and for rates near 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist
from typing import Any, Unpack

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from treadle import seeding
from treadle.checks import check_whole
from treadle.errors import UsageError
from treadle.play.episode import SUCCESS_KEYS, Episode, success_of
from treadle.play.recipe import ResetOptions, check_reset_options, options_of
from treadle.program.gym_env import EnvRecipe, recipe_parts
from treadle.program.policies import policy_name
from treadle.program.suite import TASK, Suite
from treadle.progress import Progress, html_table
from treadle.sample.named import env_of
from treadle.sample.run import EpisodeKeywords, Run, RunKeywords
from treadle.worker.options import check_names

CONFIDENCE = 0.95
RESAMPLES = 10_000
IN_HTML = 10  # episodes that a notebook is shown
SCORE_HEADER = ("episode", "return", "steps", "end", "seed")
_BOOTSTRAP = 4  # the first number of the seed path of bootstraps


@dataclass(frozen=True)
class Score:
    """What came of one episode.

    Attributes:
        index: which episode of the run.
        seed: what the environment's reset was given.
        total_reward: undiscounted return.
        length: steps.
        terminated: did its last step terminate it?
        truncated: did its last step cut it?
        success: did its last info say so? None: it said nothing.
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


@dataclass(frozen=True, repr=False)
class Evaluation:
    """One policy's result.

    Attributes:
        policy: its name.
        scores: one an episode, by index.
        mean: of the returns.
        std: of the returns (population).
        low, high: the bootstrap interval of the mean, at `CONFIDENCE`.
        success: share of episodes that were successes, 0 to 1; None when no episode's last info says. One that says
            nothing where others do is none.
        success_low, success_high: Wilson's interval of that share, at `CONFIDENCE`.
        tasks: of a suite, each task's own result by name; its scores keep the indices of the run.
        inference: how the policy was asked in the caller, as `treadle.sample.batching.BatchFormer.stats`; {}: it was
            not.
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
    inference: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def returns(self) -> np.ndarray:
        """float64[episodes]."""
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

    def _repr_html_(self) -> str | None:
        if self.tasks:
            return html_table(
                [(task, str(each).partition(": ")[2]) for task, each in self.tasks.items()], title=str(self)
            )
        rows = [score.cells for score in self.scores[:IN_HTML]]
        if len(self.scores) > IN_HTML:
            rows.append((f"... and {len(self.scores) - IN_HTML:,} more", "", "", "", ""))
        return html_table(rows, SCORE_HEADER, title=str(self))


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two policies on the same seeds.

    Attributes:
        first, second: each one's own result.
        difference: mean over episodes of the first one's return minus the second one's.
        low, high: the bootstrap interval of `difference`, over pairs, at `CONFIDENCE`.
        wins, ties, losses: episodes in which the first one's return was greater, equal, smaller.
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
        count = len(self.first.scores)
        interval = f", {CONFIDENCE:.0%} interval [{self.low:+,.2f}, {self.high:+,.2f}]" if count > 1 else ""
        return (
            f"difference: {self.difference:+,.2f}{interval}; better in {self.wins}, equal in {self.ties}, "
            f"worse in {self.losses} of {count:,} episode{'' if count == 1 else 's'}"
        )

    def __repr__(self) -> str:
        return f"<Comparison of {self.first.policy} with {self.second.policy}: {self}>"

    def _repr_html_(self) -> str | None:
        rows = [(each.policy, str(each).partition(": ")[2]) for each in (self.first, self.second)]
        return html_table(rows, title=str(self))


class _Totals:
    """Keeps nothing of an episode but its score. Made in the worker.

    Args:
        success_keys: of the last info, that say whether it was a success; the first that is there counts.
        worker, observation_space, action_space: what every sink is given; none matters here.
    """

    def __init__(
        self, success_keys: tuple[str, ...], worker: int, observation_space: gym.Space, action_space: gym.Space
    ) -> None:
        self._keys = success_keys

    def add(self, episode: Episode) -> Score:
        return score_of(episode, success_of(episode, self._keys))

    def close(self) -> None:
        """Nothing is held."""


def score_of(episode: Episode, success: bool | None = None) -> Score:
    """What came of an episode."""
    end = bool(episode.terminated[-1]), bool(episode.truncated[-1])
    return Score(episode.index, episode.seed, episode.total_reward, len(episode), *end, success)


def evaluate(
    env: str | EnvSpec | Callable[..., gym.Env] | Mapping[str, Any],
    policy: Any,
    episodes: int = 100,
    seed: int = 0,
    *,
    success_key: str | None = None,
    watch: Callable[[Score], None] | None = None,
    progress: bool | None = False,
    **run: Unpack[EpisodeKeywords],
) -> Evaluation:
    """Play whole episodes and return how they went. The result is the same for any number of workers.

    Args:
        env: as of `treadle.sample.run.Run`. Or a suite: a dict of task -> environment, or -> (environment, its
            env_kwargs). Their spaces are the same; all tasks are played in one run, each in episodes `task * episodes`
            to `(task + 1) * episodes - 1` of it, and the result has a part for each. One worker builds every task
            before any is played.
        policy: None for random actions, or see `treadle.program.policies`.
        episodes: how many; of a suite, of each task.
        seed: the run's root seed. Two policies with the same seed meet the same episodes.
        success_key: of an episode's last info, that says whether it was a success. None: "is_success" or "success",
            whichever is there.
        watch: called with each score, in order of arrival.
        progress: as for `collect`.
        run: see `treadle.sample.run.Run`; step_timeout=SECONDS bounds what hangs. Of a suite reset_options are those of
            each task's episode i, such as the initial states of a benchmark.

    Raises:
        UsageError, StartupFailed, CollectionFailed: as `collect`.
    """
    check_names(evaluate, run, EpisodeKeywords.__annotations__)
    check_whole(none=False, episodes=episodes)
    if watch is not None and not callable(watch):
        raise UsageError(f"watch is a function of each episode's Score, or None, got {watch!r}")
    if not isinstance(success_key, str | None):
        raise UsageError(f"success_key is a key of infos, or None, got {success_key!r}")
    tasks = dict(env) if isinstance(env, Mapping) else {}
    if tasks:
        common = recipe_parts(run.pop("env_kwargs", None), run.pop("wrappers", ()), run.pop("imports", ()))
        env = Suite({name: _task(each, *common) for name, each in tasks.items()})
        run["reset_options"] = _OfTasks(tuple(tasks), episodes, run.get("reset_options"))
    wanted = episodes * max(1, len(tasks))
    made = Run.of(evaluate, RunKeywords, env, policy, episodes=wanted, seed=seed, infos=False, **run)
    scores: dict[int, Score] = {}
    shown, keys = Progress(progress), SUCCESS_KEYS if success_key is None else (success_key,)
    recipe = replace(made.recipe, sink=partial(_Totals, keys))
    with made.collection(made.schedule(), recipe=recipe, tell=shown.tell, skipping=None) as playing, shown:
        for index, _, score in playing:
            scores[index] = score
            if watch is not None:
                watch(score)
        playing.warn()
        asked = playing.stats()
    name, played = policy_name(policy), [scores[index] for index in range(wanted)]
    parts = {
        task: evaluation_of(name, played[at * episodes : (at + 1) * episodes], seed) for at, task in enumerate(tasks)
    }
    return replace(evaluation_of(name, played, seed), tasks=parts, inference=asked)


def _task(
    given: Any, env_kwargs: dict[str, Any], wrappers: tuple[Callable[[gym.Env], gym.Env], ...], imports: tuple[str, ...]
) -> EnvRecipe:
    env, own = given if isinstance(given, tuple) else (given, {})
    return EnvRecipe(env_of(env), {**env_kwargs, **own}, wrappers, imports)


@dataclass(frozen=True)
class _OfTasks:
    """Reset options of a suite's episodes.

    Attributes:
        tasks: in order.
        episodes: of each.
        given: as of `evaluate`.
    """

    tasks: tuple[str, ...]
    episodes: int
    given: ResetOptions

    def __post_init__(self) -> None:
        check_reset_options(self.given)

    def __call__(self, index: int) -> dict[str, Any]:
        task, own = divmod(index, self.episodes)
        return {TASK: self.tasks[task], "options": options_of(self.given, own)}


def compare(first: Evaluation, second: Evaluation, seed: int = 0) -> Comparison:
    """Two evaluations in pairs.

    Args:
        first, second: made with the same environment, seed and number of episodes.
        seed: of the bootstrap.

    Raises:
        UsageError: when they are not about the same episodes.
    """
    for each in (first, second):
        if not isinstance(each, Evaluation):
            raise UsageError(f"two results of treadle.evaluate are compared, got {each!r}")
    if [(s.index, s.seed) for s in first.scores] != [(s.index, s.seed) for s in second.scores]:
        raise UsageError(
            "two policies are compared on the same episodes: give both evaluations the same seed and count"
        )
    differences = first.returns - second.returns
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
    """The share of episodes that were successes, and Wilson's interval of it; None when none says. One that says
    nothing (None) where others do is no success."""
    if all(each is None for each in said):
        return None
    successes = sum(each is True for each in said)
    return successes / len(said), *wilson(successes, len(said))


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Wilson's score interval of a share of `count` >= 1 trials, at `CONFIDENCE`."""
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2)
    share, scale = successes / count, 1 + z**2 / count
    middle = (share + z**2 / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)
