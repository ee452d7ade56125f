"""Ctrl-C, and a scheduler's SIGTERM that means the same."""

from __future__ import annotations

import signal

import pytest

from treadle.cli.failures import CTRL_C, guarded
from treadle.pool.interrupts import Later


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_wait_for_what_must_be_whole(number: signal.Signals, capsys) -> None:
    """An import of h5py that one of them cuts short fails with another error when it is tried again: to merge with."""
    done = []

    def command() -> int:
        with Later():
            signal.raise_signal(number)
            done.append("whole")
        done.append("never")
        return 0

    assert guarded(command, debug=False) == CTRL_C
    assert done == ["whole"]
    assert capsys.readouterr().err == "treadle: interrupted\n"


def test_sigterm_ends_a_background_job_too(capsys) -> None:
    """A shell that has no job control starts those with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert guarded(lambda: signal.raise_signal(signal.SIGTERM) or 0, debug=False) == CTRL_C
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "treadle: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
