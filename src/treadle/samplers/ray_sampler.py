"""A sampler whose workers are on the nodes of a cluster."""

from __future__ import annotations

from typing import Any

from treadle.nodes import backend
from treadle.nodes.placing import ALL, Cluster, Placement
from treadle.samplers.pool_sampler import PoolSampler


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
