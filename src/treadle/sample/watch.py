"""What a person sees of a sampling, if there is a person."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from treadle.sample.haul import Haul
from treadle.sample.progress import Progress, Standing, throttled


class Watch:
    """Call it with each haul. A context manager.

    Args:
        show: True: show progress on stderr (a bar on a terminal, else a line every ten seconds). False: nothing. None:
            a bar where stderr is a terminal and rich is installed.
        of_steps, of_episodes: what is wanted; one of them.

    Raises:
        MissingExtra: `show` is True, stderr is a terminal, and rich is not installed.
    """

    def __init__(self, show: bool | None, *, of_steps: int | None = None, of_episodes: int | None = None) -> None:
        if show is None:
            show = sys.stderr is not None and sys.stderr.isatty() and importlib.util.find_spec("rich") is not None
        self._shown = show
        self._progress = Progress(show) if show else None
        self._tell = throttled(self._progress) if self._progress is not None else None
        self._now = Standing(of_episodes=of_episodes, of_steps=of_steps)

    def __call__(self, haul: Haul) -> None:
        if self._tell is None:
            return
        now, steps = self._now, len(haul.codes)
        now.episodes += len(haul.lengths)
        now.made += len(haul.lengths)
        now.steps += steps
        now.made_steps += steps
        now.return_sum += float(haul.columns["rewards"].sum())
        self._tell(now)

    def __enter__(self) -> Watch:
        if self._progress is not None:
            self._progress.__enter__()
            self._progress(self._now)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._progress is not None:
            self._progress.__exit__(*error)
