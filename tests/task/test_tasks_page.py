"""What docs/tasks.md shows runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def run(tmp_path: Path, code: str) -> str:
    script = tmp_path / "shown.py"
    script.write_text(code)
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_example(tmp_path: Path) -> None:
    lines = run(tmp_path, BLOCKS[0]).splitlines()
    assert len(lines) == 12  # four slots, three tasks each
    assert all("'ep_length': 9" not in line for line in lines)  # all of them reach their goals in time


def test_the_bridge(tmp_path: Path) -> None:
    assert run(tmp_path, BLOCKS[1]) == ""
    assert len(BLOCKS) == 2
