"""Whole episodes: collecting them, judging policies by them, streaming samplers.

The names below are loaded when they are first used. A name that is a module's too
(`treadle.vector.make_vec`) is the module here and the function in `treadle`.
"""

from treadle.lazy import lazily

HOME = {
    "Episode": "episode",
    "GymEnv": "samplers.adapt",
    "CollectionFailed": "collect",
    "compare": "evaluate",
    "Comparison": "evaluate",
    "Evaluation": "evaluate",
    "EnvSpec": "samplers.steps",
    "EnvStep": "samplers.steps",
    "InOutSpec": "samplers.steps",
    "TimeStep": "samplers.steps",
    "EnvUpdate": "samplers.updates",
    "ExistingEnvUpdate": "samplers.updates",
    "NewEnvUpdate": "samplers.updates",
    "SetTaskUpdate": "samplers.updates",
    "StepType": "samplers.steps",
    "TimeStepBatch": "samplers.time_step_batch",
    "EpisodeBatch": "samplers.episode_batch",
    "InProgressEpisode": "samplers.in_progress",
    "Worker": "samplers.worker",
    "DefaultWorker": "samplers.default_worker",
    "VecWorker": "samplers.vec_worker",
    "FragmentWorker": "samplers.fragment_worker",
    "WorkerFactory": "samplers.worker_factory",
    "Sampler": "samplers.sampler",
    "LocalSampler": "samplers.local_sampler",
    "MultiprocessingSampler": "samplers.multiprocessing_sampler",
    "RaySampler": "samplers.ray_sampler",
    "run_worker": "samplers.multiprocessing_sampler",
    "WorkersLost": "samplers.workers_lost",
}

__all__ = list(HOME)

__getattr__, __dir__ = lazily(__name__, HOME)
