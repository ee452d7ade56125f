"""The samplers that users make, which differ in where their workers run, and garage's worker loop over two queues."""

from __future__ import annotations

import copy
import pickle
import queue
from typing import Any

from treadle import pickling
from treadle.nodes import backend
from treadle.nodes.placing import ALL, Cluster, Placement
from treadle.samplers.pool_sampler import PoolSampler


class MultiprocessingSampler(PoolSampler):
    """Streams episodes from worker processes.

    Workers play on while the caller takes finished episodes. They stop at their next step once the caller has enough.
    Episodes arrive through shared memory; an update of the agents is pickled once and mapped by all workers.

    Call it as `(agents, envs, ...)` or `(worker_factory, agents, envs)`.

    Args:
        agents: an agent for all workers, or a list with one for each; see `treadle.samplers.agents`.
        envs: an environment for all workers, or a list with one for each. Each worker has its own copy. An environment
            is a `gymnasium.Env`, or has `reset() -> (observation, episode_info)` and `step(action) -> EnvStep`. A
            registered id, a Gymnasium `EnvSpec`, a callable or an `EnvUpdate` makes the environment in the worker.
        worker_factory: a `WorkerFactory`. Or give its arguments by keyword: max_episode_length, seed, n_workers,
            worker_class, worker_args.
        ordered: True: episodes count by index. Episode i depends on (seed, i) alone, so the result is the same for any
            number of workers. False: episodes count in order of arrival, which favours short episodes and fast workers.
        allow_stale: True: also return episodes of earlier samplings that arrive late. Then
            `episode_infos["agent_version"]` holds the number (1, 2, ...) of the sampling whose agent played an
            episode's first step, and `["agent_version_last"]` that of its last step. Workers play on between two
            samplings.
        on_failure: the reaction to a worker that dies or raises. `"drop"` (default): a warning names the worker, and
            the others go on. `"restart"`: another worker with the same agent and environment and other seeds replaces
            it. `"raise"`: its error is raised.
        step_timeout: seconds in which a worker must take a step, else it counts as dead. None: no limit.
        inference: a `treadle.Inference`, or its `where`. `"worker"`: each worker asks the agent by itself.
            `"caller"`: the caller asks the agent about all environments that are ready (`docs/inference.md`).
            `"auto"`: as for `treadle.collect`.
        num_envs: number of environments that are played at a time with the agent in the caller; None: 8 for each
            worker.
        progress: show the progress of a sampling on stderr, as for `treadle.collect`. None (default): only on a
            terminal, if rich is installed.
        worker_options: a `treadle.WorkerOptions`. The class decides the backend.

    Raises:
        TypeError: `worker_factory` and `max_episode_length` are both missing, or agents or envs are missing or of
            another type.
        ValueError: a list of another length than the number of workers, or an invalid option.
        StartupFailed: a worker could not be made; all workers are ended.
    """

    backend = "process"
    default_on_failure = "drop"


def run_worker(factory: Any, to_worker: Any, to_sampler: Any, worker_number: int, agent: Any, env: Any) -> None:
    """Run a worker over two queues, for a user's own sampler.

    The worker does not stream at first. "start", with (agent update, environment update, version), and "continue" make
    it stream. A streaming worker puts ("episode", (batch, version, worker_number)) into `to_sampler` after every
    rollout. "stop", or a full queue, ends streaming; "exit" ends the worker. Sending never blocks.

    Args:
        factory: makes the worker.
        to_worker: queue of (tag, contents).
        to_sampler: queue for episodes.
        worker_number: the worker's number.
        agent, env: the first updates. These and later updates may be pickled (bytes).

    Raises:
        AssertionError: an unknown tag.
    """
    worker = factory(worker_number)
    worker.update_agent(_unpickled(agent))
    worker.update_env(_unpickled(env))
    version, streaming = 0, False
    while True:
        tag, contents = _next(to_worker, wait=not streaming)
        if tag == "exit":
            worker.shutdown()
            return
        if tag == "stop":
            streaming = False
            continue
        if tag == "start":
            agent_update, env_update, version = contents
            worker.update_agent(_unpickled(agent_update))
            worker.update_env(_unpickled(env_update))
        elif tag != "continue":
            raise AssertionError(f"Unknown tag {tag} with contents {contents}")
        batch = worker.rollout()
        try:
            to_sampler.put_nowait(("episode", (batch, version, worker_number)))
            streaming = True
        except queue.Full:
            streaming = False


def _next(to_worker: Any, wait: bool) -> tuple[str, Any]:
    """Return the next message; without `wait`, an empty queue counts as "continue"."""
    try:
        return to_worker.get(wait)
    except queue.Empty:
        return "continue", None


def _unpickled(value: Any) -> Any:
    return pickle.loads(value) if isinstance(value, bytes) else value


class LocalSampler(PoolSampler):
    """Plays in the caller's own thread: one rollout of each worker in turn.

    It runs the loop of `MultiprocessingSampler` without processes, for debugging and for environments that cannot leave
    the caller. Every call restores the caller's `random`, `numpy.random` and torch generators; each worker has its own
    generator states. The agents are the caller's own objects (one for all workers, unless a list is given);
    environments are copied.

    Args:
        agents, envs, worker_factory and those after it: as for `MultiprocessingSampler`.
        on_failure: as for `MultiprocessingSampler`, but the default is "raise", which lets exceptions through.
    """

    backend = "serial"
    default_on_failure = "raise"

    def _own_copy(self, env: Any) -> Any:
        try:
            return copy.deepcopy(env)
        except Exception:  # noqa: BLE001 - a foreign __deepcopy__ may raise anything; cloudpickle copies more objects
            return pickle.loads(pickling.dumps(env))


class RaySampler(PoolSampler):
    """A `MultiprocessingSampler` whose workers are spread over the nodes of a Ray cluster.

    Each node has a pool with a share of the workers. The pool gets orders for episodes and sends batches of episodes
    back. An update of the agents is put into Ray's object store once, and pulled once by each node. A node's pool
    replaces a worker that dies. Workers of a lost node count as dead, see on_failure: "restart" moves them to another
    node.

    Args:
        agents, envs, worker_factory and those after it: as for `MultiprocessingSampler`. Objects that belong to this
            process alone, such as a multiprocessing queue, cannot go to a node. `n_workers` defaults to the number
            of cores of this machine: give the number of the cluster's cores.
        cluster: a `treadle.Cluster`, which also limits the number of nodes. None: all nodes of the cluster that the
            program is connected to. Without a connection, a cluster is started on this machine until
            `shutdown_worker`. A cluster that the program has connected to is never shut down.

    Raises:
        MissingExtra: Ray is not installed.
        UsageError: the address does not answer, or a node has other versions of Python, Treadle or the workers'
            packages.
        TreadleError: the errors of `MultiprocessingSampler`.
    """

    default_on_failure = "drop"

    def __init__(self, *args: Any, cluster: Cluster | None = None, **options: Any) -> None:
        self.backend = backend()
        self._placement = Placement.of(Cluster(ALL) if cluster is None else cluster, shared=True)
        super().__init__(*args, **options)
