"""What a prompt and a notebook show of results."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

import treadle
from treadle.play.episode import Episode


def test_an_episode_is_a_line() -> None:
    (episode,) = treadle.collect("CartPole-v1", episodes=1, worker_options=treadle.WorkerOptions(backend="serial"))
    assert repr(episode) == "<Episode 0: 14 steps, return 14.00, terminated>"


def test_an_episode_of_a_nested_space() -> None:
    ends = np.array([False, True])
    seen = {"image": np.zeros((3, 8, 8), np.uint8), "said": ["a", "b", "<c>"]}
    episode = Episode(7, 1, seen, (np.zeros(2, np.int64),), np.ones(2), ends, ends)
    assert repr(episode) == "<Episode 7: 2 steps, return 2.00, terminated and truncated>"


def test_evaluations_are_a_line_and_a_picture() -> None:
    result = treadle.evaluate("CartPole-v1", None, episodes=30, worker_options=treadle.WorkerOptions(backend="serial"))
    assert repr(result) == f"<Evaluation {result}>"
    assert str(result).startswith(f"random: mean return {result.mean:.2f}, 95% interval [")
    assert "\n" not in repr(result)
    shown = result._repr_html_()
    assert str(result) in shown
    assert 'class="histogram"' in shown
    compared = treadle.compare(result, result)
    assert repr(compared).startswith("<Comparison of random with random: difference: +0.00, 95% interval [")
    assert len(repr([result, compared])) < 500


def test_one_episode_has_no_interval() -> None:
    result = treadle.evaluate(
        lambda: gym.make("CartPole-v1"), None, episodes=1, worker_options=treadle.WorkerOptions(backend="serial")
    )
    assert str(result) == "random: return 14.00, 1 episode"
    assert str(treadle.compare(result, result)).endswith("worse in 0 of 1 episode")
