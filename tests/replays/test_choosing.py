"""Which episodes are filmed, and what their films are called."""

from __future__ import annotations

import math
from pathlib import Path

from treadle.record.outcomes import Outcome
from treadle.replays.film import by_index, chosen, name_of
from typed_run import collected

ROWS = [
    Outcome(4, 0, -1.5, 3, "terminated", True),
    Outcome(0, 0, 2.0, 3, "terminated", False),
    Outcome(1, 0, 7.0, 3, "truncated", False),
    Outcome(2, 0, 7.0, 3, "truncated"),
    Outcome(3),
    Outcome(5, 0, math.nan, 9, "terminated"),
]


def test_episodes_are_chosen_by_their_results() -> None:
    assert chosen(ROWS) == []
    assert chosen(ROWS, best=1) == [1], "of equal ones the first"
    assert chosen(ROWS, best=2) == [1, 2]
    assert chosen(ROWS, worst=2) == [0, 4]
    assert chosen(ROWS, failed=2) == [0, 1]
    assert chosen(ROWS, failed=9) == [0, 1, 3]
    assert chosen(ROWS, best=9, worst=9) == [0, 1, 2, 4], "those whose return is known"
    assert chosen(ROWS, best=1, failed=2, episodes=[9, 1]) == [0, 1, 9], "each once"


def test_names_are_of_index_return_and_end() -> None:
    assert [name_of(row) for row in ROWS] == [
        "episode-0004_return--1.5_success",
        "episode-0000_return-2.0_failure",
        "episode-0001_return-7.0_failure",
        "episode-0002_return-7.0_truncated",
        "episode-0003_error",
        "episode-0005_terminated",
    ]
    assert name_of(Outcome(17, 0, -20.04, 1, "terminated", False)) == "episode-0017_return--20.0_failure"
    assert name_of(Outcome(1, 0, -1e300, 1, "truncated")) == "episode-0001_return--1e+300_truncated"
    assert name_of(Outcome(12345, 0, 0.0, 1, "error", True)) == "episode-12345_return-0.0_error"


def test_rows_are_those_of_the_dataset(tmp_path: Path) -> None:
    collected("CartPole-v1", out=tmp_path, episodes=5, workers=1, max_episode_steps=15)
    rows = list(by_index(tmp_path).values())
    assert [row.index for row in rows] == [0, 1, 2, 3, 4]
    assert {row.length for row in rows if row.end == "truncated"} == {15}
    assert all(row.total_reward == row.length and row.success is None and not row.failed for row in rows)
