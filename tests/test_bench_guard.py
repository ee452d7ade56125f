"""The guard of `make bench-guard`: its rows, its table, what it calls slower. No test looks at how fast anything is."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # `benchmarks` is not part of the installed package
    sys.path.insert(0, str(ROOT))

from benchmarks import guard  # noqa: E402


def test_each_of_ten_rows_is_recorded() -> None:
    stored = json.loads(guard.STORED.read_text(encoding="utf-8"))
    assert list(stored["rows"]) == list(guard.ROWS)
    assert len(guard.ROWS) == 10
    assert all(ratio > 0 for ratio in stored["rows"].values())


def test_only_rows_beyond_the_margin_are_worse() -> None:
    recorded = {"a": 1.0, "b": 2.0, "c": 0.5}
    assert guard.worse(recorded, {"a": 1.29, "b": 2.7, "c": 0.1}) == {"b": 1.35}
    assert guard.worse(recorded, {"a": 1.0}) == {}


@pytest.mark.parametrize("row", ["cartpole-1", "cartpole-64, a worker", "images-8"])
def test_both_sides_of_a_row_run(row: str) -> None:
    with guard.ROWS[row]() as (ours, theirs):
        ours(1)
        theirs(1)


def test_a_slower_row_ends_with_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stored = json.loads(guard.STORED.read_text(encoding="utf-8"))["rows"]
    tried: list[str] = []

    def measured(row: str) -> float:
        tried.append(row)
        first = row == "cartpole-8" or (row == "cartpole-1" and tried.count(row) == 1)  # a stranger came and went
        return float(stored[row]) * (2.0 if first else 1.0)

    monkeypatch.setattr(guard, "measured", measured)
    assert guard.main(["--rows", "cartpole-1"]) == 0
    assert guard.main([]) == 1
    said = capsys.readouterr().out
    assert said.count("SLOWER") == 1
    assert tried.count("cartpole-8") == guard.TRIES
