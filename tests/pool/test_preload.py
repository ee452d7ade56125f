"""Users' modules are imported once for all workers, and nobody can tell but by the time it takes."""

import contextlib
import functools
import importlib
import logging
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from kit import within
from scripts import Script

from treadle.errors import StartupFailed
from treadle.pool import forking, forkserver
from treadle.pool.modules import dumps, worth_preloading
from treadle.pool.pool import Pool
from treadle.program.gym_env import EnvRecipe, gym_env
from treadle.sample.named import Named
from treadle.vector.gymnasium import VectorEnv

MODULE = """
import os, random, sys, threading, time
import numpy as np
from zoo.faults import Sound

with open({log!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
{body}

class Mine(Sound):
    def tell(self):
        return {told}
"""


class Written:
    """A module of a user's that notes who imports it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.path, self._log = name, folder / f"{name}.py", folder / f"{name}.log"

    def write(self, told: str = "None", body: str = "") -> None:
        """`told` is what its environments tell, `body` what it does when it is imported."""
        self.path.write_text(MODULE.format(log=str(self._log), told=told, body=body))

    def told(self, workers: int = 2, **options: Any) -> list[Any]:
        """What the environments of a new pool tell."""
        with Pool([gym_env(Named(f"{self.name}:Mine"))] * workers, workers=workers, **options) as pool:
            pool.reset()
            return pool.lockstep.call("tell")

    def imports(self) -> list[int]:
        """Who has imported it since this was asked last."""
        pids = self._log.read_text().split() if self._log.exists() else []
        self._log.write_text("")
        return [int(pid) for pid in pids]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield Written(tmp_path, re.sub(r"\W", "_", tmp_path.name))
    forkserver.stop()  # it would keep the folder, and a server for each test, until others come


def test_a_module_is_imported_once_and_then_no_more(mine: Written) -> None:
    mine.write("os.getpid()")
    first = mine.told(3)
    assert len(set(first)) == 3
    (importer,) = mine.imports()
    assert importer not in first
    mine.told(2)
    assert mine.imports() == []


def test_a_module_that_is_edited_is_imported_again(mine: Written) -> None:
    mine.write("'old'")
    assert mine.told() == ["old", "old"]
    mine.write("'edited'")
    assert mine.told() == ["edited", "edited"]
    assert len(mine.imports()) == 2


def test_so_is_one_whose_own_module_is_edited(mine: Written, tmp_path: Path) -> None:
    below = tmp_path / f"below_{mine.name}.py"
    below.write_text("VALUE = 'old'")
    mine.write("VALUE", f"from below_{mine.name} import VALUE")
    assert mine.told() == ["old", "old"]
    below.write_text("VALUE = 'edited'")
    assert mine.told() == ["edited", "edited"]


def test_an_edit_while_workers_live_is_for_those_that_come(mine: Written) -> None:
    mine.write("'old'")
    with Pool([gym_env(Named(f"{mine.name}:Mine"))], workers=1) as pool:
        pool.reset()
        mine.write("'edited'")
        assert mine.told() == ["edited", "edited"]
        assert pool.lockstep.call("tell") == ["old"]
        os.kill(pool.workers[0].pid, signal.SIGKILL)
        with pytest.raises(Exception, match="SIGKILL"):  # its server lives on, and knows how it ended
            pool.reset()


def test_the_environment_is_that_of_now(mine: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    mine.write("GL, os.environ.get('MUJOCO_GL')", "GL = os.environ.get('MUJOCO_GL')")
    for value in ("egl", "osmesa", "egl"):
        monkeypatch.setenv("MUJOCO_GL", value)
        assert mine.told() == [(value, value)] * 2
    assert len(mine.imports()) == 2


def test_the_folder_is_that_of_now(mine: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine.write("FOLDER", "FOLDER = os.getcwd()")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert mine.told() == [str(tmp_path / name)] * 2


def test_what_a_module_changes_at_its_import_stays_changed(mine: Written, tmp_path: Path) -> None:
    (tmp_path / "further").mkdir()
    (tmp_path / "further" / f"late_{mine.name}.py").write_text("VALUE = 5")
    mine.write(
        f"os.environ['TREADLE_MINE'], __import__('late_{mine.name}').VALUE",
        f"os.environ['TREADLE_MINE'] = 'set'; sys.path.append({str(tmp_path / 'further')!r})",
    )
    assert mine.told() == [("set", 5)] * 2


def test_a_module_that_starts_a_thread_is_left_to_the_workers(
    mine: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So is one that does so by another one; the others are preloaded. It is told once."""
    harmless = Written(tmp_path, f"harmless_{mine.name}")
    harmless.write()
    mine.write(
        "ready.is_set() and thread.is_alive()",
        f"import {harmless.name}\n"
        "ready = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (ready.set(), time.sleep(60)), name='ticker', daemon=True)\n"
        "thread.start(); ready.wait()",
    )
    with caplog.at_level(logging.WARNING, "treadle"):
        assert mine.told(imports := 2) == [True, True]
        assert mine.told() == [True, True]
    assert len(mine.imports()) == 1 + imports + 2  # the one that was thrown away, and the workers
    (line,) = caplog.messages
    assert f"importing {mine.name} starts a thread (ticker)" in line
    assert "preload=" in line


def test_a_module_that_opens_a_socket_is_left_to_the_workers(mine: Written, caplog: pytest.LogCaptureFixture) -> None:
    """A connection of the server's would be one for all workers."""
    mine.write(
        "listening.getsockname()",
        "import socket\nlistening = socket.socket(); listening.bind(('127.0.0.1', 0)); listening.listen()",
    )
    with caplog.at_level(logging.WARNING, "treadle"):
        one, other = mine.told(2)
    assert one != other
    (line,) = caplog.messages
    assert f"importing {mine.name} opens a socket" in line


def test_a_socket_that_is_closed_again_is_no_matter(mine: Written, caplog: pytest.LogCaptureFixture) -> None:
    mine.write(body="import socket\nsocket.socket().close()")
    mine.told(2)
    assert len(mine.imports()) == 1
    assert caplog.messages == []


def test_an_open_gpu_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left to the workers for that. There is no GPU on every machine: another device stands for it."""
    monkeypatch.setattr(forking, "DEVICES", ("/dev/full",))
    assert forking._open_device() is None
    with open("/dev/full", "rb"):
        assert forking._open_device() == "/dev/full"


def test_an_import_error_is_told_by_the_worker(mine: Written, caplog: pytest.LogCaptureFixture) -> None:
    mine.write(body="import nowhere_to_be_found")
    for _ in range(2):
        with pytest.raises(StartupFailed, match="in init: ModuleNotFoundError: No module named 'nowhere_to_be_found'"):
            mine.told()
    mine.write("'mended'")
    assert mine.told() == ["mended", "mended"]
    assert caplog.messages == []


@pytest.mark.parametrize("end", ["sys.exit(3)", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_module_that_ends_its_process(mine: Written, end: str) -> None:
    mine.write(body=end)
    with pytest.raises(StartupFailed, match=r"SystemExit: 3|exited with code 3|SIGKILL"):
        mine.told(1)


def test_preloading_can_be_asked_for_and_turned_off(mine: Written, caplog: pytest.LogCaptureFixture) -> None:
    mine.write()
    mine.told(2, preload=())
    assert len(mine.imports()) == 2
    mine.told(2, preload=("json",))
    assert len(mine.imports()) == 2
    mine.told(2, preload=(mine.name,))
    assert len(mine.imports()) == 1
    assert caplog.messages == []
    mine.told(2, preload=("nowhere_to_be_found", mine.name))
    (line,) = caplog.messages
    assert "preload: nowhere_to_be_found cannot be imported: ModuleNotFoundError" in line


def test_what_multiprocessing_was_told_to_preload_is_preloaded(mine: Written) -> None:
    mine.write()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", mine.name])
    try:
        with contextlib.closing(VectorEnv("CartPole-v1", 2, workers=2)):
            assert len(mine.imports()) == 1
        with contextlib.closing(VectorEnv("CartPole-v1", 2, workers=2, preload=())):
            assert mine.imports() == []
    finally:
        context.set_forkserver_preload(["__main__"])


def test_workers_do_not_draw_the_same(mine: Written) -> None:
    mine.write(
        "random.random(), np.random.random(), RNG.random(), OLD.random_sample(), SEEDED.random()",
        "RNG, OLD, SEEDED = np.random.default_rng(), np.random.RandomState(), np.random.default_rng(1)",
    )
    *own, seeded = zip(*mine.told(), *mine.told(), strict=True)
    for drawn in own:
        assert len(set(drawn)) == 4
    assert len(set(seeded)) == 1
    assert len(mine.imports()) == 1


def test_objects_of_a_module_are_not_asked_what_they_are(mine: Written) -> None:
    """Proxies answer for `__class__` with code of their own: that of Flask's `request` raises outside of a request."""
    mine.write(
        "ASKED",
        """
ASKED = []
class Proxy:
    @property
    def __class__(self):
        ASKED.append(1)
        raise RuntimeError("outside of a request")
PROXY = Proxy()""",
    )
    assert mine.told() == [[], []]
    assert len(mine.imports()) == 1


def test_servers_that_wait_are_few(mine: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    mine.write("os.environ['TREADLE_MINE']")
    with contextlib.ExitStack() as stack:
        for value in "abcde":
            monkeypatch.setenv("TREADLE_MINE", value)
            pool = stack.enter_context(Pool([gym_env(Named(f"{mine.name}:Mine"))], workers=1))
            assert pool.lockstep.call("tell") == [value]
        assert len(forkserver.servers()) == 1 + 5  # those that have workers stay
    assert len(forkserver.servers()) == 1 + forkserver.KEPT


@pytest.mark.parametrize("there", [False, True])
def test_a_vector_without_workers_starts_nothing_but_its_probe(
    mine: Written, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`there`: a server for its module, which other workers have needed; then the probe is a fork of that one."""
    monkeypatch.setattr("treadle.pool.bell.cores", lambda: 2)
    mine.write()
    if there:
        mine.told()
    before = [each.pid for each in forkserver.servers()]
    mine.imports()
    with contextlib.closing(VectorEnv([Named(f"{mine.name}:Mine")] * 4)) as vector:
        vector.reset()
        assert not vector.stats().busy
    importers = mine.imports()
    assert os.getpid() in importers
    assert len(importers) == (1 if there else 2)
    servers = forkserver.servers()
    assert [each.pid for each in servers] == before if there else not servers[0].modules
    assert len(servers) == 1 + there


def test_a_server_that_was_killed_is_done_without(mine: Written) -> None:
    mine.write("'here'")
    mine.told()
    _, preloaded = forkserver.servers()
    os.kill(preloaded.pid, signal.SIGKILL)
    assert mine.told() == ["here", "here"]


def test_a_start_that_is_late_says_where_it_stands(mine: Written) -> None:
    mine.write(body="time.sleep(600)")
    with within(5.0), pytest.raises(StartupFailed, match=rf"still importing '{mine.name}'.*preload=\(\)"):
        mine.told(start_timeout=0.5)
    with within(5.0), pytest.raises(StartupFailed, match=rf"(?s)0 of 2 workers.*preload=.*{mine.name}\.py"):
        mine.told(start_timeout=0.5, preload=())


def test_ctrl_c_while_modules_are_imported(mine: Written) -> None:
    mine.write(body=f"open({str(mine.path) + '.begun'!r}, 'w').close()\ntime.sleep(600)")
    script = Script(
        f"""
        from treadle.sample.named import Named
        sys.path.insert(0, {str(mine.path.parent)!r})
        def press():
            while not os.path.exists({str(mine.path) + ".begun"!r}):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=press).start()
        try:
            Pool([gym_env(Named("{mine.name}:Mine"))] * 2, workers=2)
        except KeyboardInterrupt:
            say(interrupted=True)
        """
    )
    assert script.hear() == {"interrupted": True}
    with within(5.0):
        assert script.end() == (0, "")


class Wrapped(gym.Wrapper[Any, Any, Any, Any]):
    pass


def make_lazily() -> gym.Env:
    import minigrid  # noqa: F401 - registers what is made here

    return gym.make("HalfCheetah-v5")


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        ("CartPole-v1", "gymnasium.envs.classic_control.cartpole"),
        ({"env": "ALE/Pong-v5"}, "ale_py"),
        ("minigrid.envs:DoorKeyEnv", "minigrid.envs"),
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid"),
        (gym.spec("CartPole-v1"), "gymnasium.envs.classic_control.cartpole"),
        (Wrapped, __name__),
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["recipe", "wrapper", "partial", "closure", "default"])
def test_what_is_found(thing: Any, expected: str, where: str) -> None:
    """Whatever constructors hold, and however they hold it."""
    holders: dict[str, Any] = {
        "recipe": lambda: EnvRecipe("Nobody-v0", {"given": thing}),
        "wrapper": lambda: EnvRecipe("Nobody-v0", wrappers=(functools.partial(gym.Wrapper, thing),)),
        "partial": lambda: functools.partial(dict, thing=thing),
        "closure": lambda: lambda: thing,
        "default": lambda: lambda given=thing: given,
    }
    found = dumps([holders[where]()])[1]  # of a registered id also the module that makes it, once it is registered
    assert any(name == expected or name.startswith(f"{expected}.") for name in found)


def test_what_is_found_in_functions_by_value() -> None:
    make = type(make_lazily)(make_lazily.__code__, {"gym": gym, "__name__": "__main__"}, "make_lazily")
    found = worth_preloading(dumps(make)[1]).users
    assert {"minigrid", "gymnasium.envs.mujoco.half_cheetah_v5"} <= set(found)
    assert not {"__main__", "sys"} & set(found)


def test_what_is_found_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import json\nfrom minigrid.envs import DoorKeyEnv\nfrom . import x\n")
    found = dumps(Named(f"{tmp_path}/net.py:Net"))[1]
    assert worth_preloading(found).users == ("minigrid.envs",)


def test_what_is_not_worth_it() -> None:
    sys.modules["made_here"] = type(sys)("made_here")
    try:
        found = worth_preloading(["__main__", "json", "made_here", "nowhere", "treadle.trees", "minigrid"])
    finally:
        del sys.modules["made_here"]
    assert (found.ours, found.users) == (("treadle.trees",), ("minigrid",))
