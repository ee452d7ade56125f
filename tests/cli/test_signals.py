"""Ctrl-C, and a scheduler's SIGTERM that means the same."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from treadle.cli import options
from treadle.cli.failures import CTRL_C, guarded
from treadle.cli.main import main
from treadle.interrupts import Later


@pytest.fixture(params=["in front", "in the background"])
def job(request: pytest.FixtureRequest) -> Iterator[str]:
    """A shell without job control starts what is in the background with SIGINT ignored."""
    ignored = request.param == "in the background"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    yield request.param
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert (signal.getsignal(signal.SIGINT) == signal.SIG_IGN) == ignored
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_wait_for_what_must_be_whole(number: signal.Signals, job: str, capsys) -> None:
    """An import of h5py that one of them cuts short fails with another error when it is tried again: to merge with."""
    done = []

    def command() -> int:
        with Later():
            signal.raise_signal(number)
            done.append("whole")
        done.append("goes on")
        return 0

    ignored = number == signal.SIGINT and job == "in the background"
    assert guarded(command, debug=False) == (0 if ignored else CTRL_C)
    assert done == (["whole", "goes on"] if ignored else ["whole"])
    assert capsys.readouterr().err == ("" if ignored else "treadle: interrupted\n")


def test_sigterm_ends_a_job(job: str, capsys) -> None:
    assert guarded(lambda: signal.raise_signal(signal.SIGTERM) or 0, debug=False) == CTRL_C
    assert capsys.readouterr().err == "treadle: interrupted\n"


def test_ctrl_c_while_words_are_read(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """typer imports a tenth of a second's worth then."""
    monkeypatch.setattr(options.Eval, "__init__", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit) as ended:
        main(["eval", "CartPole-v1"])
    assert ended.value.code == CTRL_C
    assert capsys.readouterr().err == "treadle: interrupted\n"
