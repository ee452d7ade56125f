"""A private fork server: a clean process that has imported what workers need, and forks one worker on each request.

Why not the standard library's: its preload list is one for the whole program, it imports the caller's `__main__`
again in every worker, its address is a named socket, and descriptors cannot be given to a worker that is started
later. Ours is a child on a socket pair: a request carries the worker's channel, the answer its pid and pidfd, and exit
statuses are reported on demand (only a parent can learn them). Until then an ended worker stays a zombie, so that its
number is nobody else's while the caller may still signal its group. Its modules are frozen out of the garbage collector
(`gc.freeze`), so their pages stay shared.

One server per preload list serves all pools of a process; it starts at the first need, and dies with the caller.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

from treadle.pool import lifeline
from treadle.pool.channel import Channel

PRELOAD = ("numpy", "gymnasium", "cloudpickle", "treadle.pool.child", "treadle.program.gym_env")

FORK_SECONDS = 120.0  # its first answer waits for the imports

_servers: dict[tuple[str, ...], ForkServer] = {}
_lock = threading.Lock()


def ensure(preload: tuple[str, ...] = PRELOAD) -> int:
    """Start the server for this preload list if it is not running; returns its pid."""
    return server(preload).pid


def server(preload: tuple[str, ...] = PRELOAD) -> ForkServer:
    with _lock:
        found = _servers.get(preload)
        if found is None or not found.running():
            found = _servers[preload] = ForkServer(preload)
        return found


def stop() -> None:
    """End all servers and wait for them. Workers that still run are not touched."""
    with _lock:
        for found in _servers.values():
            found.stop()
        _servers.clear()


def _forked() -> None:
    """A forked child of the caller has no server: the pipes belong to its parent."""
    global _lock
    _lock = threading.Lock()
    for found in _servers.values():
        found.forget()
    _servers.clear()


os.register_at_fork(after_in_child=_forked)


class ForkServer:
    """The caller's handle."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self.channel, theirs = Channel.pair()
        life = lifeline.read_end()
        with theirs:
            self._process = subprocess.Popen(
                bootstrap("treadle.pool.forkserver", f"serve({theirs.fileno()}, {life}, {preload!r})"),
                pass_fds=(theirs.fileno(), life),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,
            )
        self.pid = self._process.pid
        self._statuses: dict[int, int] = {}

    def running(self) -> bool:
        return self._process.poll() is None

    def fork(self, sock: socket.socket) -> tuple[int, int]:
        """A new worker on `sock`: (pid, pidfd). Raises OSError when the server is gone or cannot fork."""
        with self._lock:
            try:
                self.channel.send("fork", (sock.fileno(),), block=True)
                reply, fds = self._receive("forked", FORK_SECONDS)
                if reply is None:
                    raise OSError(f"the fork server has not answered for {FORK_SECONDS:g} s")
            except BaseException:
                # an answer that comes later would be taken for that to another request; and one that is dying, whose
                # socket is closed already, counts as running until it has been waited for
                self.stop()
                raise
        if isinstance(reply, str):
            raise OSError(reply)
        return reply, fds[0]

    def status(self, pid: int, timeout: float) -> int | None:
        """How a worker ended, as os.waitstatus_to_exitcode gives it; None when the server cannot tell in time."""
        with self._lock:
            if pid not in self._statuses:
                try:
                    self.channel.send(pid, block=True)
                    status, _ = self._receive(pid, timeout)
                except OSError:
                    return None
                if status is None:
                    return None
            return self._statuses.pop(pid)

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
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        self.channel.close()
        self._process.returncode = 0  # not ours to wait for


def bootstrap(module: str, call: str) -> list[str]:
    """A command that runs `call` of `module` in a clean interpreter with this one's import path."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    code = f"import sys; sys.path[:] = {sys.path!r}; import {module} as m; m.{call}"
    return [sys.executable, *flags, "-c", code]


# -- the server's side -----------------------------------------------------------------------------------------------


def serve(fd: int, life: int, preload: tuple[str, ...]) -> None:
    """The server's whole life."""
    lifeline.hold(life)
    for name in preload:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - the worker that needs it will say so, with its traceback
            print(f"treadle: preloading {name} failed: {error}", file=sys.stderr)
    gc.collect()
    gc.freeze()
    sock = socket.socket(fileno=fd)
    channel = Channel(sock)
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
                order, fds = message
                if order == "fork":
                    _fork(channel, fds[0], children, poll)
                else:
                    wanted.add(order)
            for pid in wanted & done:
                wanted.discard(pid)
                done.discard(pid)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                channel.send(("status", (pid, code)), block=True)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            os._exit(0)  # the caller is gone, or was interrupted while it waited for an answer


def _fork(channel: Channel, fd: int, children: dict[int, int], poll: Any) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        os.close(fd)
        channel.send(("forked", f"cannot fork a worker: {error}"), block=True)
        return
    if pid == 0:
        channel.close()
        for other in children:
            os.close(other)
        signal.set_wakeup_fd(-1)
        from treadle.pool import child

        child.main(fd)
    os.close(fd)
    pidfd = os.pidfd_open(pid)
    children[pidfd] = pid
    poll.register(pidfd, select.POLLIN)
    channel.send(("forked", pid), (pidfd,), block=True)


__all__ = ["PRELOAD", "ForkServer", "ensure", "serve", "server"]
