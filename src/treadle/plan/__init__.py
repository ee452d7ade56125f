"""Planning: environments that carry their state, stepped in batches from any state.

The names below are loaded when they are first used.
"""

from treadle.lazy import lazily

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

__getattr__, __dir__ = lazily(__name__, _HOME)
