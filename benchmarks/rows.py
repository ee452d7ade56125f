"""A row of a table: a workload, how many envs step together, and what is there beside them."""

from dataclasses import dataclass

from benchmarks.policies import Policy, parse_policy
from benchmarks.workloads import WORKLOADS, Workload


@dataclass(frozen=True)
class Row:
    """A workload, the number of envs that step it together, and what is there beside them.

    policy: what acts in the caller between two steps (see `benchmarks/policies.py`); None: ready-made actions. busy: a
    stranger takes one core all the time.
    """

    workload: Workload
    n_envs: int
    policy: Policy | None = None
    busy: bool = False

    @property
    def name(self) -> str:
        policy = f"+{self.policy.name}" if self.policy else ""
        return f"{self.workload.name}-{self.n_envs}{policy}{'+busy' if self.busy else ''}"


def parse_row(name: str) -> Row:
    """Reads a row's name, `WORKLOAD-N[+POLICY][+busy]` with any N >= 1. Raises ValueError that lists the workloads."""
    envs, *others = name.split("+")
    workload, _, n_envs = envs.rpartition("-")
    if workload not in WORKLOADS or not n_envs.isdecimal() or int(n_envs) < 1:
        raise ValueError(f"no row {name!r}: write WORKLOAD-N, N envs of one of {', '.join(WORKLOADS)}")
    busy = others[-1:] == ["busy"]
    policies = [parse_policy(other) for other in (others[:-1] if busy else others)]
    if len(policies) > 1:
        raise ValueError(f"no row {name!r}: one policy at most")
    return Row(WORKLOADS[workload], int(n_envs), *policies, busy=busy)
