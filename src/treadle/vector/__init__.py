"""Vectors of environments: Gymnasium's interface on the pool's lockstep schedule.

`step` is one closure over the engine's own, and a batch without infos of its own costs nothing more. In order of
reading:

- `gymnasium` (the vector) on `calls` (methods, attributes and states);
- `core` and `infos` (the common parts);
- `env_slot` and `orders` (the program of a slot, and its resets);
- `rollout` and `partial` (many steps, or some slots);
- `shares` (which process steps which slot);
- `make_vec`, the other constructors.

The names below are loaded when they are first used. A name that is also a module's (`treadle.vector.make_vec`) is the
module here and the function in `treadle`.
"""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        "gymnasium": "VectorEnv",
        "make_vec": "vector_entry_point register_all unregister_all AsyncVectorEnv",
        "core": "VectorStats AlreadyPending ClosedVector NothingPending SpacesDiffer WaitTimeout",
        "rollout": "Rollout",
        "log_episodes": "LogEpisodes",
        ".tasks.vectors": "VectorSampledTasks SingleProcessVectorSampledTasks "
        "COMPLETE_TASK_METRICS_KEY COMPLETE_TASK_CALLBACK_KEY",
        ".tasks.results": "TaskVectorStats",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
