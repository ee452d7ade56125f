"""Garage's samplers on a pool of workers: rollouts by workers that users may write, gathered until there is enough.

To read in this order: `worker` and `default_worker` (what plays), `sampler_slot` (what hosts one, where it works),
`gathering` (orders out, trajectories in) with `stop_rules` (when it is enough) and `fate` (what failures mean),
`pool_sampler` (what users call).

The names below are loaded when they are first used. `treadle.samplers.rollout` is the module here and the function in
`treadle`.
"""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        "adapt": "GymEnv",
        "steps": "EnvSpec EnvStep InOutSpec TimeStep StepType",
        "updates": "EnvUpdate ExistingEnvUpdate NewEnvUpdate SetTaskUpdate",
        "time_step_batch": "TimeStepBatch",
        "episode_batch": "EpisodeBatch",
        "in_progress": "InProgressEpisode",
        "worker": "Worker",
        "default_worker": "DefaultWorker",
        "vec_worker": "VecWorker",
        "fragment_worker": "FragmentWorker",
        "worker_factory": "WorkerFactory",
        "sampler": "Sampler",
        "local_sampler": "LocalSampler",
        "multiprocessing_sampler": "MultiprocessingSampler run_worker",
        "ray_sampler": "RaySampler",
        "fate": "WorkersLost",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
