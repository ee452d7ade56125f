"""Names of earlier versions of Treadle that were removed, and their replacements: one table for all interfaces."""

from __future__ import annotations

_PLANNERS = "copy it from examples/planning"
_SNAPSHOTS = "get_states and set_states of a VectorEnv, and planning's states, pickle"
_STATES = "batches take states and return them, docs/planning.md"
_BATCHES = "treadle.Inference(batch_size=, max_wait=) says in Python when a batch is asked"
_RECYCLES = "treadle.WorkerOptions(recycle_after=500) counts episodes, recycle_after='2GB' is a size, (500, '2GB') both"
_CLUSTER = "the environment variable RAY_ADDRESS says where the cluster is, in Python Cluster(address=...)"
# as users write it: "keyword=", "Class(keyword=)", "--option", "treadle command", "name" -> its replacement
GONE: dict[str, str] = {
    "--address": _CLUSTER,
    "--batch-size": _BATCHES,
    "--envs-per-worker": "--num-envs counts the environments of all --workers",
    "--format": "treadle collect makes Minari datasets",
    "--import": "module:Id imports the module first",
    "--keep-built": "a slot keeps one environment built",
    "--max-deaths": "three fresh workers that die of an episode say that it has failed",
    "--max-episodes-per-worker": _RECYCLES,
    "--memory-limit": _RECYCLES,
    "--patience": _BATCHES,
    "--ray-address": _CLUSTER,
    "--reset-options": "treadle.collect_dataset(reset_options=) takes them in Python",
    "--wrap": "ENV may be a function that returns a wrapped environment, file.py:make_env",
    "Cluster(shared_out=)": "with treadle collect --shard i/n each machine writes by itself",
    "FreedHandle": _STATES,
    "MCTS": _PLANNERS,
    "OwnedVectors": "a vectorised environment is stepped as it is, with no vector around it",
    "RandomShooting": _PLANNERS,
    "Sampler(schedule=)": "ordered=True counts episodes by index, ordered=False as they arrive",
    "StateHandle": _STATES,
    "StoreFull": _STATES,
    "batch_dim=": "rows are the first axis of a policy's state; transpose it there",
    "close_timeout=": "workers have 5 s to close their environments; close(timeout) of a vector takes another limit",
    "command=": "the summary of what a program makes says which function made it",
    "copy=": "every batch is the caller's to keep",
    "blocks=": "every batch is the caller's to keep",
    "check_vector_env": "benchmarks/vector_check.py of the repository has it, docs/faults.md",
    "envs_per_worker=": "num_envs= counts the environments of all workers=",
    "export_agents": "the columns of a dataset of several agents hold alive and acted, docs/coming-from-pettingzoo.md",
    "faults": "tests/zoo/faults.py of the repository has the environments that go wrong",
    "format=": "collect_dataset makes Minari datasets",
    "force=": "resume='replace' begins again",
    "free_handles": _STATES,
    "groups=": "use send and recv, docs/gymnasium.md",
    "imports=": "module:Id imports the module first, and workers know what the caller has registered",
    "infos='list'": "infos='legacy' and 'gymnasium' are there; treadle.sb3 gives a dict a slot",
    "kwargs=": "env_kwargs= builds environments",
    "is_tf_worker=": "open the TensorFlow session in a worker_class of your own",
    "keep_built=": "a slot keeps one environment built",
    "max_buffered=": "workers wait where more than 1 GiB of episodes wait for their turn",
    "max_deaths=": "three fresh workers that die of an episode say that it has failed",
    "max_episodes_per_worker=": _RECYCLES,
    "memory_limit=": _RECYCLES,
    "owned=": "a vectorised environment is stepped as it is, with no vector around it",
    "patience=": "inference=Inference(max_wait=...) says how long one waits for others",
    "placement=": "cluster=Cluster(nodes=...) says where workers are, docs/scaling.md",
    "put_state": _STATES,
    "retry_skipped=": "resume='retry' tries again what was left out",
    "ray_address=": _CLUSTER,
    "restore": _SNAPSHOTS,
    "shard=": "treadle collect --shard i/n makes a part of a run",
    "snapshot": _SNAPSHOTS,
    "state_bytes=": _STATES,
    "store_bytes=": _STATES,
    "treadle check-vector": "python -m benchmarks.faults in the repository, docs/faults.md",
    "treadle plan": "python examples/planning/play.py",
    "verify=": "one episode of a dataset is made again; treadle collect and eval have --verify K",
    "watch=": "progress= takes a function, and with out= each episode is a line of episodes.jsonl at once",
}

_OF_WORKERS = (
    "backend start_method preload start_timeout max_restarts worker_output worker_environ recorder recycle_after"
)
# field of an object -> (the keyword argument that takes the object, the object's class)
FIELDS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("batch_size", "max_wait", "pad_to", "n_action_steps"), ("inference", "Inference")),
    **dict.fromkeys(("nodes", "cpus_per_node", "address"), ("cluster", "Cluster")),
    **dict.fromkeys(_OF_WORKERS.split(), ("worker_options", "WorkerOptions")),
}
# arguments that stand beside those objects, and are not fields of them
BESIDE = ("workers", "num_envs", "step_timeout", "on_failure", "on_error", "max_skipped", "episodes", "seed")
# name of an argument in other packages -> its name here
KNOWN = {"max_steps": "max_episode_steps", "n": "num_envs", "n_jobs": "workers", "overwrite": "resume"}
# argument of some functions -> those functions
OF_SOME = {
    **dict.fromkeys(("out", "resume"), "collect_dataset and evaluate"),
    **dict.fromkeys(("keep", "kept", "name"), "collect_dataset"),
    **dict.fromkeys(("success_key", "deterministic"), "evaluate"),
    "ordered": "collect and samplers",
}


def instead(written: str) -> str | None:
    """Return the error's text for a name in the table, or for an option that only Python has; None: neither."""
    if written.startswith("--") and (name := written[2:].replace("-", "_")) in FIELDS and written not in GONE:
        return f"{written} is for Python: {FIELDS[name][0]}={FIELDS[name][1]}({name}=...)"
    return f"{written} is gone: {GONE[written]}" if written in GONE else None


def refusal(words: list[str]) -> str | None:
    """Return `instead` for the first command or option of a command line that was removed; None: there is none."""
    command = [f"treadle {' '.join(words[:count])}" for count in (1, 2)]
    said = (instead(each) for each in (*command, *(word.partition("=")[0] for word in words)))
    return next((text for text in said if text), None)
