"""Which collection plays a run (the policy in the workers, in the caller, or on nodes), and its episodes in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from treadle.play.episode import Episode
from treadle.play.recipe import RolloutRecipe
from treadle.program.gym_env import of_coroutines
from treadle.progress import Progress
from treadle.sample.caller import CallerCollection
from treadle.sample.nodes import NodesCollection
from treadle.sample.orders import Collection
from treadle.sample.schedule import Schedule
from treadle.worker.backends import default_backend

MOST_WAITING = 1 << 30  # bytes of finished episodes that wait for their turn


def collection(recipe: RolloutRecipe, schedule: Schedule, *, placement: Any = None, **options: Any) -> Collection:
    """One run of what the recipe says: with the policy in the workers, or in the caller; or, with a placement, on nodes
    of a cluster."""
    nodes = placement is not None
    if options.get("backend") is None:
        coroutines = of_coroutines(recipe.env.env)
        options["backend"] = "process" if nodes else default_backend(options, coroutines=coroutines)
    if nodes:
        return NodesCollection(recipe, schedule, placement=placement, **options)
    return (Collection if recipe.asking is None else CallerCollection)(recipe, schedule, **options)


def in_order(
    begin: Callable[..., Collection], schedule: Schedule, ordered: bool, progress: bool | None
) -> Iterator[Episode]:
    """Play a run's episodes and yield them by index, or as they come. Those that wait for their turn take no more than
    `MOST_WAITING` bytes: workers wait when there are more. `begin`: makes the collection, as `Run.collection`."""
    if schedule.complete:
        return
    waiting: dict[int, Episode] = {}
    held = largest = 0

    def room(outstanding: int) -> bool:
        return held + largest * outstanding <= MOST_WAITING

    shown = Progress(progress)
    with begin(schedule, room=room, tell=shown.tell) as run, shown:
        following = 0
        try:
            for index, _, episode in run:
                if not ordered:
                    if schedule.end is None or index < schedule.end:
                        yield episode
                    continue
                waiting[index] = episode
                largest = max(largest, episode.nbytes)
                held += episode.nbytes
                while following in schedule.skipped or following in waiting:
                    if schedule.end is not None and following >= schedule.end:
                        break
                    next_one = waiting.pop(following, None)
                    following += 1
                    if next_one is not None:
                        held -= next_one.nbytes
                        yield next_one
            for index in sorted(waiting):  # the last that was missing is one that is left out
                if schedule.end is None or index < schedule.end:
                    yield waiting[index]
        finally:
            run.warn()
