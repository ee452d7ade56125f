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
            "FreedHandle",
            "LayoutsDiffer",
            "MissingExtra",
            "NoBatch",
            "RemoteTraceback",
            "SpaceError",
            "StartupFailed",
            "StartupRefused",
            "StateDiffers",
            "StateError",
            "StoreFull",
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
    **dict.fromkeys(
        ("AlreadyPending", "ClosedVector", "NothingPending", "SpacesDiffer", "WaitTimeout"), "treadle.vector.refusals"
    ),
    "next_obs": "treadle.vector.next_obs",
    "VectorStats": "treadle.vector.stats",
    "Rollout": "treadle.vector.rollout",
    "OwnedVectors": "treadle.vector.owned",
    "VectorSampledTasks": "treadle.vector.sampled",
    "SingleProcessVectorSampledTasks": "treadle.vector.sampled",
    **dict.fromkeys(("COMPLETE_TASK_METRICS_KEY", "COMPLETE_TASK_CALLBACK_KEY"), "treadle.vector.sampled"),
    "TaskVectorStats": "treadle.vector.sampled_tasks",
    **dict.fromkeys(("Task", "TaskSampler", "RLStepResult"), "treadle.task.core"),
    **dict.fromkeys(("Sensor", "SensorSuite", "EnvType", "SubTaskType"), "treadle.task.sensors"),
    **dict.fromkeys(("GymTask", "GymTaskSampler", "GymObservation", "TaskEnv"), "treadle.task.gym"),
    "Episode": "treadle.sample.episode",
    "collect": "treadle.sample.collect",
    "CollectionFailed": "treadle.sample.collect",
    "evaluate": "treadle.sample.evaluate",
    "compare": "treadle.sample.evaluate",
    "Comparison": "treadle.sample.evaluate",
    "Evaluation": "treadle.sample.evaluate",
    "GymEnv": "treadle.sample.adapt",
    **dict.fromkeys(("EnvSpec", "EnvStep", "InOutSpec", "TimeStep"), "treadle.sample.steps"),
    **dict.fromkeys(("EnvUpdate", "ExistingEnvUpdate", "NewEnvUpdate", "SetTaskUpdate"), "treadle.sample.updates"),
    "StepType": "treadle.sample.step_type",
    "TimeStepBatch": "treadle.sample.time_step_batch",
    "EpisodeBatch": "treadle.sample.episode_batch",
    "InProgressEpisode": "treadle.sample.in_progress",
    "Worker": "treadle.sample.worker",
    "DefaultWorker": "treadle.sample.default_worker",
    "VecWorker": "treadle.sample.vec_worker",
    "FragmentWorker": "treadle.sample.fragment_worker",
    "WorkerFactory": "treadle.sample.worker_factory",
    "Sampler": "treadle.sample.sampler",
    "LocalSampler": "treadle.sample.local_sampler",
    "MultiprocessingSampler": "treadle.sample.multiprocessing_sampler",
    "run_worker": "treadle.sample.multiprocessing_sampler",
    "WorkersLost": "treadle.sample.workers_lost",
    "rollout": "treadle.sample.rollout",
    "PlanEnv": "treadle.plan.env",
    "GymPlanEnv": "treadle.plan.gym_plan_env",
    "ExternalProcess": "treadle.plan.external",
    "BatchEnv": "treadle.plan.batch_env",
    "VectorizedEnv": "treadle.plan.vectorized",
    "ParallelEnv": "treadle.plan.parallel",
    "StateHandle": "treadle.plan.store",
    "RolloutBatch": "treadle.plan.rollouts",
    "RandomShooting": "treadle.plan.random_shooting",
    "MCTS": "treadle.plan.mcts",
    "Promise": "treadle.plan.promise",
    "check_state": "treadle.plan.checking",
    "EnvState": "treadle.states.state",
    "Keeper": "treadle.states.keeper",
    "Replayed": "treadle.states.replay",
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
        FreedHandle,
        LayoutsDiffer,
        MissingExtra,
        NoBatch,
        RemoteTraceback,
        SpaceError,
        StartupFailed,
        StartupRefused,
        StateDiffers,
        StateError,
        StoreFull,
        TaskRaised,
        TreadleError,
        UsageError,
        Where,
        WorkerDied,
        WorkerError,
        WorkerTimeout,
    )
    from treadle.plan.batch_env import BatchEnv
    from treadle.plan.checking import check_state
    from treadle.plan.env import PlanEnv
    from treadle.plan.external import ExternalProcess
    from treadle.plan.gym_plan_env import GymPlanEnv
    from treadle.plan.mcts import MCTS
    from treadle.plan.parallel import ParallelEnv
    from treadle.plan.promise import Promise
    from treadle.plan.random_shooting import RandomShooting
    from treadle.plan.rollouts import RolloutBatch
    from treadle.plan.store import StateHandle
    from treadle.plan.vectorized import VectorizedEnv
    from treadle.record.dataset import collect_dataset
    from treadle.record.merge import load
    from treadle.sample.adapt import GymEnv
    from treadle.sample.collect import CollectionFailed, collect
    from treadle.sample.default_worker import DefaultWorker
    from treadle.sample.episode import Episode
    from treadle.sample.episode_batch import EpisodeBatch
    from treadle.sample.evaluate import Comparison, Evaluation, compare, evaluate
    from treadle.sample.fragment_worker import FragmentWorker
    from treadle.sample.in_progress import InProgressEpisode
    from treadle.sample.local_sampler import LocalSampler
    from treadle.sample.multiprocessing_sampler import MultiprocessingSampler, run_worker
    from treadle.sample.rollout import rollout
    from treadle.sample.sampler import Sampler
    from treadle.sample.step_type import StepType
    from treadle.sample.steps import EnvSpec, EnvStep, InOutSpec, TimeStep
    from treadle.sample.time_step_batch import TimeStepBatch
    from treadle.sample.updates import EnvUpdate, ExistingEnvUpdate, NewEnvUpdate, SetTaskUpdate
    from treadle.sample.vec_worker import VecWorker
    from treadle.sample.worker import Worker
    from treadle.sample.worker_factory import WorkerFactory
    from treadle.sample.workers_lost import WorkersLost
    from treadle.states.keeper import Keeper
    from treadle.states.replay import Replayed
    from treadle.states.state import EnvState
    from treadle.task.core import RLStepResult, Task, TaskSampler
    from treadle.task.gym import GymObservation, GymTask, GymTaskSampler, TaskEnv
    from treadle.task.sensors import EnvType, Sensor, SensorSuite, SubTaskType
    from treadle.vector.async_vector import AsyncVectorEnv
    from treadle.vector.gymnasium import VectorEnv
    from treadle.vector.make_vec import make_vec, vector_entry_point
    from treadle.vector.next_obs import next_obs
    from treadle.vector.owned import OwnedVectors
    from treadle.vector.refusals import AlreadyPending, ClosedVector, NothingPending, SpacesDiffer, WaitTimeout
    from treadle.vector.rollout import Rollout
    from treadle.vector.sampled import (
        COMPLETE_TASK_CALLBACK_KEY,
        COMPLETE_TASK_METRICS_KEY,
        SingleProcessVectorSampledTasks,
        VectorSampledTasks,
    )
    from treadle.vector.sampled_tasks import TaskVectorStats
    from treadle.vector.stats import VectorStats


def __getattr__(name: str) -> Any:
    if name == "plan":  # the one room that programs ask by its own name; `import treadle` alone does not load it
        return importlib.import_module("treadle.plan")
    home = _HOME.get(name)
    if home is None:
        from treadle.elsewhere import not_here

        raise not_here(__name__, name)
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
