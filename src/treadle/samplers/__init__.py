"""Garage's samplers on a pool of workers. Users may write the workers; a sampler gathers their rollouts.

Read the modules in this order:

- `worker` plays episodes; `sampler_slot` hosts a worker where it runs.
- `gathering` sends orders and receives trajectories. `stop_rules` decides when there is enough, `fate` what a failure
  means.
- `pool_sampler` and `samplers` are the interface that users call.

The names below are loaded at their first use. `treadle.samplers.rollout` is a module; `treadle.rollout` is its
function.
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
