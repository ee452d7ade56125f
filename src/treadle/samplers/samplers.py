"""The samplers that users make, which differ in where their workers are, and the older systems' worker loop over two
queues.
"""

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

    Workers play on while the caller takes what is there, and stop at their next step when it has enough. Episodes come
    through shared memory; an update of the agents is pickled once and mapped by all workers.

    May be called as `(agents, envs, ...)` or `(worker_factory, agents, envs)`.

    Args:
        agents: an agent for all workers, or a list with one for each; see `treadle.samplers.agents`.
        envs: an environment (or what makes one in the worker: a registered id, an EnvSpec of Gymnasium's, a callable,
            an `EnvUpdate`) for all workers, or a list with one for each. Each worker has a copy of its own. A
            `gymnasium.Env`, or one with `reset() -> (observation, episode_info)` and `step(action) -> EnvStep`.
        worker_factory: how to make workers. Or the arguments of one, by keyword: max_episode_length, seed, n_workers,
            worker_class, worker_args; see `WorkerFactory`.
        schedule: "arrival": episodes count in the order in which they are ready, which favours short ones and fast
            workers. "deterministic": they count by index, episode i is played from (seed, i) alone, and so the result
            is the same for any number of workers.
        allow_stale: hand out episodes of earlier samplings that had no time to arrive, too. Then
            `episode_infos["agent_version"]` and `["agent_version_last"]` say which sampling's agent (1, 2, ...) played
            each episode's first and last step, and workers play on between two samplings.
        on_failure: what becomes of a worker that dies or raises. "drop" (default): a warning names it, the others go
            on. "restart": another takes its place, with the same agent and environment and other seeds. "raise".
        step_timeout: seconds in which a worker must take a step; one that does not counts as dead. None: no limit.
        inference: a `treadle.Inference`, or what its `where` is. "worker": each worker asks the agent by itself.
            "caller": it is asked in the caller, about all environments that are ready (`docs/inference.md`). "auto": as
            for `treadle.collect`.
        num_envs: environments that are played at a time with the agent in the caller; None: 8 a worker.
        progress: show on stderr how far a sampling is? As for `treadle.collect`; None (default): only on a terminal,
            where rich is installed.
        worker_options: a `treadle.WorkerOptions`: how workers are run; the backend is the class's.

    Raises:
        TypeError: neither a factory nor max_episode_length, no agents or envs, or what is neither.
        ValueError: a list of another length than there are workers, or an option that makes no sense.
        StartupFailed: a worker could not be made; nothing is left running.
    """

    backend = "process"
    default_on_failure = "drop"


def run_worker(factory: Any, to_worker: Any, to_sampler: Any, worker_number: int, agent: Any, env: Any) -> None:
    """Run a worker over two queues, for samplers of one's own.

    It does not stream at first. "start" (with an agent update, an environment update and a version) and "continue" make
    it stream: it puts ("episode", (batch, version, worker_number)) into `to_sampler` after every rollout. "stop", or a
    full queue, ends that; "exit" ends the worker. It never blocks on sending.

    Args:
        factory: makes the worker.
        to_worker: queue of (tag, contents).
        to_sampler: queue for episodes.
        worker_number: the worker's.
        agent, env: for its first updates. These and updates may be pickled (bytes).

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
    """The next message; while streaming, nothing new means "continue"."""
    try:
        return to_worker.get(wait)
    except queue.Empty:
        return "continue", None


def _unpickled(value: Any) -> Any:
    return pickle.loads(value) if isinstance(value, bytes) else value


class LocalSampler(PoolSampler):
    """Plays in the caller's own thread: one rollout of each worker in turn.

    The same as `MultiprocessingSampler`, in the same loop, without processes: for debugging, and for environments that
    cannot leave the caller. The caller's `random`, `numpy.random` and torch generators are as they were after every
    call; each worker has states of its own. The agents are the caller's own objects (one for all workers, if no list
    is given); environments are copied.

    Args:
        agents, envs, worker_factory and those after it: as for `MultiprocessingSampler`.
        on_failure: as there, but "raise" (the default here) lets exceptions through.
    """

    backend = "serial"
    default_on_failure = "raise"

    def _own_copy(self, env: Any) -> Any:
        try:
            return copy.deepcopy(env)
        except Exception:  # noqa: BLE001 - whatever a foreign __deepcopy__ raises; cloudpickle knows more
            return pickle.loads(pickling.dumps(env))


class RaySampler(PoolSampler):
    """As `MultiprocessingSampler`, with its workers spread over the nodes of a Ray cluster.

    Each node has a pool with its share of them, asked with orders of episodes; batches of them come back. An update of
    the agents is put into Ray's object store once, and pulled once by each node. A worker that dies is replaced by its
    node's pool, and one whose node is lost has died, too: see on_failure; with "restart" its place is on another node.

    Args:
        agents, envs, worker_factory and those after it: as for `MultiprocessingSampler`; what belongs to this process
            alone (a queue of multiprocessing, say) cannot go to a node. `n_workers` is as many as cores of this machine
            where nothing else is said: say how many the cluster has.
        cluster: a `treadle.Cluster`: at most so many of its nodes are used. None: all of the cluster that the program
            has connected to by itself; else one of its own on this machine, from the construction to `shutdown_worker`.
            A cluster that the program has connected to is never shut down.

    Raises:
        As `MultiprocessingSampler`; MissingExtra without Ray; UsageError when the address does not answer, or a node
        has other versions of Python, Treadle or what the workers import.
    """

    default_on_failure = "drop"

    def __init__(self, *args: Any, cluster: Cluster | None = None, **options: Any) -> None:
        self.backend = backend()
        self._placement = Placement.of(Cluster(ALL) if cluster is None else cluster, shared=True)
        super().__init__(*args, **options)
