"""`evaluate` and `compare`: means, intervals and pairs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from treadle.errors import UsageError
from treadle.sample.collect import collect
from treadle.sample.evaluate import bootstrap, compare, evaluate


def left(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), np.int64)


def leaning(observations: np.ndarray) -> np.ndarray:
    return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)


def test_it_is_what_collect_plays() -> None:
    result = evaluate("CartPole-v1", leaning, 6, 4, workers=2)
    played = list(collect("CartPole-v1", leaning, episodes=6, seed=4, backend="serial"))
    assert result.returns.tolist() == [episode.total_reward for episode in played]
    assert [score.seed for score in result.scores] == [episode.seed for episode in played]
    assert [score.length for score in result.scores] == [len(episode) for episode in played]
    assert result.mean == result.returns.mean()
    assert result.low <= result.mean <= result.high
    assert result == evaluate("CartPole-v1", leaning, 6, 4, backend="serial")


def test_a_better_policy_wins_in_pairs() -> None:
    good, bad = (evaluate("CartPole-v1", policy, 20, backend="serial") for policy in (leaning, left))
    result = compare(good, bad)
    assert (result.wins, result.ties, result.losses) == (20, 0, 0)
    assert result.difference == pytest.approx(good.mean - bad.mean)
    assert 0 < result.low < result.difference < result.high
    assert compare(bad, good).difference == -result.difference


def test_other_episodes_cannot_be_compared() -> None:
    one = evaluate("CartPole-v1", left, 3, 0, backend="serial")
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
