"""Names of a package that are loaded when they are first used, so that importing the package costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from treadle.elsewhere import not_here


def loading(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `home`: name -> the module that it comes from, seen from the package: "m" is one
    of its own, ".other.m" one of its neighbour `other`'s."""

    def load(name: str) -> Any:
        if name not in home:
            raise not_here(package, name)
        found = getattr(importlib.import_module(f".{home[name]}", package), name)
        setattr(sys.modules[package], name, found)
        return found

    return load


__all__ = ["loading"]
