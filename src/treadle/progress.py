"""The display of a run: a progress bar while it goes on, a table at its end. The only file that imports rich.

On a terminal and in a notebook it is rich's bar. In a pipe or file, and without rich, it is a line every ten seconds,
without codes for colours or cursors. The display has no thread: a run reports its progress.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TextIO

from treadle.errors import needed

PLAIN_SECONDS = 10.0  # between two lines without a terminal
LATEST = 100  # episodes in the means of a log, as in Stable-Baselines3
_REDRAW = 0.1  # seconds between two updates, at least


@dataclass
class Standing:
    """The progress of a run.

    Attributes:
        episodes: number of finished episodes, including those that a resumed run already had.
        steps: number of steps of these episodes.
        made: episodes that this run made itself.
        made_steps: steps of the episodes that this run made itself.
        return_sum: sum of the returns of the episodes that this run made itself.
        under_way: number of steps, as far as known, of unfinished episodes.
        of_episodes, of_steps: the run's goal, in episodes or in steps; at least one of the two is None.
        result: text of an evaluation's result so far; "": the mean return is shown.
    """

    of_episodes: int | None = None
    of_steps: int | None = None
    episodes: int = 0
    steps: int = 0
    made: int = 0
    made_steps: int = 0
    return_sum: float = 0.0
    under_way: int = 0
    result: str = ""

    @property
    def share(self) -> float:
        """The finished share of the run, 0 to 1."""
        done, of = (self.episodes, self.of_episodes) if self.of_episodes else (self.all_steps, self.of_steps)
        return min(1.0, done / of) if of else 0.0

    @property
    def all_steps(self) -> int:
        """Steps of finished episodes and of those under way."""
        return self.steps + self.under_way

    @property
    def mean_return(self) -> float:
        """Mean return of the episodes that this run made; 0.0 before the first."""
        return self.return_sum / self.made if self.made else 0.0


def line(now: Standing, seconds: float, share_before: float = 0.0) -> str:
    """Return one line about the progress `seconds` after the start, at which `share_before` of the run was finished."""
    episodes, steps = f"{now.episodes:,} episodes", f"{now.all_steps:,} steps"
    if now.of_episodes:
        done = f"{now.episodes:,} of {now.of_episodes:,} episodes, {steps}"
    else:
        done = f"{now.all_steps:,} of {now.of_steps:,} steps, {episodes}" if now.of_steps else f"{episodes}, {steps}"
    rate = (now.made_steps + now.under_way) / seconds if seconds > 0 else 0.0
    mean = f", {now.result or f'mean return {now.mean_return:,.2f}'}" if now.made else ""
    gained = now.share - share_before
    left = f", {duration(seconds * (1 - now.share) / gained)} left" if gained > 0 else ""
    return f"{done}, {rate:,.0f} steps/s{left}{mean}"  # a narrow terminal cuts its end


def duration(seconds: float) -> str:
    """Return a duration as text, such as "0:42", "12:05" or "3:07:00"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


Shows = bool | Callable[[Standing], None] | None  # the type of `progress` arguments


class Progress:
    """Shows a run's progress. It is a context manager, which is called with the `Standing` any number of times.

    Args:
        show: False: show nothing. None: show on a terminal only, if rich is installed. A function is called instead of
            the display.
        stream: the output; None: stderr. With rich, a bar is drawn on a terminal, and in a notebook that has
            ipywidgets. Otherwise a line is written every `PLAIN_SECONDS`.
        clock: returns seconds.

    Attributes:
        shows: True if the progress is displayed.
    """

    def __init__(
        self, show: Shows = True, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._told = show if callable(show) else None
        given = stream or sys.stderr
        terminal, notebook = _is_terminal(given), in_notebook(given)
        if given is None or callable(show):  # stderr is None in a program without a console
            show = False
        elif show is None:
            show = terminal and _there("rich")
        self.shows, self._clock = show, clock
        self._stream: Any = given
        self._bar: Any = None
        self._task: Any = None
        self._start = self._shown = clock()
        self._before: float | None = None
        if show and _there("rich") and (terminal or (notebook and _there("ipywidgets"))):
            self._bar = self._make_bar(notebook)

    @property
    def tell(self) -> Callable[[Standing], None] | None:
        """The function to call with a `Standing`: this object if it shows, else the given function, or None."""
        return self if self.shows else self._told

    def _make_bar(self, notebook: bool) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn())
        # the bar redirects prints to lines above it, but only output that goes to the terminal
        return Bar(
            *columns, console=Console(file=self._stream, force_jupyter=notebook), transient=not notebook,
            auto_refresh=False, redirect_stdout=_is_terminal(sys.stdout), redirect_stderr=not notebook,
        )  # fmt: skip

    def __call__(self, now: Standing) -> None:
        if not self.shows:
            return
        if self._before is None:  # time counts from the first call, without the workers' start
            self._before, self._start = now.share, self._clock()
            self._shown = self._start
        elapsed = self._clock() - self._start
        text = line(now, elapsed, self._before)
        if self._bar is not None:
            if self._task is None:
                wanted = now.of_episodes or now.of_steps
                self._task = self._bar.add_task("starting", total=1.0 if wanted else None)
            self._bar.update(self._task, completed=now.share, description=text, refresh=True)
        elif self._clock() - self._shown >= PLAIN_SECONDS:
            self._shown = self._clock()
            self._stream.write(text + "\n")
            self._stream.flush()

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _is_terminal(stream: Any) -> bool:
    """Return True for a terminal. A program may replace stderr by an object that has only `write`."""
    return not getattr(stream, "closed", False) and bool(getattr(stream, "isatty", bool)())


def in_notebook(stream: Any) -> bool:
    """Return True if the stream writes below a notebook's cell."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


Log = Callable[[dict[str, float], int], object]  # called with (name -> number, steps so far)


class EpisodeLog:
    """Logs means of the latest episodes, under the names of Stable-Baselines3's logger.

    These are "rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps" and, if episodes report success,
    "rollout/success_rate".

    Args:
        log: called at most ten times a second, and by `flush`; None: steps are only counted.
    """

    def __init__(self, log: Log | None) -> None:
        self._log, self._steps, self._told = log, 0, -1
        self._latest: deque[tuple[float, int, bool | None]] = deque(maxlen=LATEST)
        self._began = self._due = time.monotonic()

    def add(self, total: float, length: int, success: bool | None) -> None:
        """Add an episode that has ended."""
        self._latest.append((total, length, success))
        self._steps += length
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Log the episodes so far, unless they were logged already."""
        now = time.monotonic()
        if self._log is None or not self._latest or self._told == self._steps:
            return
        returns, lengths, successes = zip(*self._latest, strict=True)
        values = {"rollout/ep_rew_mean": fmean(returns), "rollout/ep_len_mean": fmean(lengths)}
        if any(each is not None for each in successes):
            values["rollout/success_rate"] = fmean(each is True for each in successes)
        values["time/fps"] = self._steps / max(now - self._began, 1e-9)
        self._due, self._told = now + _REDRAW, self._steps
        self._log(values, self._steps)


def throttled(watch: Callable[[Standing], None]) -> Callable[[Standing], None]:
    """Return `watch`, called at most ten times a second: a run may finish thousands of episodes in a second."""
    due = 0.0

    def call(now: Standing) -> None:
        nonlocal due
        clock = time.monotonic()
        if clock >= due:
            due = clock + _REDRAW
            watch(now)

    return call


def printable(text: str) -> str:
    """Return a text, perhaps from an untrusted file, that is safe on a terminal.

    All characters are escaped but line breaks, tabs and visible characters.
    """
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def print_table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), stream: TextIO | None = None) -> None:
    """Print columns to `stream` (None: stdout), the first aligned left, the others right, without borders and cuts.

    Raises:
        MissingExtra: rich is not installed.
    """
    with needed("tables need rich", "cli"):
        from rich import box
        from rich.console import Console
        from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD if header else None, show_header=bool(header), pad_edge=False)
    for i in range(max(map(len, [header, *rows]))):
        table.add_column(header[i] if header else "", justify="right" if header and i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(printable, row))
    plain: Any = {"force_terminal": False, "force_jupyter": False, "color_system": None, "no_color": True}
    console = Console(file=io.StringIO(), record=True, width=10_000, highlight=False, markup=False, **plain)
    console.print(table)  # into memory: at a closed pipe, rich would end the process
    (stream or sys.stdout).write("".join(f"{row.rstrip()}\n" for row in console.export_text().splitlines()))


def _there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
