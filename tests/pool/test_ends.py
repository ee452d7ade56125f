"""The caller ends, in every way in which it can: whatever happens, nothing is left running."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit import until, within
from scripts import PRELUDE, Script, alive, descendants, state

from conftest import own_shm


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
@pytest.mark.parametrize(
    ("ending", "code"),
    [("pass", 0), ("sys.exit(3)", 3), ("raise RuntimeError('goodness')", 1), ("os._exit(4)", 4)],
    ids=["end", "exit", "error", "_exit"],
)
def test_the_interpreter_ends_without_close(ending: str, code: int, method: str) -> None:
    script = Script(f"""
        pool = Pool([gym_env(Sound)] * 4, workers=2, start_method={method!r})
        pool.reset()
        pool.step([0] * 4)
        say(pids=pids(pool))
        {ending}
    """)
    pids = script.hear()["pids"]
    with within(8.0):
        found, err = script.end()
    assert found == code
    if "goodness" in ending:
        assert "RuntimeError: goodness" in err
    else:
        assert err == ""
    until(lambda: not any(alive(pid) for pid in pids))


def test_environments_are_closed_when_the_interpreter_ends(tmp_path: Path) -> None:
    script = Script(
        """
        folder = sys.argv[1]

        class Closing(Sound):
            def close(self):
                open(f"{folder}/{os.getpid()}", "w").close()

        pool = Pool([gym_env(Closing)] * 2, workers=2)
        say(pids=pids(pool))
        """,
        str(tmp_path),
    )
    pids = script.hear()["pids"]
    assert script.end() == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == {str(pid) for pid in pids}


def test_resource_warnings_at_exit_are_none() -> None:
    code = PRELUDE + "pool = Pool([gym_env(Sound)] * 2, workers=2)\npool.reset()\n"
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "treadle" not in done.stderr
    assert "subprocess" not in done.stderr


WHILE = {
    "idle": ("Sound", ""),
    "sleeping": ("Hangs", "step"),
    "in C with the GIL": ("HangsInC", "step"),
    "with children": ("HasChildren", ""),
}


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
@pytest.mark.parametrize("doing", WHILE)
def test_the_caller_is_killed(doing: str, method: str) -> None:
    kind, then = WHILE[doing]
    script = Script(f"""
        pool = Pool([gym_env(faults.{kind}, kwargs=dict(at=2))] * 2, workers=2, start_method={method!r})
        pool.reset()
        pool.step([0] * 2)
        say(pids=pids(pool))
        if {then!r}:
            pool.step([0] * 2)
        time.sleep(3600)
    """)
    workers = script.hear()["pids"]
    if doing == "with children":
        until(lambda: len(descendants(script.process.pid)) >= 2 + 4)
    elif then:
        until(lambda: all(state(pid) == "S" for pid in workers))
    below = descendants(script.process.pid)
    assert set(workers) <= below
    os.kill(script.process.pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in below), what=f"alive: {[p for p in below if alive(p)]}")
    script.end()


def test_the_whole_session_is_killed() -> None:
    before = own_shm()
    script = Script("""
        pool = Pool([gym_env(faults.HasChildren)] * 2, workers=2)
        pool.reset()
        say(pids=pids(pool))
        time.sleep(3600)
    """)
    script.hear()
    below = descendants(script.process.pid)
    os.killpg(script.process.pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in below))
    script.end()
    until(lambda: own_shm() <= before)  # that of another session beside this one goes


def test_a_fork_server_that_is_just_dying_is_replaced() -> None:
    script = Script("""
        import socket
        from treadle.worker import forkserver
        dying = forkserver.server()
        dying.channel.sock.shutdown(socket.SHUT_RDWR)  # so it is while the kernel buries one: hung up, and not yet dead
        with Pool([gym_env(Sound)] * 2, workers=2) as pool:
            pool.reset()
            say(rewards=pool.step([0] * 2).rewards.tolist(), running=dying.running())
    """)
    assert script.hear() == {"rewards": [1, 1], "running": False}
    assert script.end() == (0, "")


def test_the_fork_server_is_killed_and_workers_live_on() -> None:
    script = Script("""
        from treadle.worker import forkserver
        pool = Pool([gym_env(Sound)] * 2, workers=2, close_timeout=60.0)
        pool.reset()
        os.kill(forkserver.server().pid, signal.SIGKILL)
        pool.step([0] * 2)
        with Pool([gym_env(Sound)] * 2, workers=2) as other:
            other.reset()
            say(rewards=[pool.step([0] * 2).rewards.tolist(), other.step([0] * 2).rewards.tolist()])
        start = time.monotonic()
        pool.close()
        say(took=time.monotonic() - start)
    """)
    assert script.hear() == {"rewards": [[2, 2], [1, 1]]}
    assert script.hear()["took"] < 30
    assert script.end() == (0, "")
