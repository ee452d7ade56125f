"""Whose is what lies in /dev/shm: another program's is not a test's residue."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conftest import SHM, held_by_strangers

LOCK = """
import multiprocessing, sys
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not SHM.is_dir(), reason="semaphores lie elsewhere")
def test_a_strangers_semaphore_is_not_ours() -> None:
    command = [sys.executable, "-c", LOCK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        name = f"sem.{stranger.stdout.readline().strip().removeprefix('/')}"
        assert (SHM / name).exists()
        assert held_by_strangers(name, ours=set())
        assert not held_by_strangers(name, ours={stranger.pid})
        stranger.communicate()
    assert not (SHM / name).exists()
