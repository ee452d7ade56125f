"""Lazy names of a package, and errors for names of the older systems.

Names are loaded at their first use, so importing the package costs nothing. The error for an older system's name that
Treadle lacks names its replacement.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from treadle import gone


def lazily(package: str, home: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__all__`, the `__getattr__` and the `__dir__` of a package. `home`: see `homes`."""

    def load(name: str) -> Any:
        if name not in home:
            raise not_here(package, name, importing=_imports(sys._getframe(1)))
        module = importlib.import_module(f".{home[name] or name}", package)
        found = getattr(module, name) if home[name] else module
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return list(home), load, names


def homes(table: Mapping[str, str]) -> dict[str, str]:
    """Return name -> its module, from a table of modules with the names of each, separated by spaces.

    Modules are relative to the package: "m" is its own module, ".other.m" a module of its neighbour `other`. The module
    "" is for names that are modules themselves.
    """
    return {name: module for module, names in table.items() for name in names.split()}


def of_stub(file: str) -> list[dict[str, str]]:
    """Return the tables of a package's stub, each as of `homes`: one for each comment line, with the imports below it.

    Args:
        file: the package's `__init__.py`; the stub is the `.pyi` file next to it.
    """
    tables: list[dict[str, str]] = []
    with open(f"{file}i", encoding="utf-8") as stub:
        for line in stub:
            words = line.split()
            if line.startswith("# "):
                tables.append({})
            elif line.startswith("from ."):
                tables[-1][words[3]] = words[1].removeprefix(".")
    return tables


_ROOMS = ("vector", "tasks", "sample", "samplers", "plan")  # rooms with public names
# replacement -> names of the older systems
_INSTEAD = {
    "GymPlanEnv takes any Gymnasium id, and ParallelEnv takes plangym's own classes as they are": (
        "PlangymEnv AtariEnv ClassicControl MujocoEnv Box2DEnv DMControlEnv RetroEnv"
    ),
    "ParallelEnv(..., cluster=Cluster(N)) steps batches on the nodes of a cluster": "RayEnv",
    "a training loop is yours: see examples/reinforce_cartpole.py and docs/compat-garage.md": (
        "Trainer TFTrainer LocalRunner wrap_experiment"
    ),
    "gymnasium.Env and gymnasium.Wrapper; GymEnv has garage's interface": "Environment Wrapper",
    "gymnasium.wrappers has NormalizeObservation, NormalizeReward and RescaleAction": "normalize",
    "a line of NumPy or two: see docs/compat-garage.md": "log_performance discount_cumsum",
    "a sampler's evaluate, or treadle.evaluate": "obtain_evaluation_episodes",
    "seed= of the sampler seeds workers and environments; a policy's initial weights are yours to seed": "set_seed",
}


def not_here(module: str, name: str, *, importing: bool = False) -> AttributeError | ImportError:
    """Return the error for a name that a module of Treadle lacks.

    It is an AttributeError, as `hasattr` requires. `from ... import name` drops the text of an AttributeError. So for
    the older systems' names, the error of that statement (`importing`) is an ImportError with the same text.
    """
    for instead, names in _INSTEAD.items():
        if name in names.split():
            text = f"{module} has no {name}: {instead}"
            return ImportError(text, name=module) if importing else AttributeError(text)
    for room in _ROOMS if module == "treadle" else ():
        if name in importlib.import_module(f"treadle.{room}").__all__:
            text = f"treadle has no {name}: it is in treadle.{room}"
            return ImportError(text, name=module) if importing else AttributeError(text)
    if said := gone.instead(name):
        return ImportError(said, name=module) if importing else AttributeError(said)
    return AttributeError(f"module {module!r} has no attribute {name!r}")


def _imports(frame: FrameType) -> bool:
    """Return True if the frame is at the instruction of `from ... import name` that reads a name of a module."""
    from opcode import opmap

    return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]


__all__ = ["homes", "lazily", "of_stub"]
