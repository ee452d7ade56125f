"""What a person sees of a run, without a run."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from treadle.progress import Progress, Standing, duration, html_table, line, print_table


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


class Cell(io.StringIO):
    """What a notebook's kernel has for stderr; see `test_notebook.py` for the real one."""

    __module__ = "ipykernel.iostream"


def test_in_a_notebook_one_line_is_written_over_and_ends_with_how_it_ended() -> None:
    stream, clock = Cell(), [0.0]
    with Progress(stream=stream, clock=lambda: clock[0]) as progress:
        for second, episodes in enumerate((0, 5, 1000)):
            clock[0] = float(second)
            progress(Standing(of_episodes=1000, episodes=episodes, steps=episodes, made_steps=episodes))
        clock[0] += 0.1
        progress(Standing(of_episodes=1000, episodes=1, steps=1))
    first, second, last = stream.getvalue()[1:].split("\r")
    assert first == "5 of 1,000 episodes, 5 steps, 5 steps/s, 3:19 left"
    assert second.startswith("1,000 of 1,000 episodes")
    assert len(last) == len(second) + 1, "the rest of the longer line is blank"
    assert last.rstrip(" \n") == "1 of 1,000 episodes, 1 steps, 0 steps/s, 34:58 left"


def test_in_a_notebook_what_is_logged_meanwhile_stands_on_a_line_of_its_own() -> None:
    stream, clock, log = Cell(), [0.0], logging.getLogger("treadle")
    handler = logging.StreamHandler(stream)
    log.addHandler(handler)
    try:
        with Progress(stream=stream, clock=lambda: clock[0]) as progress:
            for second in (0, 1):
                clock[0] = float(second)
                progress(Standing(of_episodes=9, episodes=second, steps=second, made_steps=second))
            log.warning("a worker is replaced")
            log.warning("another one is")
        log.warning("after it")
    finally:
        log.removeHandler(handler)
    one = "\r1 of 9 episodes, 1 steps, 1 steps/s, 0:08 left\n"
    assert stream.getvalue() == one + "a worker is replaced\nanother one is\n" + one + "after it\n"
    assert not log.filters


def test_tables_have_no_codes_whatever_the_surroundings_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    print_table([("a", "1")], ("name", "count"), stream := io.StringIO())
    assert "\x1b" not in stream.getvalue()
    assert "name" in stream.getvalue()


def test_tables_for_notebooks_are_escaped() -> None:
    assert html_table([("<b>", "1")], ("a & b", "c")).count("<b>") == 0


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
