"""The card beside a dataset: what the Hub reads, and nothing that is alive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import treadle
from treadle.sample.card import card

SERIAL = treadle.WorkerOptions(backend="serial")


def head_of(text: str) -> dict[str, Any]:
    """Of the YAML, which is a line of JSON for each key."""
    _, head, _ = text.split("---\n", 2)
    return {name: json.loads(value) for name, _, value in (line.partition(": ") for line in head.splitlines())}


def test_a_dataset_has_one(tmp_path: Path) -> None:
    found = treadle.collect_dataset("CartPole-v1", None, out=tmp_path / "out", episodes=5, worker_options=SERIAL)
    assert found.path is not None
    assert found.summary is not None
    text = (found.path / "README.md").read_text()
    assert head_of(text)["pretty_name"] == "CartPole-v1-random-v0"
    assert head_of(text)["size_categories"] == ["n<1K"]
    assert "| environment | `CartPole-v1` |" in text
    assert f"| steps | `{found.summary.steps:,}` |" in text
    assert str(tmp_path) not in text


def test_texts_of_others_stay_in_their_cells() -> None:
    text = card("n", [("policy", "a`b|c\x1b[31m\n# d")], 20_000, "pass", [])
    assert "| policy | `a'b/c\\x1b[31m # d` |" in text
    assert head_of(text)["size_categories"] == ["10K<n<100K"]
