"""The package weighs no more than `budget.toml` allows, and not much less: a row follows what goes."""

import sys
import tomllib
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import treadle
from treadle.cli.main import COMMANDS
from treadle.worker.options import NAMES

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import weight

PACKAGE = Path(__file__).parent.parent / "src" / "treadle"
BUDGET = tomllib.loads(Path(__file__).with_name("budget.toml").read_text(encoding="utf-8"))
SLACK = {"lines": 300, "files": 3}  # of others: none


@cache
def found() -> dict[str, int]:
    known = weight.modules(PACKAGE)
    return {
        "lines": sum(weight.code_lines(path.read_text(encoding="utf-8")) for path in known.values()),
        "files": len(known),
        "lonely": len(weight.lonely(PACKAGE)),
        "names": len(treadle.__all__),
        "keywords": len(NAMES),
        "options": sum(bool(each.metadata) for kind, *_ in COMMANDS.values() for each in fields(kind)),
    }


def test_the_table_names_what_is_counted() -> None:
    assert BUDGET.keys() == found().keys()


@pytest.mark.parametrize("row", BUDGET)
def test_the_package_keeps_to_its_budget(row: str) -> None:
    have, most = found()[row], BUDGET[row]
    assert have <= most, f"{row}: {have}, and tests/budget.toml allows {most}"
    if row != "lonely":
        assert have >= most - SLACK.get(row, 0), f"{row}: {have} are left; lower the row of tests/budget.toml to it"
