"""Tasks: goals in environments, streams of them, and what an agent sees.

The names below are loaded when they are first used.
"""

from treadle.lazy import lazily

_HOME = {
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
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazily(__name__, _HOME)
