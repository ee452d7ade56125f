"""All kinds of callers: those that fork, have threads, nest pools or have no `__main__` guard."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from kit import PROCESS, Pool, show
from scripts import PRELUDE, Script

from treadle.errors import UsageError
from zoo.faults import Sound
from zoo.programs import gym_env


def test_the_caller_forks() -> None:
    """The child can not use the pool, and its end does the pool no harm."""
    script = Script("""
        pool = Pool([gym_env(Sound)] * 4, workers=1, inline=2)
        pool.reset(seeds=range(4))
        pool.step([0] * 4)
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks where there are threads
        child = os.fork()
        if child == 0:
            for ask in (lambda: pool.step([0] * 4), pool.reset, lambda: pool.calls.poll(0.0, print)):
                try:
                    ask()
                except Exception as error:
                    print(json.dumps({"refused": type(error).__name__ + str(error)}), flush=True)
            pool.close()
            sys.exit(7)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        batch = pool.step([0] * 4)
        say(status=status, rewards=batch.rewards.tolist())
        pool.close()
    """)
    for _ in range(3):
        assert "belongs to the process that made it" in script.hear()["refused"]
    assert script.hear() == {"status": 7, "rewards": [2, 2, 2, 2]}
    assert script.end() == (0, "")


def test_fork_is_refused_with_threads() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="busy-bee")
    thread.start()
    try:
        with pytest.raises(UsageError, match="busy-bee"):
            Pool([gym_env(Sound)], start_method="fork")
    finally:
        stop.set()
        thread.join()


def test_fork_is_not_refused_for_threads_that_are_gone() -> None:
    """Threads that `threading` did not start: the collector may find a pool that nobody closed in one of ours, and a
    foreign one may ask for its own name. They stay in the list of threads when they have ended."""
    body = """
        import _thread, gc, queue
        warnings.simplefilter("ignore", ResourceWarning)
        heard, go_on = queue.SimpleQueue(), queue.SimpleQueue()

        def elsewhere(work):
            try:
                work()
            finally:
                heard.put(None)

        def named():
            threading.current_thread()
            heard.put(None)
            go_on.get()

        gc.disable()
        for method in ("forkserver", "fork"):
            pool = Pool([gym_env(Sound)] * 2, workers=2, start_method=method)
            pool.itself = pool
            del pool
            _thread.start_new_thread(elsewhere, (gc.collect,))
            heard.get()
        _thread.start_new_thread(elsewhere, (named,))
        heard.get()
        try:
            Pool([gym_env(Sound)], start_method="fork")
        except Exception as error:
            say(refused="Dummy" in str(error))
        go_on.put(None)
        heard.get()
        while len(sys._current_frames()) > 1:  # it is at its very end
            pass
        with Pool([gym_env(Sound)] * 2, workers=2, start_method="fork") as pool:
            pool.reset()
            say(listed=any("Dummy" in thread.name for thread in threading.enumerate()))
    """
    script = Script(body)
    assert script.hear() == {"refused": True}
    assert "listed" in script.hear()  # from Python 3.13 on it is not
    assert script.end() == (0, "")


class Nested(gym.Env):
    """Steps a pool of its own."""

    observation_space = gs.Box(0, 1000, (2, 4), np.float32)
    action_space = gs.Discrete(4)

    def __init__(self) -> None:
        self.pool = Pool([gym_env(Sound)] * 2, workers=2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.pool.reset(seeds=[seed or 0] * 2).observations, {}

    def step(self, action: Any) -> Any:
        return self.pool.step([action] * 2).observations, 1.0, False, False, {}

    def close(self) -> None:
        self.pool.close()


def test_a_pool_inside_a_worker() -> None:
    with Pool([gym_env(Nested)] * 2, workers=2) as pool:
        pool.reset(seeds=[3, 4])
        batch = pool.step([1, 2])
        expected = [[[3, 0, 1, 1]] * 2, [[4, 0, 1, 2]] * 2]
        assert batch.observations.tolist() == expected


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Classes of __main__, lambdas and closures reach the workers; the script is run once."""
    path = tmp_path / "script.py"
    path.write_text(
        PRELUDE
        + textwrap.dedent("""
        say(run=__name__)
        offset = 40

        class Mine(Sound):
            def observe(self, action):
                return super().observe(action) + offset

        def make(extra):
            return lambda: Mine(at=-1 - extra)

        for method in ("forkserver", "spawn", "fork"):
            with Pool([gym_env(Mine), gym_env(make(1))], workers=2, start_method=method) as pool:
                say(method=method, found=pool.reset(seeds=[1, 2]).observations[:, 0].tolist())
        """)
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said == [
        {"run": "__main__"},
        *({"method": m, "found": [41, 42]} for m in ("forkserver", "spawn", "fork")),
    ]


class Tells(Sound):
    def tell(self) -> Any:
        return os.environ.get("TREADLE_TOLD"), os.getcwd(), sys.path[0], os.getpgrp() == os.getpid()


@pytest.mark.parametrize("setup", PROCESS, ids=show)
def test_the_callers_world_reaches_its_workers(
    setup: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is when the pool is made, not as it was when the fork server started."""
    monkeypatch.setenv("TREADLE_TOLD", "now")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "late_module.py").write_text("from zoo.faults import Sound\nclass Late(Sound): pass\n")
    with Pool([gym_env(Tells)] * 2, **setup) as pool:
        assert pool.lockstep.call("tell") == [("now", str(tmp_path), str(tmp_path), True)] * 2
    import late_module

    with Pool([gym_env(late_module.Late)] * 2, **setup) as pool:
        pool.reset()
    del sys.modules["late_module"]
