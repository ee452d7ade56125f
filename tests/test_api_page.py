"""The page of public names is that of the tables, and all of them say what they are."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import api


def test_the_page_is_made_of_the_tables() -> None:
    assert api.PAGE.read_text(encoding="utf-8") == api.page(), "python scripts/api.py --write"
    assert {"treadle", "treadle.tasks", "treadle.samplers", "treadle.plan"} == api.groups().keys()
