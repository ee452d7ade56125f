"""Failures of commands: one clear line, and an exit code."""

from __future__ import annotations

import logging
import os
import signal
import stat
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from treadle.errors import StartupFailed, TaskRaised, TreadleError, UsageError, WorkerError
from treadle.progress import printable
from treadle.worker.stderr import plain

OK, FAILED, WRONG, CTRL_C = 0, 1, 2, 130
KEPT = 20  # failures of runs that have no directory
LONGEST = 400  # characters: libraries put whole tables of arguments into what they raise


def say(text: str) -> None:
    """One message to stderr."""
    print(f"treadle: {printable(text)}", file=sys.stderr, flush=True)


class _Lines(logging.Handler):
    """The library's log, one line a record, to whatever stderr is at that moment (a progress bar replaces it)."""

    def emit(self, record: logging.LogRecord) -> None:
        say(" ".join(record.getMessage().splitlines()[:1]))


def guarded(command: Callable[[], int], *, debug: bool) -> int:
    """Run a command and return its exit code; print an exception as one line, and return its code."""
    log, handler = logging.getLogger("treadle"), _Lines(logging.WARNING)
    log.addHandler(handler)
    form = warnings.formatwarning
    if not sys.stderr.isatty():
        warnings.formatwarning = lambda *args, **kwargs: plain(form(*args, **kwargs))
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _as_ctrl_c)}
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _deaf)
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OK
    except KeyboardInterrupt:
        say("interrupted")
        return CTRL_C
    except Exception as error:  # noqa: BLE001 - whatever it is, a person is told in one line
        tell(error, debug=debug)
        return explain(error)[1]
    finally:
        for number, was in before.items():
            signal.signal(number, was)
        warnings.formatwarning = form
        log.removeHandler(handler)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    """SIGTERM: a scheduler that wants the machine back means what Ctrl-C means. It goes through Ctrl-C's handler, which
    waits for the end of what must be whole (`treadle.interrupts.Later`)."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(number, frame)


def _deaf(number: int, frame: FrameType | None) -> None:
    """Ctrl-C's handler in a job that a shell has put into the background, where Ctrl-C is ignored; SIGTERM is not."""
    if number != signal.SIGINT:
        signal.default_int_handler(number, frame)


def tell(error: Exception, *, debug: bool) -> None:
    """Say what an error is about; with `debug` its traceback first."""
    if debug:
        sys.stderr.write(printable("".join(traceback.format_exception(error))))
        if text := getattr(error, "remote_traceback", ""):
            sys.stderr.write(printable(f"\nin the worker:\n{text}\n"))
    say(f"{explain(error)[0]}{_how_to_replay(error)}")


def _how_to_replay(error: Exception) -> str:
    """Return the command that replays an error. A failure without a run's directory is saved in a temporary folder,
    which keeps the latest `KEPT`."""
    repro = getattr(error, "repro", None)
    if repro is None:
        return ""
    if repro.path is None:
        from treadle.repro import SUFFIX

        folder = _temporary()
        repro.save(folder / f"failure-{time.time_ns()}{SUFFIX}")
        for old in sorted(folder.glob(f"failure-*{SUFFIX}"))[:-KEPT]:
            old.unlink(missing_ok=True)
    return f"; to see it again: {repro.command}"


def _temporary() -> Path:
    """Return this user's folder for failures: a new one if another user owns the usual one or may write there."""
    folder = Path(tempfile.gettempdir()) / f"treadle-failures-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return folder if ours else Path(tempfile.mkdtemp(prefix="treadle-"))


def explain(error: Exception) -> tuple[str, int]:
    """Return the text and the exit code of an error."""
    if isinstance(error, StartupFailed):
        return _of_startup(error)
    if isinstance(error, UsageError):
        return str(error), WRONG
    if isinstance(error, OSError) and not isinstance(error, TreadleError) and error.filename is not None:
        path, why = os.fsdecode(error.filename), str(error.strerror)
        return (f"{why}: {path}" if why.startswith("cannot write") else f"cannot write {path}: {why}"), FAILED
    if isinstance(error, TreadleError):
        return str(error), FAILED
    return f"{type(error).__name__}: {' '.join(str(error).split())} (unexpected; --debug shows where)", FAILED


def _of_startup(error: StartupFailed) -> tuple[str, int]:
    from gymnasium.error import DependencyNotInstalled

    from treadle.sample.failed import reason_of
    from treadle.testing.verdict import short

    first = error.failures[0] if error.failures else error
    original = first.__cause__
    if isinstance(first, TaskRaised) and isinstance(first, UsageError):
        return first.error_message, WRONG
    if isinstance(original, ModuleNotFoundError) and original.name:
        return f"the package {original.name} is not installed, or not on the import path ({reason_of(first)})", WRONG
    if isinstance(original, DependencyNotInstalled):
        extra = "; or: pip install 'treadle[mujoco]'" if "mujoco" in str(original).lower() else ""
        return f"{' '.join(str(original).split())}{extra}", WRONG
    if isinstance(first, WorkerError) and first.remote_traceback:
        return f"the environment or policy could not be built: {short(reason_of(first), LONGEST)}", FAILED
    return f"a worker could not start: {reason_of(first)}", FAILED
