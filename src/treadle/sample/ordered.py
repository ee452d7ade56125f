"""The episodes of a run as a caller gets them: in order of index, with a bound on what waits for its turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treadle.progress import Progress
from treadle.sample.caller import collection
from treadle.sample.episode import Episode
from treadle.sample.rollout_slot import RolloutRecipe
from treadle.sample.schedule import Schedule


def in_order(
    recipe: RolloutRecipe,
    schedule: Schedule,
    ordered: bool,
    max_buffered: int,
    progress: bool | None,
    options: dict[str, Any],
) -> Iterator[Episode]:
    """Play a run's episodes and yield them by index, or as they come. Those that wait for their turn take no more than
    `max_buffered` bytes."""
    if schedule.complete:
        return
    waiting: dict[int, Episode] = {}
    held = largest = 0

    def room(outstanding: int) -> bool:
        return held + largest * outstanding <= max_buffered

    shown = Progress(progress)
    with collection(recipe, schedule, room=room, tell=shown.tell, **options) as run, shown:
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
