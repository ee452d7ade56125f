"""Planning: environments that carry their state, stepped in batches from any state.

Each item of a batch holds the state that it begins in. So any worker can do it, and another worker can do it again if
the first one dies. Read the modules in this order:

- `env` is an environment that carries its state; `gym_plan_env` makes one of any Gymnasium environment.
- `parallel` has `ParallelEnv`, which users call. `items` are the parts of a batch. `futures` has a pool, and a future
  for each request. `batch` cuts a batch into chunks, sends them and joins the results. `work` is the worker's side.
- `checking` tests whether states are complete; `external` runs one environment in another process.

The names below are loaded at their first use.
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
