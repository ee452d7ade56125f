"""Planning: environments that carry their state, stepped in batches from any state.

The names below are loaded when they are first used.
"""

from treadle.lazy import lazily

_HOME = {
    "PlanEnv": "env",
    "GymPlanEnv": "gym_plan_env",
    "make": "parallel",
    "check_state": "checking",
    "StateReport": "checking",
    "ExternalProcess": "workers",
    "BatchEnv": "batch",
    "VectorizedEnv": "parallel",
    "ParallelEnv": "parallel",
    "Future": "workers",
    "StateHandle": "store",
    "RolloutBatch": "batch",
    "RandomShooting": "random_shooting",
    "MCTS": "mcts",
    "play": "playing",
    "EnvState": ".states.state",
    "Keeper": ".states.keeper",
    "Replayed": ".states.replay",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazily(__name__, _HOME)
