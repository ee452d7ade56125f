"""Whole episodes: collecting them, judging policies by them, streaming samplers.

The names below are loaded when they are first used. A name that is a module's too
(`treadle.vector.make_vec`) is the module here and the function in `treadle`.
"""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        "episode": "Episode",
        "samplers.adapt": "GymEnv",
        "failed": "CollectionFailed",
        "evaluate": "compare Comparison Evaluation",
        "samplers.steps": "EnvSpec EnvStep InOutSpec TimeStep StepType",
        "samplers.updates": "EnvUpdate ExistingEnvUpdate NewEnvUpdate SetTaskUpdate",
        "samplers.time_step_batch": "TimeStepBatch",
        "samplers.episode_batch": "EpisodeBatch",
        "samplers.in_progress": "InProgressEpisode",
        "samplers.worker": "Worker",
        "samplers.default_worker": "DefaultWorker",
        "samplers.vec_worker": "VecWorker",
        "samplers.fragment_worker": "FragmentWorker",
        "samplers.worker_factory": "WorkerFactory",
        "samplers.sampler": "Sampler",
        "samplers.local_sampler": "LocalSampler",
        "samplers.multiprocessing_sampler": "MultiprocessingSampler run_worker",
        "samplers.ray_sampler": "RaySampler",
        "samplers.workers_lost": "WorkersLost",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
