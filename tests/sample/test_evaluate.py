"""`evaluate` and `compare`: means, intervals and pairs."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from treadle.errors import UsageError
from treadle.evaluation.evaluate import evaluate
from treadle.sample.collect import collect
from treadle.sample.scores import bootstrap, compare
from treadle.worker.options import WorkerOptions


def left(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), np.int64)


def leaning(observations: np.ndarray) -> np.ndarray:
    return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)


def test_it_is_what_collect_plays() -> None:
    result = evaluate("CartPole-v1", leaning, 6, 4, workers=2)
    played = list(collect("CartPole-v1", leaning, episodes=6, seed=4, worker_options=WorkerOptions(backend="serial")))
    assert result.returns.tolist() == [episode.total_reward for episode in played]
    assert [score.seed for score in result.scores] == [episode.seed for episode in played]
    assert [score.length for score in result.scores] == [len(episode) for episode in played]
    assert result.mean == result.returns.mean()
    assert result.low <= result.mean <= result.high
    assert result == evaluate("CartPole-v1", leaning, 6, 4, worker_options=WorkerOptions(backend="serial"))


def test_a_better_policy_wins_in_pairs() -> None:
    good, bad = (
        evaluate("CartPole-v1", policy, 20, worker_options=WorkerOptions(backend="serial"))
        for policy in (leaning, left)
    )
    result = compare(good, bad)
    assert (result.wins, result.ties, result.losses) == (20, 0, 0)
    assert result.difference == pytest.approx(good.mean - bad.mean)
    assert 0 < result.low < result.difference < result.high
    assert compare(bad, good).difference == -result.difference


def test_other_episodes_cannot_be_compared() -> None:
    one = evaluate("CartPole-v1", left, 3, 0, worker_options=WorkerOptions(backend="serial"))
    other = dataclasses.replace(one, scores=one.scores[:2])
    with pytest.raises(UsageError, match="same episodes"):
        compare(one, other)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = sum(low <= 5 <= high for low, high in (bootstrap(rng.normal(5, 2, 40), seed) for seed in range(200)))
    assert 174 <= covered <= 199  # 95% of 200, four standard errors below; a percentile interval is a little narrow


def test_the_interval_comes_from_the_seed_and_holds_for_one_value() -> None:
    values = np.random.default_rng(1).normal(size=30)
    assert bootstrap(values, 3) == bootstrap(values, 3) != bootstrap(values, 4)
    assert bootstrap(np.array([2.5])) == (2.5, 2.5)


class Reaches(gym.Env[Any, Any]):
    """It begins where its reset's options say, and succeeds where that is even."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, key: str = "is_success") -> None:
        self.key = key

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.start = -1 if options is None else options["start"]
        return np.array([self.start], np.float64), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        info = {self.key: self.start % 2 == 0} if self.start >= 0 else {}
        return np.array([self.start], np.float64), 1.0, True, False, info


def still(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), np.int64)


@pytest.mark.parametrize("inference", ["worker", "caller"])
@pytest.mark.parametrize(("key", "success_key"), [("is_success", None), ("success", None), ("won", "won")])
def test_rates_of_success_with_their_interval(inference: str, key: str, success_key: str | None) -> None:
    starts = [{"start": i} for i in (0, 1, 2, 3, 4)]
    options = {"env_kwargs": {"key": key}, "reset_options": starts, "success_key": success_key}
    found = evaluate(Reaches, still, 10, inference=inference, **options)
    assert [score.success for score in found.scores] == [True, False, True, False, True] * 2
    assert found.success == 0.6
    # from the formula, with z = 1.959964: (0.6 + 0.19207) / 1.38415 -+ 0.2582 / 1.38415 ...
    assert (found.success_low, found.success_high) == (pytest.approx(0.3127, abs=1e-4), pytest.approx(0.8318, abs=1e-4))
    assert "success 60.0% [31.3%, 83.2%]" in str(found)
    assert found.scores[0].end == "terminated, success"


def test_nothing_is_said_of_success_where_nobody_says_it() -> None:
    found = evaluate(Reaches, still, 4)
    assert found.success is None
    assert "success" not in str(found)
    some = evaluate(Reaches, still, 4, reset_options=lambda i: {"start": 2} if i else None)
    assert [score.success for score in some.scores] == [None, True, True, True]
    assert some.success == 0.75
