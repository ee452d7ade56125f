"""Planning: environments that carry their state, stepped in batches from any state.

One idea: an item of a batch brings the state that it begins in, so any worker may do it, and do it again when another
has died. In order of reading: `env` (an environment with its state), `gym_plan_env` (any Gymnasium environment as one);
`parallel` (the door: `ParallelEnv`), `items` (what a batch is made of), `batch` (a pool and a future for each request;
cut, sent, taken, put together), `work` and `stepping` (the worker's side), `store` (states that stay where they were
made); `search`, `random_shooting`, `mcts` and `playing` on top of it, `checking` and `external` beside it.

The names below are loaded when they are first used.
"""

from treadle.lazy import lazily

HOME = {
    "PlanEnv": "env",
    "GymPlanEnv": "gym_plan_env",
    "make": "parallel",
    "check_state": "checking",
    "StateReport": "checking",
    "ExternalProcess": "external",
    "BatchEnv": "batch",
    "VectorizedEnv": "parallel",
    "ParallelEnv": "parallel",
    "Future": "batch",
    "StateHandle": "store",
    "RolloutBatch": "batch",
    "RandomShooting": "random_shooting",
    "MCTS": "mcts",
    "play": "playing",
    "EnvState": ".states.state",
    "Keeper": ".states.keeper",
    "Replayed": ".states.replay",
}

__all__ = list(HOME)

__getattr__, __dir__ = lazily(__name__, HOME)
