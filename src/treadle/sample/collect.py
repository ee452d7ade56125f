"""Collecting: whole episodes from many workers, the same bytes for any number of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, Unpack

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle.play.episode import Episode, success_of
from treadle.progress import EpisodeLog, Log, Progress, Shows
from treadle.sample.collection import Collection
from treadle.sample.run import Run, RunKeywords
from treadle.sample.schedule import Schedule

log = logging.getLogger("treadle")

MOST_WAITING = 1 << 30  # bytes of finished episodes that wait for their turn


def collect(
    env: str | EnvSpec | Callable[..., gym.Env],
    policy: Any = None,
    *,
    ordered: bool = True,
    log: Log | None = None,
    progress: Shows = False,
    **run: Unpack[RunKeywords],
) -> Iterator[Episode]:
    """Play whole episodes in parallel and yield them.

    (seed, i) alone decides episode i, so the episodes are the same bytes in the same order for any number of workers.
    Leaving the loop (or closing the generator) closes the workers.

    Args:
        env, policy, run: which episodes, and how workers are run: see `treadle.sample.run.Run`.
        ordered: True: yield in order of index; False: in order of arrival.
        log: called with (numbers, steps made), at most ten times a second and at the end (`docs/logging.md`).
        progress: True: show the progress on stderr. That is rich's bar on a terminal and, with ipywidgets, in a
            notebook. Elsewhere, or without rich, it is a line every ten seconds. None: show it only on a terminal, if
            rich is installed. False: show nothing. Or a function that is called with the run's `Standing`, at most ten
            times a second.

    Raises:
        UsageError: contradictory arguments.
        StartupFailed: a worker did not start.
        CollectionFailed: an environment or policy raised, or too many episodes failed. Or a worker died that may not be
            replaced, or three workers died on one episode.
    """
    made = Run.of(collect, RunKeywords, env, policy, **run)
    episodes = in_order(made.collection, made.schedule(), ordered, progress)
    return episodes if log is None else _logged(episodes, EpisodeLog(log))


def _logged(episodes: Generator[Episode], log: EpisodeLog) -> Iterator[Episode]:
    with closing(episodes):
        for episode in episodes:
            log.add(episode.total_reward, len(episode), success_of(episode.infos[-1] if episode.infos else {}))
            yield episode
        log.flush()


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
            if log.isEnabledFor(logging.INFO):
                log.info("%s", run.verdict(run.shares(), schedule.steps))
            for index in sorted(waiting):  # the last that was missing is one that is left out
                if schedule.end is None or index < schedule.end:
                    yield waiting[index]
        finally:
            run.warn()
