"""Break promises one at a time, and check that their tests notice: `tests/mutations.toml` lists them.

Each mutation replaces one text of one file in a copy of `src`, and runs its tests on the copy. A mutation that the
tests do not notice ends with exit code 1.

usage: python scripts/mutations.py [NAME ...]
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MUTATIONS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "mutations.toml").read_text(encoding="utf-8"))


def mutated(source: str, old: str, new: str) -> str:
    """Return the source with `new` in place of `old`. Raises ValueError unless `old` stands in it exactly once."""
    if source.count(old) != 1 or old == new:
        raise ValueError(f"{old!r} stands {source.count(old)} times in the file")
    return source.replace(old, new)


def caught(name: str) -> bool:
    """Return True if a test of the mutation fails on the mutated copy."""
    mutation = MUTATIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "src")
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        path = copy / "treadle" / mutation["file"]
        path.write_text(mutated(path.read_text(encoding="utf-8"), mutation["old"], mutation["new"]), encoding="utf-8")
        environ = {**os.environ, "PYTHONPATH": str(copy), "TREADLE_TEST_ALL": "1"}
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=20"]
        # 1: a test has failed. Other codes, as of a test that is not there, say nothing of the promise
        return subprocess.run([*words, *mutation["tests"]], cwd=ROOT, env=environ, capture_output=True).returncode == 1


def main(names: list[str]) -> int:
    """The command: a line a mutation."""
    missed = 0
    for name in names or MUTATIONS:
        found = caught(name)
        missed += not found
        print(f"{'caught' if found else 'MISSED':8} {name}: {MUTATIONS[name]['promise']}", flush=True)
    return min(1, missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
