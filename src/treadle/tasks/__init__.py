"""Tasks: goals in environments, streams of them, what an agent sees, and vectors of such streams.

In order of reading: `core` and `sensors` (what a task is), `gym` (Gymnasium's environments as tasks), `slot` (what runs
in a slot), `vector` with `commands` (what the caller holds), `vectors` (how it is made).

The names below are loaded when they are first used.
"""

from treadle.lazy import lazily

HOME = {
    "Task": "core",
    "TaskSampler": "core",
    "RLStepResult": "core",
    "Sensor": "sensors",
    "SensorSuite": "sensors",
    "EnvType": "sensors",
    "SubTaskType": "sensors",
    "GymTask": "gym",
    "GymTaskSampler": "gym",
    "GymObservation": "gym",
    "TaskEnv": "gym",
    "VectorSampledTasks": "vectors",
    "SingleProcessVectorSampledTasks": "vectors",
    "COMPLETE_TASK_METRICS_KEY": "vectors",
    "COMPLETE_TASK_CALLBACK_KEY": "vectors",
    "TaskVectorStats": "vector",
}

__all__ = list(HOME)

__getattr__, __dir__ = lazily(__name__, HOME)
