"""Whole episodes: collecting them, judging policies by them.

The names below are loaded when they are first used. A name that is a module's too
(`treadle.vector.make_vec`) is the module here and the function in `treadle`.
"""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        ".play.episode": "Episode",
        "failed": "CollectionFailed",
        "run": "Run",
        "scores": "compare Comparison Evaluation",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
