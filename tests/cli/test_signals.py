"""Ctrl-C, and a scheduler's SIGTERM that means the same."""

from __future__ import annotations

import signal

import pytest

from treadle.cli.failures import CTRL_C, guarded
from treadle.pool.interrupts import Later


@pytest.mark.parametrize("job", ["in front", "in the background"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_wait_for_what_must_be_whole(number: signal.Signals, job: str, capsys) -> None:
    """An import of h5py that one of them cuts short fails with another error when it is tried again: to merge with. A
    shell without job control starts what is in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if job == "in the background" else signal.default_int_handler)
    done = []

    def command() -> int:
        with Later():
            signal.raise_signal(number)
            done.append("whole")
        done.append("goes on")
        return 0

    ignored = number == signal.SIGINT and job == "in the background"
    try:
        assert guarded(command, debug=False) == (0 if ignored else CTRL_C)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert (signal.getsignal(signal.SIGINT) == signal.SIG_IGN) == (job == "in the background")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == (["whole", "goes on"] if ignored else ["whole"])
    assert capsys.readouterr().err == ("" if ignored else "treadle: interrupted\n")


@pytest.mark.parametrize("job", ["in front", "in the background"])
def test_sigterm_ends_a_job(job: str, capsys) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if job == "in the background" else signal.default_int_handler)
    try:
        assert guarded(lambda: signal.raise_signal(signal.SIGTERM) or 0, debug=False) == CTRL_C
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "treadle: interrupted\n"
