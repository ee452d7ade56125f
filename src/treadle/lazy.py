"""Names of a package that are loaded when they are first used, so that importing the package costs nothing; and, for
who asks for one of the older systems' names that is not here, what is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from treadle import gone


def lazily(package: str, home: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The `__all__`, the `__getattr__` and the `__dir__` of a package. `home`: see `homes`."""

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
    """Name -> the module that it comes from, of a table of modules with the names of each, spaces between them.

    A module is named as seen from the package: "m" is one of its own, ".other.m" one of its neighbour `other`'s; ""
    stands before names that are modules themselves.
    """
    return {name: module for module, names in table.items() for name in names.split()}


def of_stub(file: str) -> list[dict[str, str]]:
    """The tables of a package's stub, each as of `homes`, one for each comment line with imports below it.

    Args:
        file: the package's `__init__.py`, which the stub stands beside.
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


_ROOMS = ("vector", "tasks", "sample", "samplers", "plan")  # that have names of their own
# what there is instead -> names of the older systems
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
    """The error for a name that a module of ours does not have.

    It is an AttributeError, by which `hasattr` knows. Python drops the text of one in `from ... import name`: for the
    older systems' names the error of that statement (`importing`) is an ImportError, with the same text.
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
    """Is the frame at the instruction that takes a name from a module in `from ... import name`?"""
    from opcode import opmap

    return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]


__all__ = ["homes", "lazily", "of_stub"]
