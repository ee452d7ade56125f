"""What a person sees of a run, without a run."""

from __future__ import annotations

import io
import sys

import pytest

from treadle.errors import MissingExtra
from treadle.progress import Progress, Standing, duration, line, print_table


def test_where_there_is_no_terminal_a_line_comes_now_and_then() -> None:
    now, clock = Standing(of_episodes=100), [0.0]
    stream = io.StringIO()
    with Progress(stream=stream, clock=lambda: clock[0]) as progress:
        for second in range(25):
            clock[0] = float(second)
            now.episodes = now.made = second
            now.steps = now.made_steps = 1000 * second
            now.return_sum = 2.0 * second
            progress(now)
    assert stream.getvalue().splitlines() == [
        "10 of 100 episodes, 10,000 steps, 1,000 steps/s, 1:30 left, mean return 2.00",
        "20 of 100 episodes, 20,000 steps, 1,000 steps/s, 1:20 left, mean return 2.00",
    ]


def test_quiet_shows_nothing() -> None:
    stream = io.StringIO()
    with Progress(False, stream=stream, clock=iter(range(0, 1000, 100)).__next__) as progress:
        progress(Standing(of_steps=10, steps=5))
    assert stream.getvalue() == ""


def test_what_was_there_before_counts_as_done_but_not_as_speed() -> None:
    now = Standing(of_steps=1000, episodes=6, steps=600, made=1, made_steps=100, return_sum=3.0)
    assert line(now, 10.0, share_before=0.5) == (
        "600 of 1,000 steps, 6 episodes, 10 steps/s, 0:40 left, mean return 3.00"
    )
    assert line(Standing(of_steps=10), 0.0) == "0 of 10 steps, 0 episodes, 0 steps/s"


def test_steps_under_way_count() -> None:
    now = Standing(of_episodes=2, under_way=3000)
    assert line(now, 10.0) == "0 of 2 episodes, 3,000 steps, 300 steps/s"
    now = Standing(of_steps=8000, episodes=1, steps=1000, made=1, made_steps=1000, return_sum=5.0, under_way=3000)
    assert line(now, 10.0) == "4,000 of 8,000 steps, 1 episodes, 400 steps/s, 0:10 left, mean return 5.00"
    assert line(Standing(episodes=2, steps=20, under_way=5), 1.0) == "2 episodes, 25 steps, 5 steps/s"


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0.4, 42, 725, 11220)] == ["0:00", "0:42", "12:05", "3:07:00"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Cell(io.StringIO):
    """What a notebook's kernel has for stderr; see `test_notebook.py` for the real one."""

    __module__ = "ipykernel.iostream"


@pytest.mark.parametrize(("stream", "missing"), [(Terminal(), "rich"), (Cell(), "rich"), (Cell(), "ipywidgets")])
def test_where_a_bar_needs_what_is_not_installed_lines_come(
    stream: io.StringIO, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    clock = [0.0]
    with Progress(stream=stream, clock=lambda: clock[0]) as progress:
        for episodes in (0, 5):
            clock[0] += 20.0
            progress(Standing(of_episodes=9, episodes=episodes, steps=episodes, made_steps=episodes))
    assert stream.getvalue() == "5 of 9 episodes, 5 steps, 0 steps/s, 0:16 left\n"


def test_on_a_terminal_there_is_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with Progress(stream=stream) as progress:
        progress(Standing(of_episodes=9, episodes=5, steps=5))
        assert "5 of 9 episodes, 5 steps" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K"), "the line is cleared"


def test_without_rich_a_table_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(MissingExtra, match=r"pip install 'treadle\[cli\]'"):
        print_table([("a", "1")])


def test_tables_have_no_codes_whatever_the_surroundings_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    print_table([("a", "1")], ("name", "count"), stream := io.StringIO())
    assert "\x1b" not in stream.getvalue()
    assert "name" in stream.getvalue()


def test_tables_are_not_cut_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    print_table([("a" * 150, "1"), ("b", "22 [not markup]")], ("name", "count"), stream)
    assert "a" * 150 in stream.getvalue()
    assert "22 [not markup]" in stream.getvalue()
    assert not any(row.endswith(" ") for row in stream.getvalue().splitlines())


def test_an_object_in_the_place_of_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept:
        def write(self, text: str) -> None:
            raise AssertionError(text)

    monkeypatch.setattr(sys, "stderr", Kept())
    assert not Progress(None).shows
    closed = io.StringIO()
    closed.close()
    assert not Progress(None, closed).shows
