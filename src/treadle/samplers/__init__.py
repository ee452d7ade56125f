"""Garage's samplers on a pool of workers: rollouts by workers that users may write, gathered until there is enough.

To read in this order: `worker` (what plays), `sampler_slot` (what hosts one, where it works),
`gathering` (orders out, trajectories in) with `stop_rules` (when it is enough) and `fate` (what failures mean),
`pool_sampler` and `samplers` (what users call).

The names below are loaded when they are first used. `treadle.samplers.rollout` is the module here and the function in
`treadle`.
"""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        "adapt": "GymEnv EnvUpdate ExistingEnvUpdate NewEnvUpdate SetTaskUpdate",
        "steps": "EnvSpec EnvStep InOutSpec TimeStep TimeStepBatch StepType",
        "episode_batch": "EpisodeBatch",
        "in_progress": "InProgressEpisode",
        "worker": "Worker DefaultWorker",
        "vec_worker": "VecWorker FragmentWorker",
        "worker_factory": "WorkerFactory",
        "pool_sampler": "Sampler",
        "samplers": "LocalSampler MultiprocessingSampler RaySampler run_worker",
        "fate": "WorkersLost",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
