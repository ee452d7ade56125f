"""What workers write to their stderr: whole lines with a prefix, and the last ones for errors."""

import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import treadle
from pool.kit import until
from treadle.worker import stderr
from treadle.worker.stderr import KEPT, StderrReader, Tail
from zoo.faults import Sound


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests' workers have warned of is new here."""
    monkeypatch.setattr(stderr, "_warned", set())


@pytest.fixture
def reader() -> Iterator[StderrReader]:
    made = StderrReader()
    yield made
    made.close()
    made.close()


def test_lines_are_passed_on_whole(capsys: pytest.CaptureFixture[str]) -> None:
    tail = Tail(-1, "[slot 3]")
    for data in (b"one\ntw", b"o\n", b"\n", b"caf\xc3\xa9 \xff\nlast"):
        tail.feed(data)
    assert capsys.readouterr().err == "[slot 3] one\n[slot 3] two\n[slot 3] café \ufffd\n"
    tail.end()
    assert capsys.readouterr().err == "[slot 3] last\n"
    assert tail.lines() == ("one", "two", "café \ufffd", "last"), "empty lines say nothing"


def test_codes_for_terminals_do_not_reach_pipes_and_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    coloured = b"\x1b[33mWARN: odd\x1b[0m \x1b[2K\x1b]0;title\x07end\n"
    tail = Tail(-1, "[slot 0]")
    tail.feed(coloured)
    assert capsys.readouterr().err == "[slot 0] WARN: odd end\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    tail.feed(coloured)
    assert capsys.readouterr().err == f"[slot 0] {coloured.decode()}"
    assert tail.lines() == ("WARN: odd end",) * 2


def test_the_last_lines_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    tail = Tail(-1, "[slot 0]")
    tail.feed(b"".join(b"line %d\n" % i for i in range(KEPT + 7)))
    assert tail.lines() == tuple(f"line {i}" for i in range(7, KEPT + 7))
    assert len(capsys.readouterr().err.splitlines()) == KEPT + 7


def test_a_line_without_an_end_is_passed_on_in_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    tail = Tail(-1, "[slot 0]")
    for _ in range(3):
        tail.feed(b"x" * 40_000)
    assert len(capsys.readouterr().err) > 80_000
    tail.end()
    assert sum(map(len, tail.lines())) == 120_000


def test_an_object_in_the_place_of_stderr_needs_no_more_than_write(
    reader: StderrReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kept:
        text = ""

        def write(self, text: str) -> None:
            self.text += text

    monkeypatch.setattr(sys, "stderr", kept := Kept())
    read, write = os.pipe()
    tail = reader.add(read, "[slot 1]")
    try:
        for word in (b"one\n", b"two\n"):
            os.write(write, word)
            until(lambda word=word: tail.lines()[-1:] == (word.decode().strip(),))
    finally:
        os.close(write)
    assert reader.finish(tail) == ("one", "two")
    assert kept.text == "[slot 1] one\n[slot 1] two\n"


def test_a_pipe_that_is_never_empty_leaves_time_for_the_others(reader: StderrReader) -> None:
    tail = Tail(os.open("/dev/zero", os.O_RDONLY), "[slot 0]", shown=False)
    try:
        assert reader._drain(tail), "it comes back, and there is more"
    finally:
        os.close(tail.fd)


def test_the_rest_is_read_though_somebody_holds_the_pipe(
    reader: StderrReader, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    tail = reader.add(read, "[slot 1]")
    try:
        os.write(write, b"said\n")
        until(lambda: tail.lines() == ("said",))
        os.write(write, b"and not ended")
        assert reader.finish(tail) == ("said", "and not ended")
        assert reader.finish(tail) == ("said", "and not ended")
    finally:
        os.close(write)
    assert capsys.readouterr().err == "[slot 1] said\n[slot 1] and not ended\n"


# -- warnings of packages ----------------------------------------------------------------------------------------------

OLD = "WARNING: this attribute is deprecated"  # as MuJoCo writes it, with an empty line after it
PYTHON = "/lib/env.py:12: DeprecationWarning: use the other one\n  warnings.warn(text)\n"


def test_a_warning_of_several_workers_is_passed_on_once(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = Tail(-1, "[slot 0]"), Tail(-1, "[slot 1]")
    for tail in (one, one, two, two):
        tail.feed(f"{PYTHON}  mine, indented\n".encode())
        for piece in ("WARN", OLD[4:], "\n", "\n", "mine\n"):
            tail.feed(piece.encode())
    told = capsys.readouterr().err.splitlines()
    mine = ["  mine, indented", "mine"]
    first = [*PYTHON.splitlines(), mine[0], OLD, mine[1]]
    assert told == [f"[slot 0] {line}" for line in (*first, *mine)] + [f"[slot 1] {line}" for line in mine * 2]
    assert two.lines() == tuple(line for line in (*first, *first) if line), "errors tell all"


def test_what_users_print_arrives_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["WARNING: the door is open", "Warning: again", "the same", "  the same", "see x.py:3: UserWarning:", "a b"]
    tails = [Tail(-1, "[slot 0]"), Tail(-1, "[slot 1]")]
    for tail in tails * 2:
        for line in lines:
            tail.feed(f"{line}\n".encode())
    for tail in tails:
        tail.end()
    assert capsys.readouterr().err.splitlines() == [f"[slot {slot}] {line}" for slot in (0, 1) * 2 for line in lines]


def test_warnings_that_differ_are_all_passed_on_and_not_all_remembered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stderr, "MOST_WARNINGS", 10)
    tail = Tail(-1, "[slot 0]")
    tail.feed("".join(f"WARNING: {i}\n\n" for i in range(35)).encode())
    assert len(capsys.readouterr().err.splitlines()) == 35
    assert len(stderr._warned) <= 10


def test_a_line_that_may_be_a_warning_is_not_kept_back(reader: StderrReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", told := io.StringIO())
    read, write = os.pipe()
    reader.add(read, "[slot 1]")
    try:
        os.write(write, b"WARNING: mine\n")
        until(told.getvalue)
    finally:
        os.close(write)
    assert told.getvalue() == "[slot 1] WARNING: mine\n"


class Warns(Sound):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for piece in ("WARNING", ": ", "this attribute is deprecated", "\n", "\n"):
            os.write(2, piece.encode())
        warnings.warn("use the other one", stacklevel=1)
        print("mine", file=sys.stderr, flush=True)


@pytest.mark.parametrize("face", ["vector", "collect"])
def test_packages_warn_once_and_users_print_as_often_as_they_like(
    face: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stderr, "MOMENT", 20.0)  # a worker may be held up between a warning and its empty line
    n = 6
    for _ in range(2):  # in one process
        if face == "vector":
            with closing(treadle.VectorEnv(Warns, n, workers=3, inline=0)) as envs:
                envs.reset(seed=1)
        else:
            list(treadle.collect(Warns, episodes=n, workers=3, num_envs=6))
    told = capfd.readouterr().err.splitlines()
    for words in ("this attribute is deprecated", "UserWarning: use the other one", "  warnings.warn("):
        assert sum(words in line for line in told) == 1, told
    assert sum(line.endswith("] mine") for line in told) >= 2 * n
    assert all(line.strip() and not line.rstrip().endswith("]") for line in told), told


def test_mujoco_warns_once(capfd: pytest.CaptureFixture[str], require: Any) -> None:
    require("mujoco")
    with closing(treadle.VectorEnv("HalfCheetah-v5", 4, workers=2, inline=0)) as envs:
        envs.reset(seed=1)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == len(set(lines)) <= 1, lines
