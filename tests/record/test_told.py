"""What a prompt, a notebook and the closing table say of a stored run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from treadle.evaluation.evaluate import evaluate
from treadle.pool.processor import shown as size
from treadle.record.dataset import Stored
from treadle.record.run_directory import SUMMARY
from treadle.record.shards import merge_shards
from treadle.record.summary import Summary, busy, read_summary, summary_rows
from treadle.sample.scores import wilson
from typed_run import collected


def test_a_stored_run_is_a_line_and_a_picture(tmp_path: Path) -> None:
    stored = collected("CartPole-v1", out=tmp_path, episodes=20, workers=1)
    assert stored.summary is not None
    mean = sum(stored.summary.returns) / 20
    what = f"20 episodes of CartPole-v1 by random, {stored.summary.steps} steps, mean return {mean:.2f}"
    assert repr(stored) == f"<Stored: {what} in {stored.path}>"
    assert repr(stored.summary) == f"<Summary: {what}, hash {stored.summary.hash}>"
    assert f"<p>Stored: {what} in {stored.path}</p><svg" in str(stored._repr_html_())


def test_a_run_without_a_dataset() -> None:
    stored = Stored(Path("/data/mine"), None, None, False, 3)
    assert repr(stored) == "<Stored: no dataset, 3 finished episodes in /data/mine>"
    assert stored._repr_html_() is None


def test_many_workers_are_summarised() -> None:
    assert busy([0.5, 0.25]) == "50%  25%  of the time, by worker"
    assert busy([0.5] * 8).count("50%") == 8
    assert busy([0.5, *[0.7] * 10, 0.9]) == "mean 70%  min 50%  max 90%  of the time, 12 workers"
    assert busy([]) == ""


@pytest.mark.parametrize("inference", ["worker", "caller"])
def test_a_summary_says_what_binds_a_run(tmp_path: Path, inference: str) -> None:
    def slow(observations: Any) -> Any:
        time.sleep(0.02)
        return (observations[:, 2] > 0).astype(int)

    options: dict[str, Any] = {"episodes": 10, "workers": 1, "num_envs": None if inference == "worker" else 1}
    stored = collected("CartPole-v1", slow, out=tmp_path / "run", inference=inference, **options)
    assert stored.summary is not None
    assert stored.summary.verdict.startswith("policy-bound "), stored.summary.verdict
    assert ("verdict", stored.summary.verdict) in summary_rows(stored.summary)


def test_sizes() -> None:
    assert [size(count) for count in (999, 12_345, 5.2e6, 7e9)] == ["999 bytes", "12.3 kB", "5.2 MB", "7 GB"]


class Reach(gym.Env[Any, Any]):
    """Episodes of 3 to 8 steps; those of more than 5 are successes, and those of 4 say nothing."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)
    says = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.end = 0, int(self.np_random.integers(3, 9))
        return np.array([self.t, self.np_random.random()]), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        ends = self.t >= self.end
        info = {"is_success": np.bool_(self.end > 5)} if ends and self.end != 4 and self.says else {}
        return np.array([self.t, self.np_random.random()]), 1.0, ends, False, info


def still(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), np.int64)


class Silent(Reach):
    says = False


class Odd(Reach):
    """What it says of its success is no number."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {"success": [[1], [2, 3]]} if info else {}


def table(stored: Stored) -> dict[str, str]:
    assert stored.summary is not None
    return dict(summary_rows(stored.summary, before=stored.before))


def told_by(stored: Stored) -> Summary:
    """What is in its directory, which is what was returned."""
    assert stored.summary == read_summary(stored.directory / SUMMARY)
    return stored.summary


@pytest.mark.parametrize(
    "more", [{}, {"infos": False}, {"inference": "caller", "policy": lambda o: np.zeros(len(o), int)}]
)
def test_the_rate_of_success_is_that_of_an_evaluation(more: dict[str, Any], tmp_path: Path) -> None:
    run: dict[str, Any] = {"episodes": 30, "workers": 2, **more}
    stored = collected(Reach, out=tmp_path, **run)
    found = told_by(stored)
    assert found.successes == [None if n == 4 else n > 5 for n in found.lengths]
    wanted = evaluate(Reach, None, 30, workers=1) if not more.get("policy") else None
    count = found.successes.count(True)
    low, high = wilson(count, 30)
    assert table(stored)["success"] == f"{count / 30:.1%}, 95% interval [{low:.1%}, {high:.1%}]"
    if wanted is not None:
        assert wanted.success == count / 30
        assert [score.success for score in wanted.scores] == found.successes
    grown = collected(Reach, out=tmp_path, **{**run, "episodes": 40}, resume=True)
    assert told_by(grown).successes[:30] == found.successes, "also of episodes that are taken from a dataset again"
    assert len(told_by(grown).successes) == 40


@pytest.mark.parametrize("env", [Silent, Odd])
def test_nothing_is_said_of_success_where_nobody_says_it(env: Any, tmp_path: Path) -> None:
    stored = collected(env, out=tmp_path, episodes=4, workers=1)
    assert told_by(stored).successes == []
    assert "success" not in table(stored)


class Counts(Reach):
    """Shows how many episodes this very environment has begun."""

    begun = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        self.begun += 1
        return found[0] + self.begun, {}


def test_what_was_verified_is_said_of_a_complete_run_too(tmp_path: Path) -> None:
    run: dict[str, Any] = {"out": tmp_path, "episodes": 9, "workers": 1}
    first = collected(Reach, **run)
    assert "verified" not in table(first)
    before = told_by(first).hash
    for verify, rows in ((2, 2), (1, 2), (5, 5), (50, 9), (50, 9)):
        again = collected(Reach, verify=verify, resume=True, **run)
        assert again.unchanged
        assert table(again)["verified"] == f"{rows} of 9 episodes made again: equal"
        assert len(told_by(again).verified["episodes"]) == rows
        assert told_by(again).verified["unequal"] == []
    assert told_by(again).hash == before


def test_what_differs_is_said_in_the_table(tmp_path: Path) -> None:
    run: dict[str, Any] = {"out": tmp_path, "episodes": 6, "workers": 1}
    stored = collected(Counts, verify=6, **run)
    found = told_by(stored)
    assert found.verified == {"episodes": [0, 1, 2, 3, 4, 5], "unequal": [1, 2, 3, 4, 5]}
    assert table(stored)["verified"] == "6 of 6 episodes made again: not equal: 1, 2, 3, 4, 5"
    again = collected(Counts, verify=6, resume=True, **run)
    assert told_by(again).warnings == found.warnings


def test_shards_that_were_verified_are_a_run_that_was(tmp_path: Path) -> None:
    for i in range(2):
        collected(Reach, out=tmp_path / str(i), shard=f"{i}/2", episodes=8, workers=1, verify=i + 1)
    merged = merge_shards([tmp_path / "0", tmp_path / "1"], tmp_path / "whole")
    assert [index % 2 for index in merged.verified["episodes"]].count(1) == 2
    assert dict(summary_rows(merged))["verified"] == "3 of 8 episodes made again: equal"


def test_a_run_that_cannot_be_taken_apart_is_not_verified_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run: dict[str, Any] = {"out": tmp_path, "episodes": 3, "workers": 1}
    collected(Reach, **run)
    (tmp_path / ".episodes").unlink()
    assert collected(Reach, verify=2, resume=True, **run).unchanged
    assert "no episode is made again to verify the run: " in caplog.text


def test_times_of_a_resumed_run_say_which_part_they_are_of(tmp_path: Path) -> None:
    run: dict[str, Any] = {"out": tmp_path, "workers": 1}
    first = collected(Reach, episodes=6, **run)
    assert "part" not in " ".join(table(first).values())
    grown = collected(Reach, episodes=10, resume=True, **run)
    again = collected(Reach, episodes=10, resume=True, **run)
    assert again.unchanged
    for stored in (grown, again):
        assert told_by(stored).before == 6
        assert table(stored)["time"].endswith(" steps/s (the last part of the run: 4 of 10 episodes)")
        for name in ("busy", "spent"):
            assert table(stored)[name].endswith(" (of the last part of the run)")
    assert table(again)["episodes"] == "10 (10 from before)"


def test_what_is_on_the_disk_beside_the_arrays_is_said(tmp_path: Path) -> None:
    small = collected(Reach, out=tmp_path / "small", episodes=50, workers=1)
    found = told_by(small)
    each = size((found.disk_bytes - found.raw_bytes) / 50)
    wanted = f"{size(found.disk_bytes)} ({size(found.raw_bytes)} of arrays, and {each} an episode for the format)"
    assert table(small)["on disk"] == wanted
    large = collected("ALE/Pong-v5", out=tmp_path / "large", episodes=1, max_episode_steps=30, workers=1)
    assert table(large)["on disk"].endswith(" MB before compression)")
