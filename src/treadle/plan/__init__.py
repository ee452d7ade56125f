"""Planning: environments that carry their state, stepped in batches from any state.

The names below are loaded when they are first used.
"""

from treadle.rooms import loading

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
    "EnvState": ".states.state",
    "Keeper": ".states.keeper",
    "Replayed": ".states.replay",
}

__all__ = list(_HOME)

__getattr__ = loading(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
