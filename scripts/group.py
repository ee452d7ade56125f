"""Print the requirements of one dependency group of pyproject.toml, one per line.

Only pip >= 25.1 reads `[dependency-groups]` itself, and the pip that a new virtual environment starts with is often
older. Nothing but the standard library is used, so this runs before anything is installed.

usage: python scripts/group.py GROUP
"""

import sys
import tomllib
from pathlib import Path


def requirements(group: str) -> list[str]:
    """The requirement strings of `group` and of groups that it includes. Raises KeyError for one that is missing."""
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)["dependency-groups"][group]
    nested = [[each] if isinstance(each, str) else requirements(each["include-group"]) for each in entries]
    return [requirement for part in nested for requirement in part]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
