"""What workers write to their stderr: whole lines with a prefix, and the last ones for errors."""

import os
import sys
from collections.abc import Iterator

import pytest
from kit import until

from treadle.pool.stderr import KEPT, StderrReader, Tail


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
    assert capsys.readouterr().err == "[slot 3] one\n[slot 3] two\n[slot 3] \n[slot 3] café \ufffd\n"
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
