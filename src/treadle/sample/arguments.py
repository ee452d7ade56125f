"""Arguments of collecting and evaluating: what makes no sense is refused at the call, before anything is started."""

from __future__ import annotations

from typing import Any

from treadle import seeding
from treadle.checks import check_whole, check_workers
from treadle.errors import UsageError
from treadle.nodes.placing import Placement
from treadle.sample.inference import OPTIONS
from treadle.worker.options import NAMES

NODE_OPTIONS = ("cpus_per_node", "ray_address")  # keyword arguments that go with nodes=
MORE = NAMES.union(NODE_OPTIONS, OPTIONS)  # that collecting and evaluating take besides those of their signatures


def check_seed(seed: int) -> None:
    """Raise UsageError for what cannot be the seed of a run."""
    try:
        seeding.derive(seed)
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_amounts(
    episodes: int | None, steps: int | None, workers: int | str, envs_per_worker: int, max_episode_steps: int | None
) -> None:
    """Raise UsageError for amounts that make no sense."""
    if episodes is not None and steps is not None:
        raise UsageError("give either episodes or steps, not both")
    check_whole(episodes=episodes, steps=steps, max_episode_steps=max_episode_steps)
    check_whole(none=False, envs_per_worker=envs_per_worker)
    if not isinstance(workers, str):
        check_workers(workers, none=False)
    elif workers != "auto":
        raise UsageError(f"workers must be 'auto' or a whole number of at least 1, got {workers!r}")


def spread(nodes: int | None, inference: str, options: dict[str, Any]) -> None:
    """Of a run that is spread over nodes make `placement`, an option, of what belongs to it. Raises UsageError for what
    cannot be meant."""
    own = {name: given for name in NODE_OPTIONS if (given := options.pop(name, None)) is not None}
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
