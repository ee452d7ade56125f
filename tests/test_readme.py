"""README is one page: short, with a picture of a real report that is small, and a chart of the recorded table."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import draw_shares

ROOT = Path(__file__).parent.parent


def test_it_is_one_page() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    first = "\n".join(lines[:15])
    assert "docs/report.png" in first
    assert "treadle collect" in first
    assert "pip install" in first


def test_the_picture_of_the_report_is_small() -> None:
    assert (ROOT / "docs" / "report.png").stat().st_size < 300_000


def test_the_chart_is_that_of_the_table() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "shares.svg").read_text(encoding="utf-8") == draw_shares.drawn(page)
