"""Planning: environments that carry their state, stepped in batches from any state.

One idea: an item of a batch brings the state that it begins in, so any worker may do it, and do it again when another
has died. In order of reading: `env` (an environment with its state), `gym_plan_env` (any Gymnasium environment as one);
`parallel` (the door: `ParallelEnv`), `items` (what a batch is made of), `futures` (a pool, and a future for each
request), `batch` (cut, sent, taken, put together), `work` (the worker's side); `checking` and `external`
beside it.

The names below are loaded when they are first used.
"""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        "env": "PlanEnv",
        "gym_plan_env": "GymPlanEnv",
        "parallel": "make VectorizedEnv ParallelEnv",
        "checking": "check_state StateReport",
        "external": "ExternalProcess",
        "batch": "BatchEnv RolloutBatch",
        "futures": "Future",
        ".states.state": "EnvState",
        ".states.keeper": "Keeper",
        ".states.replay": "Replayed",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
