"""Installed packages are imported once for all workers, and users' own modules by each of them."""

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

from pool.kit import Pool, start_ends_with, within
from pool.scripts import Script
from treadle.errors import StartupFailed
from treadle.pickling import dumps
from treadle.program.gym_env import EnvRecipe
from treadle.program.policies import load_object
from treadle.sample.named import Named
from treadle.vector import shares
from treadle.vector.gymnasium import VectorEnv
from treadle.worker import forking, forkserver
from treadle.worker.modules import named, worth_preloading
from treadle.worker.options import WorkerOptions
from zoo.programs import gym_env

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
    """A module that notes who imports it."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
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
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """A module of the user's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return Written(tmp_path, "own_" + re.sub(r"\W", "_", tmp_path.name))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """An installed one."""
    folder = tmp_path / "site-packages"
    written = Written(folder, re.sub(r"\W", "_", tmp_path.name))
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    if len(forkserver.servers()) > 1:  # what other tests have left would be counted
        forkserver.stop()
    yield written
    forkserver.stop()  # it would keep the folder, and a server for each test, until others come


def test_an_installed_package_is_imported_once_and_then_no_more(package: Written) -> None:
    package.write("os.getpid()")
    first = package.told(3)
    assert len(set(first)) == 3
    (importer,) = package.imports()
    assert importer not in first
    package.told(2)
    assert package.imports() == []


def test_a_module_of_the_users_own_is_imported_by_each_worker(mine: Written) -> None:
    mine.write("os.getpid()")
    assert sorted(mine.told(3)) == sorted(mine.imports())


def test_a_module_that_is_edited_is_imported_anew(mine: Written, tmp_path: Path) -> None:
    """So is one that it imports."""
    below = tmp_path / f"below_{mine.name}.py"
    for value, changed in (("old", "old"), ("old", "edited"), ("edited", "edited")):
        below.write_text(f"VALUE = {value!r}")
        mine.write(f"VALUE, {changed!r}", f"from below_{mine.name} import VALUE")
        assert mine.told() == [(value, changed)] * 2


@pytest.mark.parametrize(
    "how", ["import {}", "from {} import Mine as Theirs", "import {} as other; here = other.Mine(0)"]
)
@pytest.mark.parametrize("between", [False, True])
def test_what_a_loaded_module_refers_to_is_imported_once(
    mine: Written, package: Written, tmp_path: Path, how: str, between: bool
) -> None:
    """Where it is an installed package; `between`: by way of another module of the user's."""
    package.write()
    first = Written(tmp_path, f"between_{mine.name}") if between else mine
    first.write(body=how.format(package.name))
    if between:
        mine.write(body=f"from {first.name} import Mine as Other")
    importlib.import_module(mine.name)
    for each in (package, mine):
        each.imports()
    with Pool([gym_env(sys.modules[mine.name].Mine)] * 3, workers=3) as pool:
        pool.reset()
        (importer,) = package.imports()
        pids = {worker.pid for worker in pool.workers}
        assert importer not in pids
        assert set(mine.imports()) == pids


def test_the_environment_is_that_of_now(mine: Written, package: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """But what a package has read when it was imported, it has read then."""
    mine.write(
        "GL, os.environ.get('MUJOCO_GL')", f"from {package.name} import FIRST\nGL = FIRST, os.environ.get('MUJOCO_GL')"
    )
    package.write(body="FIRST = os.environ.get('MUJOCO_GL')")
    for value in ("egl", "osmesa", None):
        monkeypatch.delenv("MUJOCO_GL", raising=False)
        if value is not None:
            monkeypatch.setenv("MUJOCO_GL", value)
        assert mine.told(preload=[package.name]) == [(("egl", value), value)] * 2
    assert len(package.imports()) == 1


def test_the_folder_is_that_of_now(mine: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine.write("FOLDER", "FOLDER = os.getcwd()")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert mine.told() == [str(tmp_path / name)] * 2


def test_what_a_package_changes_at_its_import_stays_changed(
    package: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "further").mkdir()
    (tmp_path / "further" / f"late_{package.name}.py").write_text("VALUE = 5")
    package.write(
        f"os.environ['TREADLE_MINE'], __import__('late_{package.name}').VALUE, os.environ.get('TREADLE_NEW')",
        f"os.environ['TREADLE_MINE'] = 'set'; sys.path.append({str(tmp_path / 'further')!r})",
    )
    assert package.told() == [("set", 5, None)] * 2
    monkeypatch.setenv("TREADLE_NEW", "new")
    assert package.told() == [("set", 5, "new")] * 2


def test_a_package_that_starts_a_thread_is_left_to_the_workers(
    package: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So is one that does so by another one; the others are preloaded. It is told once."""
    harmless = Written(tmp_path / "site-packages", f"harmless_{package.name}")
    harmless.write()
    package.write(
        "ready.is_set() and thread.is_alive()",
        f"import {harmless.name}\n"
        "ready = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (ready.set(), time.sleep(60)), name='ticker', daemon=True)\n"
        "thread.start(); ready.wait()",
    )
    with caplog.at_level(logging.WARNING, "treadle"):
        assert package.told(imports := 2) == [True, True]
        assert package.told() == [True, True]
    assert len(package.imports()) == 1 + imports + 2  # the one that was thrown away, and the workers
    (line,) = caplog.messages
    assert f"importing {package.name} starts a thread (ticker)" in line
    assert "preload=" in line


def test_a_package_that_opens_a_socket_is_left_to_the_workers(
    package: Written, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection of the server's would be one for all workers."""
    package.write(
        "listening.getsockname()",
        "import socket\nlistening = socket.socket(); listening.bind(('127.0.0.1', 0)); listening.listen()",
    )
    with caplog.at_level(logging.WARNING, "treadle"):
        one, other = package.told(2)
    assert one != other
    (line,) = caplog.messages
    assert f"importing {package.name} opens a socket" in line


def test_a_socket_that_is_closed_again_is_no_matter(package: Written, caplog: pytest.LogCaptureFixture) -> None:
    package.write(body="import socket\nsocket.socket().close()")
    package.told(2)
    assert len(package.imports()) == 1
    assert caplog.messages == []


def test_an_open_gpu_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is left to the workers for that. There is no GPU on every machine: another device stands for it."""
    (tmp_path / "opening.py").write_text("file = open('/dev/full', 'rb')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(forking, "DEVICES", ("/dev/full",))
    monkeypatch.setattr(sys, "_current_frames", dict)  # the threads of this process are no matter
    spoilt = forking._import("opening", forking._open_files())
    assert spoilt == forking.Spoilt("opening", "opens the GPU (/dev/full)", True)
    sys.modules.pop("opening").file.close()


def test_an_import_error_is_told_by_the_worker(package: Written, caplog: pytest.LogCaptureFixture) -> None:
    package.write(body="import nowhere_to_be_found")
    for _ in range(2):
        with pytest.raises(StartupFailed, match="in init: ModuleNotFoundError: No module named 'nowhere_to_be_found'"):
            package.told()
    package.write("'mended'")
    assert package.told() == ["mended", "mended"]
    assert caplog.messages == []


@pytest.mark.parametrize("end", ["sys.exit(3)", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_module_that_ends_its_process(package: Written, end: str) -> None:
    package.write(body=end)
    with pytest.raises(StartupFailed, match=r"SystemExit: 3|exited with code 3|SIGKILL"):
        package.told(1)


def test_preloading_can_be_asked_for_and_turned_off(package: Written, caplog: pytest.LogCaptureFixture) -> None:
    package.write()
    package.told(2, preload=())
    assert len(package.imports()) == 2
    package.told(2, preload=("json",))
    assert len(package.imports()) == 2
    package.told(2, preload=(package.name,))
    assert len(package.imports()) == 1
    assert caplog.messages == []
    package.told(2, preload=("nowhere_to_be_found", package.name))
    (line,) = caplog.messages
    assert "preload: nowhere_to_be_found cannot be imported: ModuleNotFoundError" in line


def test_what_multiprocessing_was_told_to_preload_is_preloaded(package: Written) -> None:
    package.write()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", package.name])
    try:
        with contextlib.closing(VectorEnv("CartPole-v1", 2, workers=2)):
            assert len(package.imports()) == 1
        with contextlib.closing(VectorEnv("CartPole-v1", 2, workers=2, worker_options=WorkerOptions(preload=()))):
            assert package.imports() == []
    finally:
        context.set_forkserver_preload(["__main__"])


def test_workers_do_not_draw_the_same(package: Written) -> None:
    package.write(
        "random.random(), np.random.random(), RNG.random(), OLD.random_sample(), SEEDED.random()",
        "RNG, OLD, SEEDED = np.random.default_rng(), np.random.RandomState(), np.random.default_rng(1)",
    )
    *own, seeded = zip(*package.told(), *package.told(), strict=True)
    for drawn in own:
        assert len(set(drawn)) == 4
    assert len(set(seeded)) == 1
    assert len(package.imports()) == 1


def test_objects_of_a_module_are_not_asked_what_they_are(package: Written) -> None:
    """Proxies answer for `__class__` with code of their own: that of Flask's `request` raises outside of a request."""
    package.write(
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
    assert package.told() == [[], []]
    assert len(package.imports()) == 1


def test_servers_that_wait_are_few(package: Written, tmp_path: Path) -> None:
    packages = [Written(tmp_path / "site-packages", f"{letter}_{package.name}") for letter in "abcde"]
    with contextlib.ExitStack() as stack:
        for each in packages:
            each.write(f"{each.name!r}")
            pool = stack.enter_context(Pool([gym_env(Named(f"{each.name}:Mine"))], workers=1))
            assert pool.lockstep.call("tell") == [each.name]
        assert len(forkserver.servers()) == 1 + 5  # those that have workers stay
    package.write()
    package.told()
    assert len(forkserver.servers()) == 1 + forkserver.KEPT


@pytest.mark.parametrize("there", [False, True])
def test_a_vector_without_workers_starts_nothing_but_its_probe(
    package: Written, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`there`: a server for its module, which other workers have needed; then the probe is a fork of that one."""
    monkeypatch.setattr("treadle.wire.bell.cores", lambda: 2)
    monkeypatch.setattr(shares, "_time_to_wake", lambda pool: 1.0)  # seconds: no batch of these is as long
    package.write()
    if there:
        package.told()
    before = [each.pid for each in forkserver.servers()]
    package.imports()
    with contextlib.closing(VectorEnv([Named(f"{package.name}:Mine")] * 4)) as vector:
        vector.reset()
        assert not vector.stats().busy
    importers = package.imports()
    assert os.getpid() in importers
    assert len(importers) == (1 if there else 2)
    servers = forkserver.servers()
    assert [each.pid for each in servers] == before if there else not servers[0].modules
    assert len(servers) == 1 + there


def test_a_server_that_was_killed_is_done_without(package: Written) -> None:
    package.write("'here'")
    package.told()
    _, preloaded = forkserver.servers()
    os.kill(preloaded.pid, signal.SIGKILL)
    assert package.told() == ["here", "here"]


def test_a_start_that_is_late_says_where_it_stands(package: Written) -> None:
    package.write(body="time.sleep(600)")
    with within(5.0), pytest.raises(StartupFailed, match=rf"still importing '{package.name}'.*preload=\(\)"):
        package.told(start_timeout=0.5)


def test_a_worker_whose_start_is_late_says_where_it_stands(package: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = package.path.with_suffix(".begun")
    package.write(body=f"open({str(begun)!r}, 'w').close()\ntime.sleep(600)")
    start_ends_with(begun, monkeypatch)
    with pytest.raises(StartupFailed, match=rf"(?s)0 of 1 workers.*preload=.*{package.name}\.py"):
        package.told(1, start_timeout=60.0, preload=())


def test_ctrl_c_while_modules_are_imported(package: Written) -> None:
    package.write(body=f"open({str(package.path) + '.begun'!r}, 'w').close()\ntime.sleep(600)")
    script = Script(
        f"""
        from treadle.sample.named import Named
        sys.path.insert(0, {str(package.path.parent)!r})
        def press():
            while not os.path.exists({str(package.path) + ".begun"!r}):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=press).start()
        try:
            Pool([gym_env(Named("{package.name}:Mine"))] * 2, workers=2)
        except KeyboardInterrupt:
            say(interrupted=True)
        """
    )
    assert script.hear() == {"interrupted": True}
    with within(5.0):
        assert script.end() == (0, "")


class Wrapped(gym.Wrapper[Any, Any, Any, Any]):
    pass


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
    found = named([dumps([holders[where]()])])  # of a registered id also the module that makes it
    assert any(name == expected or name.startswith(f"{expected}.") for name in found)


def test_what_a_file_refers_to_that_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("import json\nfrom minigrid.envs import DoorKeyEnv\nclass Net: pass\n")
    assert "minigrid.envs.doorkey" not in worth_preloading(named([dumps(Named("net.py:Net"))]))
    load_object("net.py:Net")
    for name in ("net.py:Net", f"{tmp_path}/net.py:Net"):
        assert "minigrid.envs.doorkey" in worth_preloading(named([dumps(Named(name))]))


def test_what_is_not_worth_it() -> None:
    sys.modules["made_here"], sys.modules["no_module"] = type(sys)("made_here"), object()  # type: ignore[assignment]
    try:
        names = ["__main__", "json", "made_here", "no_module", "nowhere", "minigrid", "h5py", __name__]
        found = worth_preloading(names)
    finally:
        del sys.modules["made_here"], sys.modules["no_module"]
    assert found[0] == "minigrid"
    assert {"pytest", "treadle.pool.pool"} <= set(found)  # which this file refers to
    assert not {name.partition(".")[0] for name in found} & {"h5py", "json", "made_here", "zoo", "kit"}


def test_h5py_is_never_imported_in_a_server(package: Written) -> None:
    package.write("'h5py' in sys.modules")
    assert package.told(preload=[package.name, "h5py"]) == [False, False]
