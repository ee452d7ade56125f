"""`make test` and `make test-all`: what the two run, from the Makefile itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def commands(target: str, arguments: str = "") -> list[str]:
    """The calls of pytest that a target makes."""
    make = ["make", "-n", target, f"BIN={Path(sys.executable).parent}", f"ARGS={arguments}"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return [line for line in done.stdout.splitlines() if " -m pytest" in line]


def collected(command: str, **more: str) -> Counter[str]:
    """How often a call of pytest collects each test."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("TREADLE_TEST_", "PYTEST_"))}
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True, env=outside | more
    )
    return Counter(line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line)


@pytest.mark.heavy  # without its libraries nobody knows which tests there are
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_two_run_every_test_once() -> None:
    quietly = "--collect-only -q -p no:cacheprovider"
    runs = [collected(command) for target in ("test", "test-all") for command in commands(target, quietly)]
    assert len(runs) == 3
    everything = collected(f"{sys.executable} -m pytest {quietly}", TREADLE_TEST_ALL="1")
    assert len(everything) > 5000
    assert sum(runs, Counter()) == everything


def test_quick_is_pytest_alone() -> None:
    (command,) = commands("quick", "tests/pool -k arena")
    assert command == f"{Path(sys.executable).parent}/python -m pytest tests/pool -k arena"


def test_slow_tests_are_there() -> None:
    rows = (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()[1:]
    named = {tuple(row.split(" ", 1)[1].partition("[")[0].split("::")[:2]) for row in rows}
    assert named
    gone = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert not gone, "take their rows out of tests/slow.txt"
