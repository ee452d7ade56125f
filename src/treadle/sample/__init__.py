"""Whole episodes: collecting them, judging policies by them, streaming samplers.

The names below are loaded when they are first used. A name that is a module's too
(`treadle.vector.make_vec`) is the module here and the function in `treadle`.
"""

from treadle.lazy import lazily

_HOME = {
    "Episode": "episode",
    "GymEnv": "adapt",
    "CollectionFailed": "collect",
    "compare": "evaluate",
    "Comparison": "evaluate",
    "Evaluation": "evaluate",
    "EnvSpec": "steps",
    "EnvStep": "steps",
    "InOutSpec": "steps",
    "TimeStep": "steps",
    "EnvUpdate": "updates",
    "ExistingEnvUpdate": "updates",
    "NewEnvUpdate": "updates",
    "SetTaskUpdate": "updates",
    "StepType": "step_type",
    "TimeStepBatch": "time_step_batch",
    "EpisodeBatch": "episode_batch",
    "InProgressEpisode": "in_progress",
    "Worker": "worker",
    "DefaultWorker": "default_worker",
    "VecWorker": "vec_worker",
    "FragmentWorker": "fragment_worker",
    "WorkerFactory": "worker_factory",
    "Sampler": "sampler",
    "LocalSampler": "local_sampler",
    "MultiprocessingSampler": "multiprocessing_sampler",
    "run_worker": "multiprocessing_sampler",
    "WorkersLost": "workers_lost",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazily(__name__, _HOME)
