"""Chaos on every face, for a few seconds each: `python -m treadle.testing.chaos` goes on for minutes."""

import logging
import os

import pytest

from treadle.testing import chaos
from treadle.testing.chaos import FACES, Ledger

SECONDS = float(os.environ.get("TREADLE_CHAOS_SECONDS", "5"))


@pytest.mark.slow
@pytest.mark.timeout(60 + 4 * SECONDS)
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
@pytest.mark.parametrize("name", FACES)
def test_books_are_balanced(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "treadle"):
        ledger = chaos.brave(name, SECONDS)
    assert ledger.balanced, ledger
    assert sum(ledger.strikes.values()) > SECONDS / 2, "too little chaos to say anything"


@pytest.mark.parametrize("what", ["lost", "duplicated", "torn", "unequal", "processes", "descriptors"])
def test_books_that_are_not_balanced(what: str) -> None:
    assert Ledger(received=5).balanced
    assert not Ledger(received=5, **{what: 1}).balanced  # type: ignore[arg-type]
    assert not Ledger().balanced
