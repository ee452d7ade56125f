"""PettingZoo: vectors of environments with several agents.

`make_vec(parallel_env_fn, n)` makes a vector; `AgentsVector` and `AgentRows` are its two forms.
"""

from treadle.lazy import homes, lazily

HOME = homes(
    {
        "env": "AgentsEnv",
        "faces": "make_vec AgentsVector AgentRows",
        "layout": "AgentsLayout",
        "single": "ParallelEnv",
    }
)

__all__, __getattr__, __dir__ = lazily(__name__, HOME)
