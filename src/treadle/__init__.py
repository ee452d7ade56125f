"""Treadle steps many environments at once.

Every public name lives in a room of its own and is loaded when it is first used, so that `import treadle` costs
nothing: no NumPy, no Gymnasium, no set-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle import plan, sample, samplers, tasks, vector
from treadle.lazy import homes, lazily, names_of

__version__ = "0.1.0"

_ERRORS = """
ArenaError BadAction BadObservation BrokenPool ClosedPool LayoutsDiffer MissingExtra NoBatch RemoteTraceback
SpaceError StartupFailed StartupRefused StateDiffers StateError TaskRaised TooManyFiles TreadleError
UsageError Where WorkerDied WorkerError WorkerTimeout
"""

# public name -> the module it comes from, seen from here
_HOME = {
    **homes({"errors": _ERRORS}),
    **names_of("vector", vector.HOME),
    **names_of("tasks", tasks.HOME),
    **names_of("sample", sample.HOME),
    **names_of("samplers", samplers.HOME),
    **{name: at for name, at in names_of("plan", plan.HOME).items() if name not in ("make", "StateReport")},
    # names that are modules in their rooms, and names of rooms that have no list
    "make_vec": "vector.make_vec",
    "next_obs": "vector.next_obs",
    "collect": "sample.collect",
    "torch_policy": "program.torch_policy",
    "evaluate": "sample.evaluate",
    "rollout": "samplers.rollout",
    "collect_dataset": "record.dataset",
    "merge_shards": "record.shards",
    "load": "record.merge",
    "replay": "replays.replay",
    "Replay": "replays.result",
    **homes({"repro": "Repro last_failure"}),
    "plan": "",  # the one room that programs ask by its own name
}

# modules: foreign faces, not in `*`, since each needs the package that it is a face to; and what tests ask for
_FACES = homes({"": "sb3 pettingzoo tianshou dm_env lerobot testing"})

__all__ = ["__version__", *_HOME]

_, __getattr__, __dir__ = lazily(__name__, _HOME | _FACES)

if TYPE_CHECKING:
    from treadle.errors import *
    from treadle.plan.batch import BatchEnv, RolloutBatch
    from treadle.plan.checking import check_state
    from treadle.plan.env import PlanEnv
    from treadle.plan.external import ExternalProcess
    from treadle.plan.futures import Future
    from treadle.plan.gym_plan_env import GymPlanEnv
    from treadle.plan.parallel import ParallelEnv, VectorizedEnv
    from treadle.play.episode import Episode
    from treadle.program.torch_policy import torch_policy
    from treadle.record.dataset import collect_dataset
    from treadle.record.merge import load
    from treadle.record.shards import merge_shards
    from treadle.replays.replay import replay
    from treadle.replays.result import Replay
    from treadle.repro import Repro, last_failure
    from treadle.sample.collect import collect
    from treadle.sample.evaluate import Comparison, Evaluation, compare, evaluate
    from treadle.sample.failed import CollectionFailed
    from treadle.samplers.adapt import GymEnv
    from treadle.samplers.default_worker import DefaultWorker
    from treadle.samplers.episode_batch import EpisodeBatch
    from treadle.samplers.fragment_worker import FragmentWorker
    from treadle.samplers.in_progress import InProgressEpisode
    from treadle.samplers.local_sampler import LocalSampler
    from treadle.samplers.multiprocessing_sampler import MultiprocessingSampler, run_worker
    from treadle.samplers.ray_sampler import RaySampler
    from treadle.samplers.rollout import rollout
    from treadle.samplers.sampler import Sampler
    from treadle.samplers.steps import EnvSpec, EnvStep, InOutSpec, StepType, TimeStep
    from treadle.samplers.time_step_batch import TimeStepBatch
    from treadle.samplers.updates import EnvUpdate, ExistingEnvUpdate, NewEnvUpdate, SetTaskUpdate
    from treadle.samplers.vec_worker import VecWorker
    from treadle.samplers.worker import Worker
    from treadle.samplers.worker_factory import WorkerFactory
    from treadle.samplers.workers_lost import WorkersLost
    from treadle.states.keeper import Keeper
    from treadle.states.replay import Replayed
    from treadle.states.state import EnvState
    from treadle.tasks.core import EnvType, RLStepResult, Sensor, SensorSuite, SubTaskType, Task, TaskSampler
    from treadle.tasks.gym import GymObservation, GymTask, GymTaskSampler, TaskEnv
    from treadle.tasks.vector import TaskVectorStats
    from treadle.tasks.vectors import (
        COMPLETE_TASK_CALLBACK_KEY,
        COMPLETE_TASK_METRICS_KEY,
        SingleProcessVectorSampledTasks,
        VectorSampledTasks,
    )
    from treadle.vector.core import AlreadyPending, ClosedVector, NothingPending, SpacesDiffer, VectorStats, WaitTimeout
    from treadle.vector.gymnasium import VectorEnv
    from treadle.vector.make_vec import AsyncVectorEnv, make_vec, register_all, unregister_all, vector_entry_point
    from treadle.vector.next_obs import next_obs
    from treadle.vector.rollout import Rollout
