"""What must be the same on all nodes: Python, Treadle, and what the workers' programs import."""

from __future__ import annotations

import importlib.util
import platform
import sys
import zlib
from collections.abc import Iterable, Mapping

from treadle.repro import versions

ALWAYS = ("gymnasium", "numpy")
MISSING = "missing"


def software(modules: Iterable[str]) -> dict[str, str]:
    """Of Python, Treadle and the packages of these modules: the version, or of what has none the checksum of its file.

    What is of the standard library, and the caller's own script, are left out: the one comes with Python, the other
    travels.
    """
    found = {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "treadle": versions("treadle").get("treadle", MISSING),
    }
    for name in (*ALWAYS, *modules):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("treadle", "__main__", "__mp_main__"):
            version = versions(top).get(top)
            found[name if version is None else top] = version or _checksum(name)
    return found


def differences(wanted: Mapping[str, str], *, here: str) -> list[str]:
    """What of it this process does not have the same of, one text each. `here`: the node's address."""
    own = software(name for name in wanted if name not in ("Python", "treadle"))
    return [
        f"{name} is {own.get(name, MISSING)} on {here} and {value} in the caller"
        for name, value in wanted.items()
        if own.get(name, MISSING) != value
    ]


def _checksum(module: str) -> str:
    """Of a module's file. What cannot be found was made by the program itself, or is missing."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return MISSING
    if not spec.has_location or spec.origin is None:
        return "a package without a file"
    with open(spec.origin, "rb") as file:
        return f"a file with the checksum {zlib.crc32(file.read()):08x}"
