"""What CONTRIBUTING shows works: its first change applies to the package as it is, and the test of it passes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_first_change_applies_and_its_test_passes(tmp_path: Path) -> None:
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    applied = subprocess.run(
        ["git", "apply", "-"], cwd=tmp_path, input=diff, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
    )  # fmt: skip
    assert applied.returncode == 0, f"mend the diff of CONTRIBUTING: {applied.stderr}"
    (new,) = re.findall(r"^\+\+\+ b/(tests/.*)$", diff, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", new], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")}, capture_output=True, text=True, timeout=110,
        check=False,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_files_that_it_names_are_there() -> None:
    named = set(re.findall(r"`((?:src/treadle|tests|benchmarks|scripts)/[\w/.]+)`", PAGE))
    assert len(named) > 30
    assert [each for each in sorted(named) if not (ROOT / each).exists()] == []
