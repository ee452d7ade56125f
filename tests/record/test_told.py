"""What a prompt, a notebook and the closing table say of a stored run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from treadle.record.dataset import Stored, collect_dataset
from treadle.record.told import busy, size, slow_policy


def test_a_stored_run_is_a_line_and_a_table(tmp_path: Path) -> None:
    stored = collect_dataset("CartPole-v1", out=tmp_path, episodes=20, format="npz", verify=0, workers=1)
    assert stored.summary is not None
    mean = sum(stored.summary.returns) / 20
    what = f"20 episodes of CartPole-v1 by random, {stored.summary.steps} steps, mean return {mean:.2f}"
    assert repr(stored) == f"<Stored: {what} in {stored.path}>"
    assert repr(stored.summary) == f"<Summary: {what}, hash {stored.summary.hash}>"
    table = stored._repr_html_()
    for text in ("episodes", "on disk", "busy", stored.summary.hash):
        assert text in table
    assert "recover_environment" not in table, "an .npz file was never to make it again"


def test_a_run_without_a_dataset() -> None:
    stored = Stored(Path("/data/mine"), None, None, None, False, 3)
    assert repr(stored) == "<Stored: no dataset, 3 finished episodes in /data/mine>"
    assert "/data/mine" in stored._repr_html_()


def test_many_workers_are_summarised() -> None:
    assert busy([0.5, 0.25]) == "50%  25%  of the time, by worker"
    assert busy([0.5] * 8).count("50%") == 8
    assert busy([0.5, *[0.7] * 10, 0.9]) == "mean 70%  min 50%  max 90%  of the time, 12 workers"
    assert busy([]) == ""


def test_a_slow_policy_in_the_workers_is_worth_a_word(tmp_path: Path) -> None:
    def slow(observations: Any) -> Any:
        time.sleep(0.002)
        return (observations[:, 2] > 0).astype(int)

    options: dict[str, Any] = {"episodes": 2, "format": "npz", "verify": 0, "workers": 1}
    for policy, inference, told in ((slow, "worker", True), (slow, "caller", False), (None, "auto", False)):
        stored = collect_dataset(
            "CartPole-v1", policy, out=tmp_path / str(told) / inference, inference=inference, **options
        )
        assert stored.summary is not None
        assert bool(slow_policy(stored.summary)) == told


def test_sizes() -> None:
    assert [size(count) for count in (999, 12_345, 5.2e6, 7e12)] == ["999 bytes", "12.3 kB", "5.2 MB", "7.0 TB"]
