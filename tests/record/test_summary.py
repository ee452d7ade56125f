"""The summary is written whole or not at all."""

import dataclasses
import json
import math
import platform

import pytest

from treadle.record.summary import Summary, read_summary, write_summary
from treadle.repro import versions


def summary(**changes) -> Summary:
    base = Summary(
        command="treadle collect CartPole-v1", versions=versions("ale-py", "no-such-package"), env_id="CartPole-v1",
        policy="random", seed=3, episodes=2, steps=5, returns=[2.0, 3.0], lengths=[2, 3], seeds=[8, 9],
        digests=["aa", "bb"], hash="cc", terminated=2, truncated=0, seconds=0.5, steps_per_second=10.0, raw_bytes=100,
        disk_bytes=50, time_shares={"step": 0.75}, worker_shares=[0.5, 0.25], restarts=1, speculative=4,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def test_it_comes_back(tmp_path):
    write_summary(tmp_path / "summary.json", summary())
    assert read_summary(tmp_path / "summary.json") == summary()
    assert json.loads((tmp_path / "summary.json").read_text())["worker_shares"] == [0.5, 0.25]


def test_what_json_does_not_have_is_null(tmp_path):
    path = tmp_path / "summary.json"
    write_summary(path, summary(returns=[math.nan, 3.0, math.inf]))
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["returns"] == [None, 3.0, None]
    found = read_summary(path).returns
    assert math.isnan(found[0])
    assert found[1] == 3.0


def test_versions():
    found = versions("treadle", "ale-py", "no-such-package")
    assert set(found) == {"python", "treadle", "ale-py"}
    assert found["python"] == platform.python_version()


def test_a_failure_leaves_the_old_one(tmp_path):
    path = tmp_path / "summary.json"
    write_summary(path, summary())
    with pytest.raises(TypeError):
        write_summary(path, summary(command=object()))
    assert read_summary(path) == summary()
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    with pytest.raises(OSError, match="nowhere"):
        write_summary(tmp_path / "nowhere" / "summary.json", summary())
