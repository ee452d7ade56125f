"""Tasks: goals in environments, samplers that yield tasks, sensors that yield observations, and vectors of samplers.

Read the modules in this order:

- `core` defines tasks, samplers and sensors; `gym` makes tasks of Gymnasium environments.
- `slot` runs in a worker. `vector` is the caller's side of stepping. `vectors` has the constructors and the calls
  besides stepping.

The names below are loaded at their first use.
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
