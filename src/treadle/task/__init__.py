"""Names of `treadle.tasks` under their older address."""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        ".tasks.core": "Task TaskSampler RLStepResult Sensor SensorSuite EnvType SubTaskType",
        ".tasks.gym": "GymTask GymTaskSampler GymObservation TaskEnv",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
