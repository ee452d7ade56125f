"""The vectors of `treadle.tasks`, under the name that AllenAct's scripts know."""

from treadle.lazy import lazily

_HOME = dict.fromkeys(
    (
        "VectorSampledTasks",
        "SingleProcessVectorSampledTasks",
        "COMPLETE_TASK_METRICS_KEY",
        "COMPLETE_TASK_CALLBACK_KEY",
    ),
    "..tasks.vectors",
)

__all__ = list(_HOME)

__getattr__, __dir__ = lazily(__name__, _HOME)
