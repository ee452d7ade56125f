"""A fork server's own side: it imports modules, forks workers on request, and tells how they ended.

What is between the caller and its servers, and when there are which, is in `forkserver.py`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

from treadle.pool import lifeline

if TYPE_CHECKING:  # see `forkserver.begin`
    from treadle.pool.channel import Channel

BASE = (
    "numpy",
    "gymnasium",
    "gymnasium.envs.classic_control",  # needs nothing else, and is what most people try first
    "cloudpickle",
    "treadle.pool.child",
    "treadle.program.gym_env",
)
DEVICES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")  # how those of GPUs begin
# What changes without meaning anything to a module: pytest's name of the test at hand.
CHANGING = frozenset({"PYTEST_CURRENT_TEST"})

Source = tuple[str, int, int]  # a file, its time of change in ns, its size

_generators: list[Any] = []  # in a server: those that its workers must seed anew


@dataclass(frozen=True)
class World:
    """What a server with users' modules was made for."""

    modules: tuple[str, ...]
    path: tuple[str, ...]
    cwd: str
    environ: frozenset[tuple[str, str]]

    @classmethod
    def now(cls, modules: tuple[str, ...]) -> World:
        return cls(modules, tuple(sys.path), os.getcwd(), _steady(os.environ))

    def holds(self, start: Any) -> bool:
        """Is it the world of a worker's first message?"""
        return (self.path, self.cwd, self.environ) == (tuple(start.path), start.cwd, _steady(start.environ))


@dataclass(frozen=True)
class Preload:
    """The first message to a process that is to become a server. With it come descriptors: lifeline, stdout, stderr."""

    world: World
    environ: dict[str, str]
    authkey: bytes


@dataclass(frozen=True)
class Imported:
    """A server is ready. `sources`: the files outside site-packages that it has imported modules from."""

    sources: tuple[Source, ...]

    def fresh(self) -> bool:
        """Are they still what they were?"""
        try:
            return all(_stamped(file) == (file, changed, size) for file, changed, size in self.sources)
        except OSError:  # one is gone
            return False


def _stamped(file: str) -> Source:
    stat = os.stat(file)
    return file, stat.st_mtime_ns, stat.st_size


@dataclass(frozen=True)
class Spoilt:
    """A server is of no use. `unfit`: nor will any other be that has imported this module."""

    module: str
    why: str
    unfit: bool


def _steady(environ: Any) -> frozenset[tuple[str, str]]:
    return frozenset(pair for pair in environ.items() if pair[0] not in CHANGING)


def serve_base(fd: int, life: int) -> None:
    """The base server's whole life."""
    lifeline.hold(life)
    gc.disable()  # what imports leave is little, and a tenth of their time goes to looking for it
    for name in BASE:
        importlib.import_module(name)
    gc.enable()
    from treadle.pool.channel import Channel

    serve(Channel(socket.socket(fileno=fd)), None)


def import_modules(channel: Channel, preload: Preload) -> None:
    """Become a server with users' modules, in a process that is in their world; the caller hears how it goes."""
    before, sockets = set(sys.modules), _sockets()
    try:
        with _stamps() as stamps:
            for name in preload.world.modules:
                channel.send(("import", name), block=True)
                spoilt = _import(name, sockets)
                if spoilt is not None:
                    channel.send(("import", spoilt), block=True)
                    os._exit(0)
        gc.collect()
        _find_generators()
        channel.send(("import", Imported(_sources(set(sys.modules) - before, stamps))), block=True)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the caller is gone


@contextlib.contextmanager
def _stamps() -> Iterator[dict[str, Source]]:
    """What files were when they were read: it is looked at just before, so that no edit is missed."""
    stamps: dict[str, Source] = {}
    usual = SourceFileLoader.path_stats

    def path_stats(loader: SourceFileLoader, path: str) -> Any:
        stamps[path] = _stamped(path)
        return usual(loader, path)

    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign, assignment]
    try:
        yield stamps
    finally:
        SourceFileLoader.path_stats = usual  # type: ignore[method-assign]


def _import(name: str, sockets: frozenset[str]) -> Spoilt | None:
    """`sockets`: those that were open before."""
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - sys.exit included; the worker that needs it tells, with traceback
        return Spoilt(name, f"{type(error).__name__}: {error}", False)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # else each worker would say it again
    if len(sys._current_frames()) > 1:
        names = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
        return Spoilt(name, f"starts a thread ({', '.join(names[:3]) or 'without a name'})", True)
    if device := _open_device():
        return Spoilt(name, f"opens the GPU ({device})", True)
    if _sockets() - sockets:  # all workers would talk over one connection; an event loop has some, too
        return Spoilt(name, "opens a socket", True)
    return None


def _find_generators() -> None:
    """NumPy's generators that modules have made for themselves and seeded from the system: see `reseed`."""
    import numpy as np

    for each in gc.get_objects():
        kind = type(each)  # not isinstance, which asks a proxy for its __class__: others' code, that may raise or warn
        if issubclass(kind, np.random.Generator | np.random.RandomState):
            bits = each.bit_generator if issubclass(kind, np.random.Generator) else each._bit_generator
            entropy = getattr(getattr(bits, "_seed_seq", None), "entropy", None)
            if isinstance(entropy, int) and entropy >= 2**64:  # the system's is of 128 bits
                _generators.append(bits)


def reseed() -> None:
    """In a worker: all workers would draw the same from generators that were seeded, by chance, in the server."""
    for bits in _generators:
        bits.state = type(bits)().state


def _open_device() -> str | None:
    """Of the GPU. CUDA, for one, has opened it when it is initialised, and does not survive a fork."""
    return next((target for target in _open_files() if target.startswith(DEVICES)), None)


def _sockets() -> frozenset[str]:
    """The names of those that are open, by their inodes."""
    return frozenset(target for target in _open_files() if target.startswith("socket:"))


def _open_files() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/self/fd/{fd}")


def _sources(names: Iterable[str], stamps: dict[str, Source]) -> tuple[Source, ...]:
    """The files of modules outside site-packages."""
    folders = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed = tuple(f"{folder}{os.sep}" for folder in folders if folder)
    found = set()
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and not file.startswith(installed) and "site-packages" not in file.split(os.sep):
            with contextlib.suppress(OSError):  # of something that is no file, a zip archive's
                found.add(stamps.get(file) or _stamped(file))
    return tuple(sorted(found))


def serve(channel: Channel, preload: Preload | None) -> None:
    """Fork workers on request; never returns."""
    gc.freeze()
    sock = channel.sock
    children: dict[int, int] = {}  # pidfd -> pid
    wanted: set[int] = set()
    done: set[int] = set()
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLHUP)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        for pidfd in ready:
            if pidfd in children:
                pid = children.pop(pidfd)
                poll.unregister(pidfd)
                os.close(pidfd)
                done.add(pid)
        try:
            while sock.fileno() in ready and (message := channel.recv()) is not None:
                (order, what), fds = message
                if order == "fork":
                    _import_own(what)
                    _fork(channel, fds[0], children, poll, preload)
                elif order == "modules":
                    channel.send(("modules", frozenset(sys.modules)), block=True)
                else:
                    wanted.add(what)
            for pid in wanted & done:
                wanted.discard(pid)
                done.discard(pid)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                channel.send(("status", (pid, code)), block=True)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            os._exit(0)  # the caller is gone, or was interrupted while it waited for an answer


def _import_own(modules: Iterable[str]) -> None:
    new = [name for name in modules if name not in sys.modules]
    for name in new:
        with contextlib.suppress(Exception):  # an extra that is not installed: the worker will say so
            importlib.import_module(name)
    if new:
        gc.freeze()


def _fork(channel: Channel, fd: int, children: dict[int, int], poll: Any, preload: Preload | None) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        os.close(fd)
        channel.send(("fork", f"cannot fork a worker: {error}"), block=True)
        return
    if pid == 0:
        channel.close()
        for other in children:
            os.close(other)
        signal.set_wakeup_fd(-1)
        from treadle.pool import child

        child.main(fd, preload=preload)
    os.close(fd)
    pidfd = os.pidfd_open(pid)
    children[pidfd] = pid
    poll.register(pidfd, select.POLLIN)
    channel.send(("fork", pid), (pidfd,), block=True)
