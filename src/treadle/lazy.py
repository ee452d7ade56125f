"""Names of a package that are loaded when they are first used, so that importing the package costs nothing; and, for
who asks for one of the older systems' names that is not here, what is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, home: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The `__all__`, the `__getattr__` and the `__dir__` of a package. `home`: see `homes`."""

    def load(name: str) -> Any:
        if name not in home:
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


# what there is instead -> names of the older systems
_INSTEAD = {
    "GymPlanEnv takes any Gymnasium id, and ParallelEnv takes plangym's own classes as they are": (
        "PlangymEnv AtariEnv ClassicControl MujocoEnv Box2DEnv DMControlEnv RetroEnv"
    ),
    "ParallelEnv(..., nodes=N) steps batches on the nodes of a cluster": "RayEnv",
    "a training loop is yours: see examples/reinforce_cartpole.py and docs/compat-garage.md": (
        "Trainer TFTrainer LocalRunner wrap_experiment"
    ),
    "gymnasium.Env and gymnasium.Wrapper; GymEnv has garage's interface": "Environment Wrapper",
    "gymnasium.wrappers has NormalizeObservation, NormalizeReward and RescaleAction": "normalize",
    "a line of NumPy or two: see docs/compat-garage.md": "log_performance discount_cumsum",
    "a sampler's evaluate, or treadle.evaluate": "obtain_evaluation_episodes",
}


def not_here(module: str, name: str) -> AttributeError | ImportError:
    """The error for a name that a module of ours does not have.

    For the older systems' names it is an ImportError, since `from ... import` drops what an AttributeError says.
    """
    for instead, names in _INSTEAD.items():
        if name in names.split():
            return ImportError(f"{module} has no {name}: {instead}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}")


__all__ = ["homes", "lazily", "names_of"]
