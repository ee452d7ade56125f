"""PettingZoo: vectors of environments with several agents.

`make_vec(parallel_env_fn, n)` is the way in; see `AgentsVector` and `AgentRows` for the two forms.
"""

from treadle.lazy import lazily

HOME = {
    "make_vec": "making",
    "AgentsEnv": "env",
    "AgentsVector": "faces",
    "AgentRows": "faces",
    "AgentsLayout": "layout",
    "ParallelEnv": "single",
    "export_agents": "datasets",
}

__all__ = list(HOME)

__getattr__, __dir__ = lazily(__name__, HOME)
