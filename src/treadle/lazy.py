"""Names of a package that are loaded when they are first used, so that importing the package costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, home: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package, whose `__all__` is to be set before either is called.

    `home`: name -> the module that it comes from, seen from the package: "m" is one of its own, ".other.m" one of its
    neighbour `other`'s; "" is a module of that name itself.
    """

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

    return load, names


def names_of(room: str, home: Mapping[str, str]) -> dict[str, str]:
    """A room's names, seen from the package that it is in."""
    return {name: at.removeprefix(".") if at.startswith(".") else f"{room}.{at}" for name, at in home.items()}


__all__ = ["lazily", "names_of"]
