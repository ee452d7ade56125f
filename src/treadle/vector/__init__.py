"""Vectors of environments: Gymnasium's interface on the pool's lockstep schedule.

One idea: `step` is one closure over the engine's own, and what a vector adds to a batch it adds only where there is
something to tell. In order of reading: `gymnasium` (the vector) on `calls` (what it asks of its environments
besides steps); `core` and `infos` (what its parts have in common); `env_slot` and `orders`
(what runs in a slot, and what its resets are given); `rollout` and `partial` (many steps, or some slots);
`shares` (who steps what); `make_vec`, the other doors.

The names below are loaded when they are first used. A name that is a module's too (`treadle.vector.make_vec`) is
the module here and the function in `treadle`.
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
