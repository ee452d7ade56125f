"""The public names, grouped as users import them: `docs/api.md` is made of this.

    python scripts/api.py           print the page
    python scripts/api.py --write   write it

The names are those of `treadle/__init__.pyi` and of the tables of `treadle.tasks`, `treadle.samplers` and
`treadle.plan`; what is said of each is the first line of its docstring.
"""

from __future__ import annotations

import argparse
import inspect
from importlib import import_module
from pathlib import Path
from typing import TypeVar

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
HEAD = """# Public names

`scripts/api.py` generates this page from the docstrings. `help(treadle.collect)` prints the whole docstring of a name.
"""
ROOMS = {  # a module that users import -> what its names are for
    "treadle": "Vectors, episodes, datasets, evaluations, replays, errors.",
    "treadle.tasks": "AllenAct's tasks, and vectors of them.",
    "treadle.samplers": "garage's samplers, workers and updates.",
    "treadle.plan": "plangym's environments, stepped in batches from any state.",
}


def groups() -> dict[str, list[str]]:
    """Module -> its public names, in alphabetical order."""
    return {room: sorted(set(dir(import_module(room))) - {"__version__"}, key=str.lower) for room in ROOMS}


def page() -> str:
    """The page."""
    parts = [HEAD]
    for room, names in groups().items():
        rows = [f"| `{room}.{name}` | {said(getattr(import_module(room), name))} |" for name in names]
        parts.append("\n".join([f"## {room}", "", ROOMS[room], "", "| name | what it is |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def said(thing: object) -> str:
    """The first sentence or line of its docstring; of a value, the value; a type variable has no text of its own."""
    if isinstance(thing, TypeVar):
        return "A type variable, for annotations."
    if not (callable(thing) or inspect.ismodule(thing)):
        return f"`{thing!r}`"
    first = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].partition("Attributes:")[0].split())
    return first.replace("|", "\\|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page())
