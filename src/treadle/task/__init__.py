"""What is in `treadle.tasks`, under the name that it had before."""

from treadle.lazy import lazily

HOME = {
    **dict.fromkeys(("Task", "TaskSampler", "RLStepResult"), ".tasks.core"),
    **dict.fromkeys(("Sensor", "SensorSuite", "EnvType", "SubTaskType"), ".tasks.sensors"),
    **dict.fromkeys(("GymTask", "GymTaskSampler", "GymObservation", "TaskEnv"), ".tasks.gym"),
}

__all__ = list(HOME)

__getattr__, __dir__ = lazily(__name__, HOME)
