"""Names of a package that are loaded when they are first used, so that importing the package costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, home: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The `__all__`, the `__getattr__` and the `__dir__` of a package. `home`: see `homes`."""

    def load(name: str) -> Any:
        if name not in home:
            from treadle.elsewhere import not_here

            raise not_here(package, name)
        module = importlib.import_module(f".{home[name] or name}", package)
        found = getattr(module, name) if home[name] else module
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return list(home), load, names


def homes(table: Mapping[str, str]) -> dict[str, str]:
    """Name -> the module that it comes from, of a table of modules with the names of each, spaces between them.

    A module is named as seen from the package: "m" is one of its own, ".other.m" one of its neighbour `other`'s; ""
    stands before names that are modules themselves.
    """
    return {name: module for module, names in table.items() for name in names.split()}


def names_of(room: str, home: Mapping[str, str]) -> dict[str, str]:
    """A room's names, seen from the package that it is in."""
    return {name: at.removeprefix(".") if at.startswith(".") else f"{room}.{at}" for name, at in home.items()}


__all__ = ["homes", "lazily", "names_of"]
