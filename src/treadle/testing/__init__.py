"""Tests of environments: `check_env` plays an environment and reports its faults.

The names below are loaded at their first use.
"""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        "env_check": "check_env",
        "verdict": "Report Finding CheckFailed",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
