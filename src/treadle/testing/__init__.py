"""For testing what steps environments, and environments themselves: checks that users run, and a zoo of what fails.

`check_env` plays an environment and says what cannot be trusted; `faults` has broken environments, one for each way to
fail or to lie.

The names below are loaded when they are first used.
"""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        "env_check": "check_env",
        "vector_check": "check_vector_env",
        "verdict": "Report Finding CheckFailed",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
