"""Chaos on every face, for a few seconds each: `python -m zoo.chaos` goes on for minutes."""

import logging
import os

import pytest

from zoo import chaos
from zoo.chaos import FACES, FAR, Ledger

SECONDS = float(os.environ.get("TREADLE_CHAOS_SECONDS", "5"))
RAY = (pytest.mark.heavy, pytest.mark.ray, pytest.mark.slow)
MARKS = {**dict.fromkeys(FAR, RAY), "step NEXT_STEP": (), "step SAME_STEP": ()}
EACH = [pytest.param(name, marks=MARKS.get(name, (pytest.mark.slow,))) for name in FACES]


@pytest.mark.timeout(120 + 4 * SECONDS)
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
@pytest.mark.parametrize("name", EACH)
def test_books_are_balanced(name: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> None:
    if name in FAR:
        request.getfixturevalue("ray_cluster")
    with caplog.at_level(logging.ERROR, "treadle"):
        ledger = chaos.brave(name, SECONDS)
    assert ledger.balanced, ledger
    assert (ledger.cut > ledger.deaths / 4) == (name.startswith(("step", "roll", "part", "tasks"))), ledger


@pytest.mark.parametrize(
    "what", ["lost", "doubled", "torn", "missed", "unlike_calm", "processes", "descriptors", "threads"]
)
def test_books_that_are_not_balanced(what: str) -> None:
    assert Ledger(received=5).balanced
    assert not Ledger(received=5, **{what: 1}).balanced  # type: ignore[arg-type]
    assert not Ledger().balanced
