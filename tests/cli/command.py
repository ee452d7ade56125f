"""Running the real command in a process of its own: one that is forked from `command_server`, where there is one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).parent / "treadle"
ZOO = Path(__file__).parent / "envs.py"
LIMIT = 90.0  # seconds that a command or a state may take


SERVER = "TREADLE_TEST_COMMANDS"  # environment variable: the path of its socket


@contextmanager
def serving() -> Iterator[None]:
    """Have commands be forked from a server meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/socket"
        script = Path(__file__).with_name("command_server.py")
        with subprocess.Popen(
            [sys.executable, script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            os.environ[SERVER] = path
            try:
                yield
            finally:
                del os.environ[SERVER]
                process.communicate()  # it ends with its stdin


def treadle(*arguments: object, cwd: Path | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run it to its end; with `options` of `subprocess.run`, in an interpreter that has imported nothing yet."""
    command = [str(COMMAND), *map(str, arguments)]
    path = os.environ.get(SERVER)
    if path is not None and not options:
        return _forked(command, path, cwd)
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=cwd, **options)


def _forked(command: list[str], path: str, cwd: Path | None) -> subprocess.CompletedProcess[str]:
    request = json.dumps({"arguments": command, "cwd": str(cwd or os.getcwd())}).encode()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, socket.socket(socket.AF_UNIX) as line:
        line.settimeout(LIMIT)
        line.connect(path)
        socket.send_fds(line, [request], [out.fileno(), errors.fileno()])
        code = json.loads(line.recv(64))
        said = [stream.seek(0) or stream.read().decode() for stream in (out, errors)]
    return subprocess.CompletedProcess(command, code, *said)


def at_once(*commands: Sequence[object], cwds: Sequence[Path] | None = None) -> list[subprocess.CompletedProcess[str]]:
    """Run commands that know nothing of one another beside each other, a few at a time; `cwds`: where each."""
    with ThreadPoolExecutor(4) as threads:
        return list(
            threads.map(lambda command, cwd: treadle(*command, cwd=cwd), commands, cwds or [None] * len(commands))
        )


def started(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start it, in a session of its own, and do not wait."""
    return subprocess.Popen(
        [COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def until(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> Any:
    """Wait for a condition; its value. Fails when `process` ends first, or after `LIMIT`."""
    deadline = time.monotonic() + LIMIT
    while not (found := condition()):
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the command ended with {process.returncode}: {process.communicate()}")
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)  # to spin would take a core from what is awaited
    return found


def summary(out: Path) -> dict[str, Any]:
    """What the run in `out` wrote."""
    return json.loads((out / "summary.json").read_text())


def one_line(text: str) -> str:
    """The only line of what a command said to stderr; no traceback, no second line."""
    (line,) = text.strip().splitlines()
    assert line.startswith("treadle: ")
    return line


def run_hash(out: Path, *arguments: object) -> str:
    """Run `treadle collect` without a word, into `out`; the hash of the dataset."""
    done = treadle("collect", *arguments, "--out", out, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr
    return summary(out)["hash"]


def run_hashes(plays: dict[Path, Sequence[object]]) -> list[str]:
    """As `run_hash` for each directory, at once."""
    done = at_once(*(("collect", *arguments, "--out", out, "--quiet") for out, arguments in plays.items()))
    assert [(each.returncode, each.stdout, each.stderr) for each in done] == [(0, "", "")] * len(done)
    return [summary(out)["hash"] for out in plays]
