"""Private fork servers: clean processes that have imported what workers need, and fork one worker on each request.

Why not the standard library's: its preload list is one for the whole program, it imports the caller's `__main__`
again in every worker, its address is a named socket, and descriptors cannot be given to a worker that is started
later. Ours is a child on a socket pair: a request carries the worker's channel, the answer its pid and pidfd, and exit
statuses are reported on demand (only a parent can learn them). Until then an ended worker stays a zombie, so that its
number is nobody else's while the caller may still signal its group. Its modules are frozen out of the garbage collector
(`gc.freeze`), so their pages stay shared.

The base server has imported our own modules, NumPy and Gymnasium. It starts at the first need (or sooner: `begin`),
serves all pools of a process, and dies with the caller. What users' workers import on top of that (a simulator, torch)
is imported once by a server that is itself a fork of the base server, made for one list of modules in one `World`. Such
servers must never make a difference that a user could see:
- a server is used only as long as the caller's import path, working directory and environment are what they were, and
  as the files of the modules that it has imported, those outside site-packages, are unchanged;
- a module that leaves a thread running, or a socket or GPU open, when it is imported cannot be forked with. The server
  that tried is thrown away, and so is one in which an import failed: the worker that needs the module will say what is
  wrong.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.process import current_process
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.errors import StartupFailed, TooManyFiles, Where
from treadle.pool import lifeline
from treadle.pool.forking import Imported, Preload, Spoilt, World
from treadle.pool.interrupts import Later, undisturbed

if TYPE_CHECKING:  # it imports NumPy, which `begin` does not wait for
    from treadle.pool.channel import Channel

log = logging.getLogger("treadle")

FORK_SECONDS = 120.0  # the base server's first answer waits for its imports
SLICE = 0.05  # seconds that Ctrl-C may take while users' modules are imported
TRIES = 5  # servers that may die in a row before one has done what it was asked for
KEPT = 2  # servers with users' modules that wait for further workers, beside those that have some

T = TypeVar("T")

_lock = threading.Lock()
_base: ForkServer | None = None
_preloaded: dict[World, ForkServer] = {}  # the one that was used last is the last
_outdated: list[ForkServer] = []  # files have changed since, and they still have workers
_unfit: set[str] = set()  # modules that cannot be forked with


class ServerDied(OSError):
    """A server has died, or was killed, before it has answered. What it was sent may have been done."""


def insist(ask: Callable[[], T]) -> T:
    """What `ask` returns; when the server dies that it asks, it is called again, and asks another.

    Raises StartupFailed: several servers in a row have died.
    """
    for _ in range(TRIES):
        try:
            return ask()
        except ServerDied as error:
            died = error
    raise StartupFailed(
        f"{TRIES} fork servers in a row have died before they could start a worker ({died}): something kills them, the "
        "system for want of memory perhaps. start_method='spawn' does without them",
        where=Where(phase="init"),
    ) from died


def server(modules: tuple[str, ...] = ()) -> ForkServer:
    """The server that has imported these modules of users', where `prepare` has made one and it is still good; else the
    base server, whose workers import them by themselves."""
    with _lock:
        base = _running_base()
        modules = tuple(name for name in modules if name not in _unfit and name not in (base.has or ()))
        if modules and (found := _good(World.now(modules))) is not None and isinstance(found.report, Imported):
            return found
        return base


def works() -> bool:
    """Are there pidfds (Linux), by which a server knows its workers?"""
    return hasattr(os, "pidfd_open") and sys.platform.startswith("linux")


def begin() -> None:
    """Have the base server start, and do not wait for it: it imports what workers need while the caller imports what
    it needs itself. Nothing where there can be no server."""
    if works():
        with _lock:
            _running_base()


def prepare(modules: tuple[str, ...], limit: float, *, asked: bool = False) -> tuple[str, ...]:
    """Have a server that has imported these modules of users', and wait for it; returns those that it could import.

    Args:
        modules: which, in order.
        limit: seconds.
        asked: did the user name them? Then one that cannot be imported is told in the log.

    Raises:
        StartupFailed: it takes longer.
    """
    deadline = monotonic() + limit
    while True:
        modules = tuple(name for name in modules if name not in _unfit)
        if not modules:
            return ()
        made = undisturbed(lambda names=modules: _for(names), lambda _: None)  # type: ignore[misc]
        while made is not None and made.report is None:
            if monotonic() > deadline:
                made.stop()
                raise _late(made.importing, limit)
            with Later():
                made.hear()
        if made is None:
            return ()
        if isinstance(made.report, Imported):
            return made.modules
        spoilt = made.report
        assert isinstance(spoilt, Spoilt)
        with Later():
            made.stop()
        if spoilt.unfit and spoilt.module not in _unfit:
            _unfit.add(spoilt.module)
            log.warning(
                "importing %s %s, and no process can be forked with that: each worker imports it by itself. "
                "preload= says what the fork server imports, preload=() nothing",
                spoilt.module,
                spoilt.why,
            )
        elif asked and not spoilt.unfit:
            log.warning("preload: %s cannot be imported: %s", spoilt.module, spoilt.why)
        modules = tuple(name for name in modules if name != spoilt.module)


def _late(module: str, limit: float) -> StartupFailed:
    return StartupFailed(
        f"no worker is ready after {limit:g} s (start_timeout): the fork server is still importing {module!r}, which "
        "the workers need. Give it more time, or preload=(): then each worker imports by itself, and tells where it is",
        where=Where(phase="init"),
    )


def servers() -> list[ForkServer]:
    """Those that live: the base server and those with users' modules."""
    with _lock:
        found = [] if _base is None else [_base]
        return [each for each in (*found, *_preloaded.values(), *_outdated) if each.running()]


def stop() -> None:
    """End all servers and wait for them. Workers that still run are not touched."""
    global _base
    with _lock:
        for found in (*_preloaded.values(), *_outdated):
            found.stop()
        _preloaded.clear()
        _outdated.clear()
        if _base is not None:
            _base.stop()
        _base = None


def _forked() -> None:
    """A forked child of the caller has no server: the pipes belong to its parent."""
    global _lock, _base
    _lock = threading.Lock()
    for found in (*_preloaded.values(), *_outdated, *(() if _base is None else (_base,))):
        found.forget()
    _preloaded.clear()
    _outdated.clear()
    _base = None


os.register_at_fork(after_in_child=_forked)


def _running_base() -> ForkServer:
    global _base
    if _base is not None and not _base.running():
        _base.stop()  # somebody has ended it: its descriptors go
        _base = None
    if _base is None:
        _base = _start_base()
    return _base


def _for(modules: tuple[str, ...]) -> ForkServer | None:
    """A server for these modules, perhaps at its imports; None when the base server has them all."""
    with _lock:
        return insist(lambda: _from(_running_base(), modules))


def _from(base: ForkServer, modules: tuple[str, ...]) -> ForkServer | None:
    if base.has is None:
        base.has = base.ask("modules")
    missing = tuple(name for name in modules if name not in base.has)
    if not missing:
        return None
    world = World.now(missing)
    found = _good(world)
    if found is None:
        found = _preloaded[world] = _start_preloaded(base, world)
        _tidy()
    return found


def _good(world: World) -> ForkServer | None:
    found = _preloaded.pop(world, None)
    if found is None:
        return None
    if isinstance(found.report, Spoilt) or not found.running():
        found.stop()
        return None
    if isinstance(found.report, Imported) and not found.report.fresh():
        _outdated.append(found)
        return None
    _preloaded[world] = found
    return found


def _tidy() -> None:
    """End servers that nobody needs. One that has workers lives on: nobody else learns how they end."""
    idle = [world for world, each in _preloaded.items() if not each.workers]
    for world in idle[: len(idle) - KEPT]:
        _preloaded.pop(world).stop()
    for each in [each for each in _outdated if not each.workers]:
        _outdated.remove(each)
        each.stop()


class Grandchild:
    """A server that the base server has forked."""

    def __init__(self, base: ForkServer, pid: int, pidfd: int) -> None:
        self._base, self.pid, self.pidfd = base, pid, pidfd
        self._ended = select.poll()
        self._ended.register(pidfd, select.POLLIN)

    def poll(self, timeout: float = 0.0) -> int | None:
        return 0 if self.pidfd < 0 or self._ended.poll(timeout * 1000) else None

    def wait(self, timeout: float) -> int:
        if self.poll(timeout) is None:
            raise subprocess.TimeoutExpired("a fork server", timeout)
        pidfd, self.pidfd = self.pidfd, -1
        if pidfd >= 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # what its modules have started; workers lead groups of their own
            self._base.status(self.pid, timeout)
            os.close(pidfd)
        return 0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


Process = subprocess.Popen[bytes] | Grandchild


class ForkServer:
    """The caller's handle.

    Attributes:
        workers: pids of those that it has forked and that nobody has buried yet.
        has: what the base server had imported when it was asked.
        modules: of users', that it is for, and `importing` the one that it is at.
        report: what has become of its imports; None: nothing yet.
    """

    def __init__(self, channel: Channel, process: Process, modules: tuple[str, ...] = ()) -> None:
        self._lock = threading.Lock()
        self.channel, self._process = channel, process
        self.pid = process.pid
        self.workers: set[int] = set()
        self.has: frozenset[str] | None = None
        self.modules, self.importing = modules, "".join(modules[:1])
        self.report: Imported | Spoilt | None = None
        self._statuses: dict[int, int] = {}

    def running(self) -> bool:
        return self._process.poll() is None

    def fds(self) -> list[int]:
        """The caller's descriptors that belong to it."""
        return [fd for fd in (self.channel.fileno(), getattr(self._process, "pidfd", -1)) if fd >= 0]

    def fork(self, sock: socket.socket, modules: tuple[str, ...] = ()) -> tuple[int, int]:
        """A new worker on `sock`: (pid, pidfd). `modules`: of our own, to be imported before, once for all.

        Raises ServerDied, and StartupFailed when it cannot fork.
        """
        reply, fds = self._ask("fork", modules, (sock.fileno(),))
        if isinstance(reply, str):
            raise StartupFailed(reply, where=Where(phase="init"))
        self.workers.add(reply)
        return reply, fds[0]

    def ask(self, what: str) -> Any:
        """The server's answer. Raises ServerDied."""
        return self._ask(what, (), ())[0]

    def _ask(self, what: str, modules: tuple[str, ...], fds: tuple[int, ...]) -> tuple[Any, list[int]]:
        with self._lock:
            try:
                self.channel.send((what, modules), fds, block=True)
                reply, received = self._receive(what, FORK_SECONDS)
                if reply is None:
                    raise OSError(f"the fork server has not answered for {FORK_SECONDS:g} s")
            except BaseException as error:
                # an answer that comes later would be taken for that to another request; and one that is dying, whose
                # socket is closed already, counts as running until it has been waited for
                self.stop()
                from treadle.pool.arena import too_many_files

                limited = isinstance(error, TooManyFiles) or too_many_files(error)
                if isinstance(error, OSError) and not limited:
                    raise ServerDied(str(error)) from error
                raise
        return reply, received

    def hear(self) -> None:
        """Of its imports: waits a moment for the next word."""
        with self._lock:
            if self.report is not None:
                return
            try:
                message = self.channel.recv_wait(SLICE)
            except (EOFError, OSError):
                self.report = Spoilt(self.importing, "ended the process", False)
                return
            if message is not None:
                (_, word), _ = message
                if isinstance(word, str):
                    self.importing = word
                else:
                    self.report = word

    def status(self, pid: int, timeout: float) -> int | None:
        """How a worker ended, as os.waitstatus_to_exitcode gives it; None when the server cannot tell in time."""
        with self._lock:
            if pid not in self._statuses:
                try:
                    self.channel.send(("status", pid), block=True)
                    status, _ = self._receive(pid, timeout)
                except OSError:
                    self.workers.discard(pid)  # nobody will ever know
                    return None
                if status is None:
                    return None
            self.workers.discard(pid)
            found = self._statuses.pop(pid)
        if not self.workers and _lock.acquire(blocking=False):  # else whoever has it tidies up, or the next one does
            try:
                _tidy()
            finally:
                _lock.release()
        return found

    def _receive(self, wanted: Any, timeout: float) -> tuple[Any, list[int]]:
        while True:
            try:
                message = self.channel.recv_wait(timeout)
            except EOFError as error:
                raise OSError("the fork server died") from error
            if message is None:
                return None, []
            (kind, value), fds = message
            if kind == "status":
                self._statuses[value[0]] = value[1]
                if wanted == value[0]:
                    return value[1], []
            elif kind == wanted:
                return value, fds

    def stop(self) -> None:
        self.channel.close()  # it ends when it reads the end of file
        try:
            self._process.wait(0.1 if self.report is None and self.importing else 1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel
                self._process.wait(5.0)

    def forget(self) -> None:
        """Not ours to wait for."""
        self.channel.close()
        if isinstance(self._process, subprocess.Popen):
            self._process.returncode = 0
        elif isinstance(self._process, Grandchild) and self._process.pidfd >= 0:
            os.close(self._process.pidfd)
            self._process.pidfd = -1


def _start_base() -> ForkServer:
    ours, theirs = socket.socketpair()
    life = lifeline.read_end()
    with theirs:
        process = subprocess.Popen(
            bootstrap("treadle.pool.forking", f"serve_base({theirs.fileno()}, {life})"),
            pass_fds=(theirs.fileno(), life),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=0,
        )
    from treadle.pool.channel import Channel  # the server imports NumPy meanwhile, as this does

    return ForkServer(Channel(ours), process)


def _start_preloaded(base: ForkServer, world: World) -> ForkServer:
    from treadle.pool.channel import Channel

    channel, theirs = Channel.pair()
    with theirs:
        made = ForkServer(channel, Grandchild(base, *base.fork(theirs)), world.modules)
    base.workers.discard(made.pid)
    ends = [usable(1), usable(2)]  # what modules say when they are imported
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died at once: `hear` will find out
            start = Preload(world, dict(os.environ), bytes(current_process().authkey))
            channel.send(start, (lifeline.read_end(), *ends))
    finally:
        for fd in ends:
            os.close(fd)
    return made


def usable(fd: int) -> int:
    """A duplicate of the caller's descriptor, or of /dev/null when it has closed it."""
    try:
        return os.dup(fd)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def bootstrap(module: str, call: str) -> list[str]:
    """A command that runs `call` of `module` in a clean interpreter with this one's import path."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    code = f"import sys; sys.path[:] = {sys.path!r}; import {module} as m; m.{call}"
    return [sys.executable, *flags, "-c", code]
