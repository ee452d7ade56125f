"""Where a run is played (on this machine, or on nodes), and its episodes in order."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from treadle.play.episode import Episode
from treadle.play.recipe import RolloutRecipe
from treadle.program.gym_env import of_coroutines
from treadle.progress import Progress, Shows
from treadle.sample.by_index import ByIndex
from treadle.sample.collection import Collection, run_here
from treadle.sample.nodes import run_on_nodes
from treadle.sample.schedule import Schedule
from treadle.worker.backends import default_backend

MOST_WAITING = 1 << 30  # bytes of finished episodes that wait for their turn


def collection(
    recipe: RolloutRecipe,
    schedule: Schedule,
    *,
    root: int = 0,
    room: Callable[[int], bool] | None = None,
    placement: Any = None,
    **options: Any,
) -> Collection:
    """A run, which is iterated.

    Args:
        recipe: what is played.
        schedule: which episodes.
        root: the run's seed.
        room: asked before an index is handed out beyond one an environment: may the caller take more results?
        placement: on which nodes of a cluster; None: on this machine.
        options: see `run_here`.
    """
    source = ByIndex(schedule, root, room)
    if options.get("backend") is None:
        coroutines = of_coroutines(recipe.env.env)
        options["backend"] = "process" if placement else default_backend(options, coroutines=coroutines)
    return run_on_nodes(recipe, source, placement, **options) if placement else run_here(recipe, source, **options)


def in_order(
    begin: Callable[..., Collection], schedule: Schedule, ordered: bool, progress: Shows
) -> Generator[Episode]:
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
