"""The public names of `treadle` and where they come from, for type checkers; `__init__.py` loads them by this table."""

from typing import Any

__version__: str

# Names that `dir(treadle)` shows.
from . import plan as plan
from . import samplers as samplers
from . import tasks as tasks
from .errors import BadAction as BadAction
from .errors import BadObservation as BadObservation
from .errors import BrokenPool as BrokenPool
from .errors import MissingExtra as MissingExtra
from .errors import StartupFailed as StartupFailed
from .errors import StartupRefused as StartupRefused
from .errors import TaskRaised as TaskRaised
from .errors import TreadleError as TreadleError
from .errors import UsageError as UsageError
from .errors import WorkerDied as WorkerDied
from .errors import WorkerError as WorkerError
from .errors import WorkerTimeout as WorkerTimeout
from .nodes.placing import Cluster as Cluster
from .play.episode import Episode as Episode
from .play.recipe import Inference as Inference
from .program.torch_policy import torch_policy as torch_policy
from .record.dataset import collect_dataset as collect_dataset
from .record.merge import load as load
from .record.shards import merge_shards as merge_shards
from .replays.film import film as film
from .replays.replay import replay as replay
from .reports.report import report as report
from .repro import last_failure as last_failure
from .sample.collect import collect as collect
from .sample.scores import compare as compare
from .evaluation.evaluate import evaluate as evaluate
from .sample.failed import CollectionFailed as CollectionFailed
from .sample.run import Run as Run
from .samplers.fate import WorkersLost as WorkersLost
from .testing.tuning import tune as tune
from .vector.make_vec import AsyncVectorEnv as AsyncVectorEnv
from .vector.make_vec import register_all as register_all
from .vector.make_vec import unregister_all as unregister_all
from .vector.gymnasium import VectorEnv as VectorEnv
from .vector.make_vec import make_vec as make_vec
from .vector.make_vec import vector_entry_point as vector_entry_point
from .vector.next_obs import next_obs as next_obs
from .worker.options import WorkerOptions as WorkerOptions

# Names of the older systems' reference texts, which live in `treadle.tasks`, `treadle.samplers` and `treadle.plan`.
from .plan.batch import BatchEnv as BatchEnv
from .plan.env import PlanEnv as PlanEnv
from .plan.external import ExternalProcess as ExternalProcess
from .plan.gym_plan_env import GymPlanEnv as GymPlanEnv
from .plan.parallel import ParallelEnv as ParallelEnv
from .plan.parallel import VectorizedEnv as VectorizedEnv
from .samplers.adapt import GymEnv as GymEnv
from .samplers.worker import DefaultWorker as DefaultWorker
from .samplers.episode_batch import EpisodeBatch as EpisodeBatch
from .samplers.vec_worker import FragmentWorker as FragmentWorker
from .samplers.samplers import LocalSampler as LocalSampler
from .samplers.samplers import MultiprocessingSampler as MultiprocessingSampler
from .samplers.samplers import run_worker as run_worker
from .samplers.samplers import RaySampler as RaySampler
from .samplers.rollout import rollout as rollout
from .samplers.pool_sampler import Sampler as Sampler
from .samplers.adapt import EnvUpdate as EnvUpdate
from .samplers.adapt import ExistingEnvUpdate as ExistingEnvUpdate
from .samplers.adapt import NewEnvUpdate as NewEnvUpdate
from .samplers.adapt import SetTaskUpdate as SetTaskUpdate
from .samplers.vec_worker import VecWorker as VecWorker
from .samplers.worker import Worker as Worker
from .samplers.worker_factory import WorkerFactory as WorkerFactory
from .tasks.core import EnvType as EnvType
from .tasks.core import RLStepResult as RLStepResult
from .tasks.core import Sensor as Sensor
from .tasks.core import SensorSuite as SensorSuite
from .tasks.core import SubTaskType as SubTaskType
from .tasks.core import Task as Task
from .tasks.core import TaskSampler as TaskSampler
from .tasks.vectors import COMPLETE_TASK_CALLBACK_KEY as COMPLETE_TASK_CALLBACK_KEY
from .tasks.vectors import COMPLETE_TASK_METRICS_KEY as COMPLETE_TASK_METRICS_KEY
from .tasks.vectors import SingleProcessVectorSampledTasks as SingleProcessVectorSampledTasks
from .tasks.vectors import VectorSampledTasks as VectorSampledTasks

def __getattr__(name: str) -> Any: ...
