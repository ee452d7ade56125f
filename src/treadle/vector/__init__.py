"""Vectors of environments and of tasks: faces on the pool's lockstep schedule.

The names below are loaded when they are first used. A name that is a module's too
(`treadle.vector.make_vec`) is the module here and the function in `treadle`.
"""

from treadle.lazy import lazily

HOME = {
    "VectorEnv": "gymnasium",
    "AsyncVectorEnv": "async_vector",
    "vector_entry_point": "make_vec",
    "register_all": "entry_points",
    "unregister_all": "entry_points",
    "AlreadyPending": "refusals",
    "ClosedVector": "refusals",
    "NothingPending": "refusals",
    "SpacesDiffer": "refusals",
    "WaitTimeout": "refusals",
    "VectorStats": "stats",
    "Rollout": "rollout",
    "OwnedVectors": "owned",
    "VectorSampledTasks": ".tasks.vectors",
    "SingleProcessVectorSampledTasks": ".tasks.vectors",
    "COMPLETE_TASK_METRICS_KEY": ".tasks.vectors",
    "COMPLETE_TASK_CALLBACK_KEY": ".tasks.vectors",
    "TaskVectorStats": ".tasks.vector",
}

__all__ = list(HOME)

__getattr__, __dir__ = lazily(__name__, HOME)
