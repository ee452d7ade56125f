"""Tasks: goals in environments, streams of them, what an agent sees, and vectors of such streams.

In order of reading: `core` (what a task is, and what an agent sees), `gym` (Gymnasium's environments as tasks), `slot`
(what runs in a slot), `vector` (what the caller holds), `vectors` (how it is made, and what it does besides stepping).

The names below are loaded when they are first used.
"""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        "core": "Task TaskSampler RLStepResult Sensor SensorSuite EnvType SubTaskType",
        "gym": "GymTask GymTaskSampler GymObservation TaskEnv",
        "vectors": "VectorSampledTasks SingleProcessVectorSampledTasks "
        "COMPLETE_TASK_METRICS_KEY COMPLETE_TASK_CALLBACK_KEY",
        "results": "TaskVectorStats",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
