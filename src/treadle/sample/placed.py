"""Is a run spread over the nodes of a cluster? The arguments as users give them."""

from __future__ import annotations

from typing import Any

from treadle.errors import UsageError
from treadle.nodes.placing import Placement

OPTIONS = ("cpus_per_node", "ray_address")  # keyword arguments that go with nodes=


def spread(nodes: int | None, inference: str, options: dict[str, Any]) -> None:
    """Of a run that is spread over nodes make `placement`, an option, of what belongs to it. Raises UsageError for what
    cannot be meant."""
    if options.get("placement") is not None:
        raise UsageError("placement is made of nodes=, cpus_per_node= and ray_address=: give these instead")
    own = {name: given for name in OPTIONS if (given := options.pop(name, None)) is not None}
    if nodes is None:
        if own:
            raise UsageError(f"{(name := next(iter(own)))}= (--{name.replace('_', '-')}) goes with nodes= (--nodes)")
        if inference == "node":
            raise UsageError("inference='node' asks a policy once for each node: it goes with nodes=")
        return
    if inference == "caller":
        raise UsageError(
            "inference='caller' with nodes would send every observation of every step to one process and back, which "
            "takes longer than the steps: give inference='node' (asked once on each node) or 'worker'"
        )
    options["placement"] = Placement(nodes, own.get("cpus_per_node"), own.get("ray_address"))
