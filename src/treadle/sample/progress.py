"""What a person sees of a run: a moving line while it goes on, a table at its end. The only file that imports rich."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from treadle.errors import MissingExtra

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal
_REDRAW = 0.1


@dataclass
class Standing:
    """How far a run is.

    Attributes:
        episodes: finished ones, those that a resumed run had included.
        steps: of them.
        made_steps: steps of the episodes that this run made itself.
        return_sum: of the episodes that this run made itself, `made` of them.
        of_episodes, of_steps: what is wanted; one of them is None.
    """

    of_episodes: int | None = None
    of_steps: int | None = None
    episodes: int = 0
    steps: int = 0
    made: int = 0
    made_steps: int = 0
    return_sum: float = 0.0

    @property
    def share(self) -> float:
        """Done, 0 to 1."""
        done, of = (self.episodes, self.of_episodes) if self.of_episodes else (self.steps, self.of_steps)
        return min(1.0, done / of) if of else 0.0

    @property
    def mean_return(self) -> float:
        """Of the episodes that this run made; 0.0 before the first."""
        return self.return_sum / self.made if self.made else 0.0


def line(now: Standing, seconds: float, share_before: float = 0.0) -> str:
    """One line on how it goes, `seconds` after the start, when `share_before` of the run was there already."""
    wanted = f"{now.of_episodes:,} episodes" if now.of_episodes else f"{now.of_steps or 0:,} steps"
    done = (
        f"{now.episodes:,} of {wanted}" if now.of_episodes else f"{now.steps:,} of {wanted}, {now.episodes:,} episodes"
    )
    rate = now.made_steps / seconds if seconds > 0 else 0.0
    gained = now.share - share_before
    left = f", {duration(seconds * (1 - now.share) / gained)} left" if gained > 0 else ""
    return f"{done}, {rate:,.0f} steps/s, mean return {now.mean_return:,.2f}{left}"


def duration(seconds: float) -> str:
    """Such as "0:42", "12:05" or "3:07:00"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """Shows a run's standing. A context manager; call it with the `Standing` as often as you like.

    Args:
        show: False: show nothing.
        stream: where to; None: stderr. On a terminal a bar moves, elsewhere a line is written every `PLAIN_SECONDS`.
        clock: seconds.

    Raises:
        MissingExtra: on a terminal, when rich is not installed.
    """

    def __init__(
        self, show: bool = True, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._clock = stream or sys.stderr, clock
        self._bar: Any = None
        self._task: Any = None
        self._show = show
        self._start = self._shown = clock()
        self._before: float | None = None
        if show and self._stream.isatty():
            self._bar = self._make_bar()

    def _make_bar(self) -> Any:
        _require()
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn())
        return Bar(*columns, console=Console(file=self._stream), transient=True)

    def __call__(self, now: Standing) -> None:
        if not self._show:
            return
        if self._before is None:  # counted from the first call: starting the workers is no progress
            self._before, self._start = now.share, self._clock()
            self._shown = self._start
        elapsed = self._clock() - self._start
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task("starting", total=1.0)
            self._bar.update(self._task, completed=now.share, description=line(now, elapsed, self._before))
        elif self._clock() - self._shown >= PLAIN_SECONDS:
            self._shown = self._clock()
            self._stream.write(line(now, elapsed, self._before) + "\n")
            self._stream.flush()

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def throttled(watch: Callable[[Standing], None]) -> Callable[[Standing], None]:
    """The same, called at most ten times a second: a run may finish thousands of episodes in one."""
    due = 0.0

    def call(now: Standing) -> None:
        nonlocal due
        clock = time.monotonic()
        if clock >= due:
            due = clock + _REDRAW
            watch(now)

    return call


def print_table(
    rows: Sequence[Sequence[str]], header: Sequence[str] = (), stream: TextIO | None = None, title: str = ""
) -> None:
    """Print columns to `stream` (None: stdout), the first one left, the others right; no borders, nothing is cut.

    Raises:
        MissingExtra: when rich is not installed.
    """
    _require()
    from rich import box
    from rich.console import Console
    from rich.table import Table

    stream = stream or sys.stdout
    table = Table(
        box=box.SIMPLE_HEAD if header else None, show_header=bool(header), pad_edge=False, title=title or None
    )
    for i in range(max(map(len, [header, *rows]))):
        table.add_column(header[i] if header else "", justify="right" if header and i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # into text first: at a closed pipe rich would end the process
    text = io.StringIO()
    Console(file=text, width=10_000, highlight=False, markup=False).print(table)
    stream.write("".join(f"{row.rstrip()}\n" for row in text.getvalue().splitlines()))


def _require() -> None:
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"tables and progress need rich ({error}): pip install 'treadle[cli]'") from error
