"""What a person sees of a run: a moving line while it goes on, a table at its end. The only file that imports rich.

The same on a terminal (a bar), in a notebook (one line that is written over) and in a pipe or file (a line every ten
seconds, without codes for colours or cursors). No thread is started for it: a run says how far it is.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TextIO

from treadle.errors import MissingExtra

log = logging.getLogger("treadle")

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal
_REDRAW = 0.1  # at least, on a terminal
_REWRITE = 0.5  # in a notebook, which keeps what it is sent


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
    """

    of_episodes: int | None = None
    of_steps: int | None = None
    episodes: int = 0
    steps: int = 0
    made: int = 0
    made_steps: int = 0
    return_sum: float = 0.0
    under_way: int = 0

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
    mean = f", mean return {now.mean_return:,.2f}" if now.made else ""
    gained = now.share - share_before
    left = f", {duration(seconds * (1 - now.share) / gained)} left" if gained > 0 else ""
    return f"{done}, {rate:,.0f} steps/s{left}{mean}"  # a narrow terminal cuts its end


def duration(seconds: float) -> str:
    """Such as "0:42", "12:05" or "3:07:00"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """Shows a run's standing. A context manager; call it with the `Standing` as often as you like.

    Args:
        show: False: show nothing. None: only on a terminal, and where rich is installed.
        stream: where to; None: stderr. On a terminal a bar moves, in a notebook a line is written over, elsewhere one
            is written every `PLAIN_SECONDS`.
        clock: seconds.

    Attributes:
        shows: is there anybody to see it?

    Raises:
        MissingExtra: on a terminal, when `show` is True and rich is not installed.
    """

    def __init__(
        self, show: bool | None = True, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        given = stream or sys.stderr
        terminal = _is_terminal(given)
        if given is None:  # a program without a terminal has none at all
            show = False
        elif show is None:
            show = terminal and importlib.util.find_spec("rich") is not None
        self.shows, self._clock = show, clock
        self._stream: Any = given
        self._bar: Any = None
        self._task: Any = None
        self._start = self._shown = clock()
        self._before: float | None = None
        self._latest = ""
        self._width = 0  # of what is written over
        self._over, self._written = bool(show) and not terminal and in_notebook(given), False
        if show and terminal:
            self._bar = self._make_bar()

    @property
    def tell(self) -> Callable[[Standing], None] | None:
        """Itself, for whoever asks whether anybody looks; None: nobody."""
        return self if self.shows else None

    def _make_bar(self) -> Any:
        _require()
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn())
        # what is printed meanwhile goes above the bar; but what is not meant for the terminal stays where it belongs
        return Bar(
            *columns, console=Console(file=self._stream), transient=True, auto_refresh=False,
            redirect_stdout=_is_terminal(sys.stdout),
        )  # fmt: skip

    def __call__(self, now: Standing) -> None:
        if not self.shows:
            return
        if self._before is None:  # counted from the first call: starting the workers is no progress
            self._before, self._start = now.share, self._clock()
            self._shown = self._start
        elapsed = self._clock() - self._start
        self._latest = line(now, elapsed, self._before)
        if self._bar is not None:
            if self._task is None:
                wanted = now.of_episodes or now.of_steps
                self._task = self._bar.add_task("starting", total=1.0 if wanted else None)
            self._bar.update(self._task, completed=now.share, description=self._latest, refresh=True)
        elif self._over:
            if self._clock() - self._shown >= _REWRITE:
                self._write_over()
        elif self._clock() - self._shown >= PLAIN_SECONDS:
            self._shown = self._clock()
            self._stream.write(self._latest + "\n")
            self._stream.flush()

    def _write_over(self, end: str = "") -> None:
        self._shown, self._written = self._clock(), True
        self._stream.write("\r" + self._latest.ljust(self._width) + end)
        self._stream.flush()
        self._width = len(self._latest)

    def _end_line(self, _: logging.LogRecord) -> bool:
        """What is logged meanwhile stands on lines of its own."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0
        return True

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        elif self._over:
            log.addFilter(self._end_line)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._over:
            log.removeFilter(self._end_line)
            if self._written:  # the cell's own output follows on a line of its own
                self._write_over("\n")


def _is_terminal(stream: Any) -> bool:
    """Programs put objects of their own in the place of stderr, which have a `write` and perhaps nothing more."""
    return not getattr(stream, "closed", False) and bool(getattr(stream, "isatty", bool)())


def in_notebook(stream: Any) -> bool:
    """Does it write below a notebook's cell, where a line can be written over but nothing moves?"""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


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
    plain: Any = {"force_terminal": False, "force_jupyter": False, "color_system": None, "no_color": True}
    Console(file=text, width=10_000, highlight=False, markup=False, **plain).print(table)
    stream.write("".join(f"{row.rstrip()}\n" for row in text.getvalue().splitlines()))


def html_table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), title: str = "") -> str:
    """The same for a notebook: what is in the cells is escaped."""
    cells = [("th", header)] if header else []
    cells += [("td", row) for row in rows]
    lines = [
        "<tr>" + "".join(f'<{tag} style="text-align:left">{escape(cell)}</{tag}>' for cell in row) + "</tr>"
        for tag, row in cells
    ]
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}{''.join(lines)}</table>"


def _require() -> None:
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"tables and progress need rich ({error}): pip install 'treadle[cli]'") from error
