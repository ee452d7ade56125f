"""Tasks: goals in environments, streams of them, and what an agent sees.

The names below are loaded when they are first used.
"""

from treadle.rooms import loading

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

__getattr__ = loading(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
