"""The vectors of `treadle.tasks`, under the name that AllenAct's scripts know."""

from treadle.lazy import homes, lazily

_CONSTANTS = "COMPLETE_TASK_METRICS_KEY COMPLETE_TASK_CALLBACK_KEY"
HOME = homes({"..tasks.vectors": f"VectorSampledTasks SingleProcessVectorSampledTasks {_CONSTANTS}"})

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
