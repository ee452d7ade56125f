"""Planning: environments that carry their state, stepped in batches from any state.

The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from treadle.elsewhere import not_here

_HOME = {
    "PlanEnv": "env",
    "GymPlanEnv": "gym_plan_env",
    "make": "making",
    "check_state": "checking",
    "StateReport": "checking",
    "ExternalProcess": "external",
    "BatchEnv": "batch_env",
    "VectorizedEnv": "vectorized",
    "ParallelEnv": "parallel",
    "Promise": "promise",
    "StateHandle": "store",
    "RolloutBatch": "rollouts",
    "RandomShooting": "random_shooting",
    "MCTS": "mcts",
    "play": "playing",
}

__all__ = [*_HOME, "EnvState", "Keeper", "Replayed"]


def __getattr__(name: str) -> Any:
    lower = {"EnvState": "state", "Keeper": "keeper", "Replayed": "replay"}
    if name in _HOME:
        found = getattr(importlib.import_module(f"treadle.plan.{_HOME[name]}"), name)
    elif name in lower:
        found = getattr(importlib.import_module(f"treadle.states.{lower[name]}"), name)
    else:
        raise not_here(__name__, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
