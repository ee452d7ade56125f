"""A test that takes too long fails, and the tests after it run; what cannot be interrupted is ended with the run."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from conftest import SCALE, scaled

CONFTEST = Path(__file__).with_name("conftest.py")
BACKSTOP = "BACKSTOP_SECONDS = 30.0"


def session(folder: Path, backstop: float, tests: str) -> subprocess.CompletedProcess[str]:
    """A pytest of its own with our conftest. Its first test pays for what the session starts."""
    text = CONFTEST.read_text()
    assert BACKSTOP in text
    (folder / "conftest.py").write_text(text.replace(BACKSTOP, f"BACKSTOP_SECONDS = {backstop}"))
    (folder / "pytest.ini").write_text("[pytest]\ntimeout = 60\ntimeout_method = signal\n")
    (folder / "test_some.py").write_text(dedent(tests))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", str(folder)]
    environ = {**os.environ, SCALE: "1"}  # limits as they are written
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=scaled(100), env=environ)


@pytest.mark.slow
def test_a_limit_ends_its_own_test_and_not_the_run(tmp_path: Path) -> None:
    done = session(
        tmp_path,
        20.0,
        """
        import signal, subprocess, sys, threading, time
        import pytest
        from conftest import ITS_OWN_ALARM
        from hypothesis import given, strategies

        def test_before_all_these():
            pass

        @pytest.mark.timeout(1)
        def test_sleeps():
            time.sleep(60)

        @pytest.mark.timeout(1)
        def test_swallows_what_it_can():
            for _ in range(600):
                try:
                    time.sleep(0.1)
                except Exception:
                    pass

        @pytest.mark.timeout(1)
        @given(strategies.integers())
        def test_examples(number):
            time.sleep(60)

        @pytest.mark.timeout(1)
        def test_waits_for_a_lock():
            threading.Event().wait()

        @pytest.mark.timeout(3)
        def test_leaves_a_child():
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE).wait()

        @pytest.mark.timeout(1, method=ITS_OWN_ALARM.kwargs["method"])
        def test_with_an_alarm_of_its_own():
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(60)

        @pytest.fixture
        def slow_end():
            yield
            time.sleep(60)

        @pytest.mark.timeout(3)
        def test_ends(slow_end):
            pass

        def test_after_all_these():
            pass
        """,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "6 failed, 3 passed, 2 errors" in done.stdout, done.stdout  # a child left behind; a fixture's end
    assert "test_some.py::test_sleeps took longer than its limit of 1 seconds" in done.stdout
    assert "input()" in done.stdout
    assert "in test_waits_for_a_lock" in done.stderr


def test_c_code_that_keeps_the_interpreter_ends_the_run_and_is_named(tmp_path: Path) -> None:
    done = session(
        tmp_path,
        1.0,
        """
        import itertools, pytest

        def test_before():
            pass

        @pytest.mark.timeout(1)
        def test_stuck_in_c():
            sum(itertools.repeat(0))
        """,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Timeout (0:00:02)!" in done.stderr
    assert "in test_stuck_in_c" in done.stderr
    assert "test_before PASSED" in done.stdout
