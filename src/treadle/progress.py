"""What a person sees of a run: a moving line while it goes on, a table at its end. The only file that imports rich.

On a terminal and in a notebook it is rich's bar; in a pipe or file, and where rich is not installed, a line every ten
seconds, without codes for colours or cursors. No thread is started for it: a run says how far it is.
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

from treadle.errors import MissingExtra

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal
LATEST = 100  # episodes that a log has the means of, as Stable-Baselines3
_REDRAW = 0.1  # at least, of a bar


@dataclass
class Standing:
    """How far a run is.

    Attributes:
        episodes: finished ones, those that a resumed run had included.
        steps: of them.
        made_steps: steps of the episodes that this run made itself.
        return_sum: of the episodes that this run made itself, `made` of them.
        under_way: steps so far of episodes that are not finished, as far as is known.
        of_episodes, of_steps: what is wanted; one of them is None, or both.
        result: what an evaluation says so far; "": the mean return is told.
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
        """Done, 0 to 1."""
        done, of = (self.episodes, self.of_episodes) if self.of_episodes else (self.all_steps, self.of_steps)
        return min(1.0, done / of) if of else 0.0

    @property
    def all_steps(self) -> int:
        """Of finished episodes and of those under way."""
        return self.steps + self.under_way

    @property
    def mean_return(self) -> float:
        """Of the episodes that this run made; 0.0 before the first."""
        return self.return_sum / self.made if self.made else 0.0


def line(now: Standing, seconds: float, share_before: float = 0.0) -> str:
    """One line on how it goes, `seconds` after the start, when `share_before` of the run was there already."""
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
    """Such as "0:42", "12:05" or "3:07:00"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


Shows = bool | Callable[[Standing], None] | None  # what faces take as `progress`


class Progress:
    """Shows a run's standing. A context manager; call it with the `Standing` as often as you like.

    Args:
        show: False: show nothing. None: only on a terminal, and where rich is installed. A function is called in place
            of showing.
        stream: where to; None: stderr. On a terminal a bar moves where rich is installed, and in a notebook with
            ipywidgets; elsewhere a line is written every `PLAIN_SECONDS`.
        clock: seconds.

    Attributes:
        shows: is there anybody to see it?
    """

    def __init__(
        self, show: Shows = True, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._told = show if callable(show) else None
        given = stream or sys.stderr
        terminal, notebook = _is_terminal(given), in_notebook(given)
        if given is None or callable(show):  # a program without a terminal has none at all
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
        """Itself, where it shows; else the function that was given; None: there is no use for it."""
        return self if self.shows else self._told

    def _make_bar(self, notebook: bool) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn())
        # what is printed meanwhile goes above the bar; but what is not meant for the terminal stays where it belongs
        return Bar(
            *columns, console=Console(file=self._stream, force_jupyter=notebook), transient=not notebook,
            auto_refresh=False, redirect_stdout=_is_terminal(sys.stdout), redirect_stderr=not notebook,
        )  # fmt: skip

    def __call__(self, now: Standing) -> None:
        if not self.shows:
            return
        if self._before is None:  # counted from the first call: starting the workers is no progress
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
    """Programs put objects of their own in the place of stderr, which have a `write` and perhaps nothing more."""
    return not getattr(stream, "closed", False) and bool(getattr(stream, "isatty", bool)())


def in_notebook(stream: Any) -> bool:
    """Does it write below a notebook's cell?"""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


Log = Callable[[dict[str, float], int], object]  # called with numbers by name, and how many steps were made


class EpisodeLog:
    """Logs how the latest episodes went, under the names of Stable-Baselines3's logger.

    These are "rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps" and, where the environment has one,
    "rollout/success_rate".

    log: called at most ten times a second, and by `flush`; None: episodes are only counted.
    """

    def __init__(self, log: Log | None) -> None:
        self._log, self._steps, self._told = log, 0, -1
        self._latest: deque[tuple[float, int, bool | None]] = deque(maxlen=LATEST)
        self._began = self._due = time.monotonic()

    def add(self, total: float, length: int, success: bool | None) -> None:
        """An episode has ended."""
        self._latest.append((total, length, success))
        self._steps += length
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Log the episodes so far, unless that was done."""
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
    """The same, called at most ten times a second: a run may finish thousands of episodes in one."""
    due = 0.0

    def call(now: Standing) -> None:
        nonlocal due
        clock = time.monotonic()
        if clock >= due:
            due = clock + _REDRAW
            watch(now)

    return call


def printable(text: str) -> str:
    """A text, of a file of somebody else's perhaps, as a terminal may show it: what is no line break, tab or visible
    character is escaped."""
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def print_table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), stream: TextIO | None = None) -> None:
    """Print columns to `stream` (None: stdout), the first one left, the others right; no borders, nothing is cut.

    Raises:
        MissingExtra: when rich is not installed.
    """
    if not _there("rich"):
        raise MissingExtra("tables need rich: pip install 'treadle[cli]'")
    lines = _drawn(rows, header).export_text().splitlines()
    (stream or sys.stdout).write("".join(f"{row.rstrip()}\n" for row in lines))


def html_table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), title: str = "") -> str | None:
    """The same for a notebook: what is in the cells is escaped. None: rich is not installed."""
    if not _there("rich"):
        return None
    return _drawn(rows, header, title).export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _drawn(rows: Sequence[Sequence[str]], header: Sequence[str], title: str = "") -> Any:
    """A console that has drawn it into memory: at a closed pipe rich would end the process."""
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
    if title:  # a table's own would be broken into lines of its width
        console.print(title)
    console.print(table)
    return console


def _there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
