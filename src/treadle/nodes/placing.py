"""The placing of actors on nodes: pure decisions, without a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from treadle.checks import check_whole, suggests
from treadle.errors import UsageError

ALL = 1_000_000  # as many nodes as there are


class Machine(NamedTuple):
    """A node of the cluster that is alive.

    Attributes:
        id: Ray's.
        address: its IP address.
        cpus, gpus: as many as Ray may assign on it.
    """

    id: str
    address: str
    cpus: float
    gpus: float = 0.0


@suggests
@dataclass(frozen=True)
class Cluster:
    """Nodes of a Ray cluster on which workers run (`docs/scaling.md`).

    Attributes:
        nodes: number of pools of workers. Each is on a node of its own, unless several fit on one by `cpus_per_node`.
        cpus_per_node: number of CPUs of each pool; None: all CPUs of the node. It is also the pool's number of worker
            processes, unless `workers` is given.
        address: address of the cluster, as `ray.init` takes it ("auto", "10.0.0.1:6379"). None: the cluster that the
            program has connected to by `ray.init`, else that of the environment variable `RAY_ADDRESS`. Without either,
            the run has a cluster of its own on this machine, which ends with it.

    Raises:
        UsageError: `nodes` or `cpus_per_node` is not a whole number above 0.
    """

    nodes: int = 1
    cpus_per_node: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        check_whole(none=False, nodes=self.nodes)
        check_whole(cpus_per_node=self.cpus_per_node)


@dataclass(frozen=True)
class Placement(Cluster):
    """How actors are spread.

    Attributes:
        gpu: True: each actor gets a GPU, if its node has one.
        shared: True: several of the caller's workers share an actor. They are dealt to an actor on each node, at most
            `nodes`; the actor of a lost node goes to any other node.
    """

    gpu: bool = False
    shared: bool = False

    @classmethod
    def of(cls, cluster: Cluster, **more: bool) -> Placement:
        """Return the placement of a cluster. Raises UsageError if `cluster` is not a `Cluster`."""
        if not isinstance(cluster, Cluster):
            raise UsageError(f"cluster is a treadle.Cluster such as Cluster(nodes=2), or None, got {cluster!r}")
        return cls(cluster.nodes, cluster.cpus_per_node, cluster.address, **more)


def seat(machines: Sequence[Machine], taken: Mapping[str, int], placement: Placement) -> Machine | None:
    """Return the node for the next actor: one that has room, with the fewest of our actors; None: no node has room.

    `taken`: node's id -> number of our actors on it.
    """

    def fits(machine: Machine) -> bool:
        here = taken.get(machine.id, 0)
        if placement.shared:
            return here > 0 or len(taken) < placement.nodes
        return here == 0 if placement.cpus_per_node is None else machine.cpus >= placement.cpus_per_node * (here + 1)

    return min(filter(fits, machines), key=lambda each: taken.get(each.id, 0), default=None)


def check(machines: Sequence[Machine], placement: Placement) -> None:
    """Raise UsageError if not a single actor fits on any node."""
    if seat(machines, {}, placement) is None:
        found = ", ".join(f"{each.address} has {each.cpus:g}" for each in machines) or "the cluster has no nodes"
        raise UsageError(f"no node has cpus_per_node={placement.cpus_per_node} CPUs ({found}): ask for fewer")
