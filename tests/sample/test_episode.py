"""What a prompt and a notebook show of results."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

import treadle
from treadle.play.episode import Episode


def test_an_episode_is_a_line_and_a_table() -> None:
    (episode,) = treadle.collect("CartPole-v1", episodes=1, worker_options=treadle.WorkerOptions(backend="serial"))
    assert repr(episode) == "<Episode 0: 14 steps, return 14.00, terminated>"
    table = episode._repr_html_()
    assert "float32[15, 4]" in table
    assert str(episode.seed) in table


def test_an_episode_of_a_nested_space() -> None:
    ends = np.array([False, True])
    seen = {"image": np.zeros((3, 8, 8), np.uint8), "said": ["a", "b", "<c>"]}
    episode = Episode(7, 1, seen, (np.zeros(2, np.int64),), np.ones(2), ends, ends)
    assert repr(episode) == "<Episode 7: 2 steps, return 2.00, terminated and truncated>"
    table = episode._repr_html_()
    for text in ("observations/image", "uint8[3, 8, 8]", "observations/said", "3 values", "actions/0"):
        assert text in table


def test_evaluations_are_a_line_and_a_table() -> None:
    result = treadle.evaluate("CartPole-v1", None, episodes=30, worker_options=treadle.WorkerOptions(backend="serial"))
    assert repr(result) == f"<Evaluation {result}>"
    assert str(result).startswith(f"random: mean return {result.mean:.2f}, 95% interval [")
    assert "\n" not in repr(result)
    table = result._repr_html_()
    assert sum(line.strip()[:1].isdigit() for line in table.splitlines()) == 10
    assert "and 20 more" in table
    assert str(result) in table
    assert 'class="histogram"' in table
    compared = treadle.compare(result, result)
    assert repr(compared).startswith("<Comparison of random with random: difference: +0.00, 95% interval [")
    assert "random" in compared._repr_html_()
    assert len(repr([result, compared])) < 500


def test_one_episode_has_no_interval() -> None:
    result = treadle.evaluate(
        lambda: gym.make("CartPole-v1"), None, episodes=1, worker_options=treadle.WorkerOptions(backend="serial")
    )
    assert str(result) == "random: return 14.00, 1 episode"
    assert str(treadle.compare(result, result)).endswith("worse in 0 of 1 episode")
