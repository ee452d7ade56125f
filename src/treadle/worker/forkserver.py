"""Private fork servers: clean processes that have imported what workers need, and fork one worker on each request.

The standard library's fork server is not enough. It has one preload list for the whole program, and it imports the
caller's `__main__` again in every worker. Its address is a named socket, and descriptors cannot be given to a worker
that is started later. Ours is a child on a socket pair: a request carries the worker's channel, the answer its pid and
pidfd. Exit statuses are reported on demand, as only a parent can learn them. Until then an ended worker stays a zombie,
so that no other process gets its number while the caller may still signal its group. The server's modules are frozen
out of the garbage collector (`gc.freeze`), so their pages stay shared.

The base server has imported our own modules, NumPy and Gymnasium. It starts at the first need (or sooner: `begin`),
serves all pools of a process, and dies with the caller. Further installed packages that workers need (a simulator,
torch: see `modules.py`) are imported once by a server that is itself a fork of the base server. The servers import no
modules of the user's own unless asked to: each worker imports them as they are.

A module that leaves a thread running, or a socket or GPU open, when it is imported cannot be forked with. The server
that tried is thrown away, and so is one in which an import failed: the worker that needs the module reports the error.
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
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.errors import StartupFailed, TooManyFiles, Where
from treadle.interrupts import Later, undisturbed
from treadle.worker import lifeline
from treadle.worker.forking import Spoilt
from treadle.worker.options import one_thread

if TYPE_CHECKING:  # it imports NumPy, which `begin` does not wait for
    from treadle.wire.channel import Channel

log = logging.getLogger("treadle")

FORK_SECONDS = 120.0  # the base server's first answer waits for its imports
SLICE = 0.05  # seconds that Ctrl-C may take while users' modules are imported
STATUS_SECONDS = 1.0
TRIES = 5  # servers that may die in a row before one does its work
KEPT = 2  # servers with packages that wait for further workers, beside those that have workers

T = TypeVar("T")

_lock = threading.Lock()
_servers: list[ForkServer] = []  # the base server first; only it has no `modules`
_unfit: set[str] = set()  # modules that cannot be forked with


class ServerDied(OSError):
    """A server has died, or was killed, before it answered. The request may have been carried out."""


def insist(ask: Callable[[], T]) -> T:
    """Return what `ask` returns. When the server that it asks dies, it is called again, and asks another.

    Raises StartupFailed if several servers in a row have died.
    """
    for _ in range(TRIES):
        try:
            return ask()
        except ServerDied as error:
            died = error
    raise StartupFailed(
        f"{TRIES} fork servers in a row have died before they could start a worker ({died}): something kills them, the "
        "system for want of memory perhaps. WorkerOptions(start_method='spawn') does without them",
        where=Where(phase="init"),
    ) from died


def server(modules: Sequence[str] = ()) -> ForkServer:
    """Return a live server that has imported these modules, if `prepare` has made one; else the base server.

    Workers of the base server import the modules by themselves.
    """
    with _lock:
        base = _running_base()
        found = _with(base, modules)
        return base if found is None or found.report is None else found


def works() -> bool:
    """Return True if there are pidfds (Linux), by which a server knows its workers."""
    return hasattr(os, "pidfd_open") and sys.platform.startswith("linux")


def begin() -> None:
    """Start the base server without waiting for it, where there can be one.

    It imports what workers need while the caller imports what it needs itself.
    """
    if works():
        with _lock:
            _running_base()


def prepare(modules: Sequence[str], limit: float, *, asked: bool = False) -> tuple[str, ...]:
    """Make a server that has imported these modules, and wait for it; return the modules that it could import.

    Args:
        modules: which, in order.
        limit: seconds.
        asked: True if the user named them. Each that cannot be imported is then logged.

    Raises:
        StartupFailed: the imports take longer than `limit`.
    """
    deadline = monotonic() + limit
    while names := tuple(name for name in modules if name not in _unfit):
        made = undisturbed(lambda names=names: insist(lambda: _for(names)), lambda _: None)  # type: ignore[misc]
        while made.report is None:
            if monotonic() > deadline:
                made.stop()
                raise _late(made.importing, limit)
            with Later():
                made.hear()
        spoilt = made.report
        if not isinstance(spoilt, Spoilt):
            return names
        with Later():
            made.stop()
        if spoilt.unfit:
            _unfit.add(spoilt.module)
            log.warning(
                "importing %s %s, which a fork does not survive: each worker imports it by itself. "
                "WorkerOptions(preload=...) names what the fork server imports, preload=() nothing",
                spoilt.module,
                spoilt.why,
            )
        elif asked:
            log.warning("preload: %s cannot be imported: %s", spoilt.module, spoilt.why)
        modules = tuple(name for name in names if name != spoilt.module)
    return ()


def _late(module: str, limit: float) -> StartupFailed:
    return StartupFailed(
        f"no worker is ready after {limit:g} s (start_timeout): the fork server is still importing {module!r}, which "
        "the workers need. Give it more time, or WorkerOptions(preload=()): then each worker imports by "
        "itself, and reports where it is",
        where=Where(phase="init"),
    )


def servers() -> list[ForkServer]:
    """Return the servers that are alive: the base server and those with packages."""
    with _lock:
        return [each for each in _servers if each.running()]


def stop() -> None:
    """End all servers and wait for them. Workers that still run are not touched."""
    with _lock:
        while _servers:
            _servers.pop().stop()


def _forked() -> None:
    """Forget the servers in a forked child of the caller: the pipes belong to its parent."""
    global _lock
    _lock = threading.Lock()
    while _servers:
        _servers.pop().forget()


os.register_at_fork(after_in_child=_forked)


def _running_base() -> ForkServer:
    for each in list(_servers):
        if isinstance(each.report, Spoilt) or not each.running():
            _servers.remove(each)
            each.stop()  # closes its descriptors
    if not _servers or _servers[0].modules:
        _servers.insert(0, _start_base())
    return _servers[0]


def _for(modules: Sequence[str]) -> ForkServer:
    """Return a server for these modules, which may still be importing them."""
    with _lock:
        base = _running_base()
        found = _with(base, modules)
        if found is None:
            idle = [each for each in _servers[1:] if not each.workers]  # the others must learn how their workers end
            for each in idle[: len(idle) + 1 - KEPT]:
                _servers.remove(each)
                each.stop()
            found = _start_preloaded(base, tuple(name for name in modules if name not in base.has()))
            _servers.append(found)
        return found


def _with(base: ForkServer, modules: Sequence[str]) -> ForkServer | None:
    """Return a server that has imported these modules, or is importing them; None: there is none."""
    missing = set(modules) - _unfit
    if missing and base.report is None:
        base.report, _ = base.ask("modules")
    missing -= base.has()
    return next((each for each in _servers if missing <= each.has()), None)


class ForkServer:
    """The caller's handle of a fork server.

    Args:
        channel, pid, pidfd: of the process. `pidfd` is closed with it.
        reap: called when it has ended.
        modules: the modules that it is to import.

    Attributes:
        workers: pids of the workers that it has forked and that are not yet buried.
        importing: the module that it is importing.
        report: all that it has imported, or why it is of no use; None: it has not reported so far.
    """

    def __init__(
        self, channel: Channel, pid: int, pidfd: int, reap: Callable[[], object], modules: tuple[str, ...] = ()
    ) -> None:
        self._lock = threading.Lock()
        self.channel, self.pid, self.pidfd, self._reap = channel, pid, pidfd, reap
        self.workers: set[int] = set()
        self.modules, self.importing = modules, "".join(modules[:1])
        self.report: frozenset[str] | Spoilt | None = None

    def running(self) -> bool:
        return self.pidfd >= 0 and not wait_readable([self.pidfd], 0)

    def has(self) -> frozenset[str]:
        """Return the modules that it has imported, or is going to."""
        return self.report if isinstance(self.report, frozenset) else frozenset(self.modules)

    def fork(self, sock: socket.socket, modules: tuple[str, ...] = (), what: str = "fork") -> tuple[int, int]:
        """Fork a worker on `sock`, or with "server" a server; return (pid, pidfd).

        Raises ServerDied, and StartupFailed when it cannot fork.

        Args:
            modules: modules of ours that it imports first, once for all workers.
        """
        reply, fds = self.ask(what, modules, (sock.fileno(),))
        if isinstance(reply, str):
            raise StartupFailed(reply, where=Where(phase="init"))
        self.workers.add(reply)
        return reply, fds[0]

    def ask(self, what: str, modules: tuple[str, ...] = (), fds: tuple[int, ...] = ()) -> tuple[Any, list[int]]:
        """Return the server's answer and the descriptors that came with it. Raises ServerDied."""
        with self._lock:
            try:
                self.channel.send((what, modules), fds, block=True)
                reply, received = self._receive(what, FORK_SECONDS)
                if reply is None:
                    raise OSError(f"the fork server has not answered for {FORK_SECONDS:g} s")
            except BaseException as error:
                # an answer that comes later would be taken for that to another request
                self.stop()
                from treadle.memory.arena import too_many_files

                limited = isinstance(error, TooManyFiles) or too_many_files(error)
                if isinstance(error, OSError) and not limited:
                    raise ServerDied(str(error)) from error
                raise
        return reply, received

    def hear(self) -> None:
        """Wait a moment for the next report on its imports."""
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

    def status(self, pid: int) -> int | None:
        """Return how an ended worker has ended, as `waited` does; None: the server cannot find out."""
        with self._lock:
            self.workers.discard(pid)
            try:
                self.channel.send(("status", pid), block=True)
                return self._receive(pid, STATUS_SECONDS)[0]  # type: ignore[no-any-return]
            except OSError:
                return None  # its exit status is lost

    def _receive(self, wanted: Any, timeout: float) -> tuple[Any, list[int]]:
        while True:
            try:
                message = self.channel.recv_wait(timeout)
            except EOFError as error:
                raise OSError("the fork server died") from error
            if message is None:
                return None, []
            (kind, value), fds = message
            if kind == wanted:  # else its caller no longer waits for it
                return value, fds

    def stop(self) -> None:
        self.channel.close()  # the server ends when it reads the end of file
        pidfd, self.pidfd = self.pidfd, -1
        if pidfd < 0:
            return
        if not wait_readable([pidfd], 0.1 if self.report is None and self.modules else 1.0):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if wait_readable([pidfd], 5.0):  # else it is stuck in the kernel
            self._reap()
        os.close(pidfd)

    def forget(self) -> None:
        """Close the handle without waiting for the process, which belongs to the parent."""
        self.channel.close()
        pidfd, self.pidfd = self.pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)


def _start_base() -> ForkServer:
    ours, theirs = socket.socketpair()
    life = lifeline.read_end()
    with theirs:
        process = subprocess.Popen(
            bootstrap("treadle.worker.forking", f"serve_base({theirs.fileno()}, {life})"),
            pass_fds=(theirs.fileno(), life),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=one_thread(os.environ),  # before it imports NumPy
            process_group=0,
        )
    from treadle.wire.channel import Channel  # the server imports NumPy at the same time as this import

    process.returncode = 0  # `waited` waits for it
    return ForkServer(Channel(ours), process.pid, os.pidfd_open(process.pid), partial(waited, process.pid))


def _start_preloaded(base: ForkServer, modules: tuple[str, ...]) -> ForkServer:
    from treadle.wire.channel import Channel
    from treadle.worker.child import Start

    channel, theirs = Channel.pair()
    with theirs:
        pid, pidfd = base.fork(theirs, (), "server")

    def reap() -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # kills what its modules have started; workers lead groups of their own
        base.status(pid)

    made = ForkServer(channel, pid, pidfd, reap, modules)
    base.workers.discard(pid)
    ends = [usable(1), usable(2)]  # for the output of modules at their import
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died at once: `hear` will find out
            channel.send(Start.now(modules, one_thread(os.environ)), (lifeline.read_end(), *ends))
    finally:
        for fd in ends:
            os.close(fd)
    return made


def wait_readable(fds: list[int], timeout: float) -> list[int]:
    """Return those of `fds` that can be read or are hung up, waiting up to `timeout` seconds.

    A pidfd is readable once its process has ended.
    """
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN | select.POLLHUP)
    return [fd for fd, _ in poll.poll(max(0, int(timeout * 1000)))]


def waited(pid: int) -> int | None:
    """Return how a child has ended, as os.waitstatus_to_exitcode does; None: other code has waited for it."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


def usable(fd: int) -> int:
    """Return a duplicate of the caller's descriptor, or /dev/null if the caller has closed it."""
    try:
        return os.dup(fd)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def bootstrap(module: str, call: str) -> list[str]:
    """Return a command that runs `call` of `module` in a clean interpreter with this one's import path."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    code = f"import sys; sys.path[:] = {sys.path!r}; import {module} as m; m.{call}"
    return [sys.executable, *flags, "-c", code]
