"""The notebook that is made of `imitation.py` runs from its first cell to its last."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from example_kit import EXAMPLES

from conftest import require

pytestmark = [pytest.mark.heavy, pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_notebook_runs(tmp_path: Path) -> None:
    jupytext, _, _ = require("jupytext"), require("nbmake"), require("torch")
    notebook = tmp_path / "imitation.ipynb"
    jupytext.write(jupytext.read(EXAMPLES / "imitation.py"), notebook)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "--nbmake", "--overwrite"]
    done = subprocess.run(
        [*command, "--nbmake-timeout=250", notebook.name], cwd=tmp_path, capture_output=True, text=True, timeout=290,
        check=False,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    cells = jupytext.read(notebook).cells
    printed = "".join(out.get("text", "") for cell in cells for out in cell.get("outputs", ()))
    assert "difference:" in printed
    assert "no contact" in printed
    assert any("image/png" in out.get("data", {}) for cell in cells for out in cell.get("outputs", ()))
