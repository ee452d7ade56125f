"""Programs of their own, for what cannot happen to the program that runs the tests."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

PRELUDE = f"""
import contextlib, json, os, sys, time, signal, threading, warnings
sys.path.append({str(Path(__file__).parent.parent)!r})
import numpy as np
from treadle.errors import UsageError
from pool.kit import Pool
from zoo.programs import gym_env
from zoo import faults
from zoo.faults import Sound

def pids(pool):
    return [m.pid for m in pool.workers if m.pid]

def say(**what):
    print(json.dumps(what), flush=True)

@contextlib.contextmanager
def no_descriptor_left():
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        yield
    finally:
        for fd in held:
            os.close(fd)

"""


class Script:
    """A program of its own, in a session of its own, that talks by lines of JSON on its stdout."""

    def __init__(self, body: str, *arguments: str, folder: Path | None = None) -> None:
        code = PRELUDE + textwrap.dedent(body)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            start_new_session=True,
        )

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"the script ended: {self.process.communicate()[1]}")
        return json.loads(line)

    def end(self, seconds: float = 20.0) -> tuple[int, str]:
        """Its exit status and what it wrote to stderr."""
        _, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, err


def alive(pid: int) -> bool:
    """Is it running? A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    """All processes below `pid`, whatever group they are in."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def state(pid: int) -> str:
    """The letter of its state in /proc, such as S for asleep."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
