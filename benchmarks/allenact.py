"""AllenAct 0.5.4's vectors without its dependencies: what its modules import and never use here is stood in for.

It is installed without dependencies (they pin a Gym that is no more). `gym` is Gymnasium here; the rest is needed for
logging, videos and training only.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import gymnasium


class Nothing:
    """Takes any arguments; as a decorator it leaves what it decorates alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is kept."""

    def __call__(self, decorated: Any = None) -> Any:
        return decorated


class Hollow(ModuleType):
    """A module in which every name is a class that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Nothing,), {})


HOLLOW = (
    "moviepy",
    "moviepy.editor",
    "tensorboardX",
    "tensorboardX.proto",
    "tensorboardX.proto.summary_pb2",
    "tensorboardX.summary",
    "tensorboardX.utils",
    "tensorboardX.x2num",
    "scipy",
    "scipy.special",
    "filelock",
    "attr",
)


def allenact_vectors() -> ModuleType:
    """AllenAct's module of task vectors. Raises ImportError where AllenAct or torch is not installed."""
    importlib.import_module("torch")
    for name, module in (
        ("gym", gymnasium),
        ("gym.spaces", gymnasium.spaces),
        ("gym.spaces.dict", gymnasium.spaces.dict),
    ):
        sys.modules.setdefault(name, module)
    title = Hollow("setproctitle")
    title.setproctitle = lambda text: None  # type: ignore[attr-defined]
    sys.modules.setdefault("setproctitle", title)
    for name in HOLLOW:
        if name in sys.modules:
            continue
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = Hollow(name)
    out, err = sys.stdout, sys.stderr
    try:
        return importlib.import_module("allenact.algorithms.onpolicy_sync.vector_sampled_tasks")
    finally:
        sys.stdout, sys.stderr = out, err  # its logger takes them over


def closed(vector: Any) -> None:
    """Close a vector of AllenAct's, and see its processes to their end: it kills who takes longer than 0.1 s and does
    not wait for them."""
    vector.close()
    for process in getattr(vector, "_workers", ()):
        process.join()
