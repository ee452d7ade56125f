"""Treadle steps many environments at once.

Every public name lives in a room of its own and is loaded when it is first used, so that `import treadle` costs
nothing: no NumPy, no Gymnasium, no set-up.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> the module it comes from
_HOME = {
    **dict.fromkeys(
        (
            "ArenaError",
            "BadAction",
            "BadObservation",
            "BrokenPool",
            "ClosedPool",
            "LayoutsDiffer",
            "MissingExtra",
            "RemoteTraceback",
            "SpaceError",
            "StartupFailed",
            "TaskRaised",
            "TreadleError",
            "UsageError",
            "Where",
            "WorkerDied",
            "WorkerError",
            "WorkerTimeout",
        ),
        "treadle.errors",
    ),
    "VectorEnv": "treadle.vector.gymnasium",
    "AsyncVectorEnv": "treadle.vector.async_vector",
    "make_vec": "treadle.vector.make_vec",
    "vector_entry_point": "treadle.vector.make_vec",
    "next_obs": "treadle.vector.next_obs",
    "VectorStats": "treadle.vector.stats",
    "Rollout": "treadle.vector.rollout",
    "OwnedVectors": "treadle.vector.owned",
    "VectorSampledTasks": "treadle.vector.sampled",
    "SingleProcessVectorSampledTasks": "treadle.vector.sampled",
    "TaskVectorStats": "treadle.vector.sampled_tasks",
    **dict.fromkeys(("Task", "TaskSampler", "RLStepResult"), "treadle.task.core"),
    **dict.fromkeys(("Sensor", "SensorSuite"), "treadle.task.sensors"),
    **dict.fromkeys(("GymTask", "GymTaskSampler", "GymObservation", "TaskEnv"), "treadle.task.gym"),
    "Episode": "treadle.sample.episode",
    "collect": "treadle.sample.collect",
    "CollectionFailed": "treadle.sample.collect",
    "evaluate": "treadle.sample.evaluate",
    "compare": "treadle.sample.evaluate",
    "Comparison": "treadle.sample.evaluate",
    "Evaluation": "treadle.sample.evaluate",
    "collect_dataset": "treadle.record.dataset",
    "load": "treadle.record.merge",
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from treadle.errors import (
        ArenaError,
        BadAction,
        BadObservation,
        BrokenPool,
        ClosedPool,
        LayoutsDiffer,
        MissingExtra,
        RemoteTraceback,
        SpaceError,
        StartupFailed,
        TaskRaised,
        TreadleError,
        UsageError,
        Where,
        WorkerDied,
        WorkerError,
        WorkerTimeout,
    )
    from treadle.record.dataset import collect_dataset
    from treadle.record.merge import load
    from treadle.sample.collect import CollectionFailed, collect
    from treadle.sample.episode import Episode
    from treadle.sample.evaluate import Comparison, Evaluation, compare, evaluate
    from treadle.task.core import RLStepResult, Task, TaskSampler
    from treadle.task.gym import GymObservation, GymTask, GymTaskSampler, TaskEnv
    from treadle.task.sensors import Sensor, SensorSuite
    from treadle.vector.async_vector import AsyncVectorEnv
    from treadle.vector.gymnasium import VectorEnv
    from treadle.vector.make_vec import make_vec, vector_entry_point
    from treadle.vector.next_obs import next_obs
    from treadle.vector.owned import OwnedVectors
    from treadle.vector.rollout import Rollout
    from treadle.vector.sampled import SingleProcessVectorSampledTasks, VectorSampledTasks
    from treadle.vector.sampled_tasks import TaskVectorStats
    from treadle.vector.stats import VectorStats


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'treadle' has no attribute {name!r}")
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
