"""The page of promises names tests: each of them is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", PAGE)))


@pytest.mark.parametrize("named", NAMED)
def test_a_test_that_holds_a_promise_is_there(named: str) -> None:
    file, _, name = named.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    assert not name or name in functions


def test_each_promise_names_a_test() -> None:
    table = PAGE.partition("| when | what is promised | test |")[2].partition("## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ") and "---" not in row]
    assert len(rows) > 20
    assert all("`tests/" in row.split(" | ")[2] for row in rows)
