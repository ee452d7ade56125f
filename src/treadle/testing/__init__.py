"""For testing environments: `check_env` plays one and says what cannot be trusted.

The names below are loaded when they are first used.
"""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        "env_check": "check_env",
        "verdict": "Report Finding CheckFailed",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
