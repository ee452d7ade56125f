"""A worker process, from its start to its end.

However it was started, it begins with one descriptor: its end of the channel. Everything else arrives there: the start
message, then (after its hello) its place in the memory.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import io
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import current_process
from typing import Any

from treadle.memory.arena import Arena
from treadle.memory.ring import Rings
from treadle.memory.rows import Rows
from treadle.whole_file import why
from treadle.wire.bell import arena_bell
from treadle.wire.carried import Arrived
from treadle.wire.channel import Channel
from treadle.wire.line import WorkerLine
from treadle.wire.messages import Hello, Raised, WorkerSpec
from treadle.worker import lifeline
from treadle.worker.loop import serve
from treadle.worker.options import OF_ALL, THREADS
from treadle.worker.serve import Server
from treadle.worker.worker import build_here

REPORT = 8  # where stacks begin in the crash report
STACK_SIGNAL = getattr(signal, "SIGRTMIN", 34) + 7  # asks faulthandler for the Python stack; unlikely to be taken
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT_BYTES = 32 * 2**20  # the largest M_MMAP_THRESHOLD that glibc accepts
generators: list[Any] = []  # NumPy generators of a fork server's modules, which each worker must seed anew


@dataclass(frozen=True)
class Start:
    """The first message. With it come descriptors: lifeline, stdout, stderr, crash report.

    The crash report is a file in memory that both sides have. It begins with the number of the slot that is being
    built, in digits; stacks follow from `REPORT` on. A process that is to become a fork server (`forking.py`) has none.

    Attributes:
        spec: of a worker; or the modules that a fork server is to import.
        authkey: of multiprocessing; the proxies of the caller's managers require it.
    """

    spec: WorkerSpec | tuple[str, ...]
    environ: dict[str, str]
    cwd: str
    path: list[str]
    authkey: bytes

    @classmethod
    def now(cls, spec: WorkerSpec | tuple[str, ...], environ: dict[str, str]) -> Start:
        """Return the first message with the caller's directory, import path and authkey as they are now."""
        return cls(spec, environ, os.getcwd(), list(sys.path), bytes(current_process().authkey))


def main(fd: int, *, forked: bool = False, run: Callable[[Channel], int] | None = None) -> None:
    """Run a worker on channel `fd`; never returns.

    Args:
        fd: of the channel.
        forked: True if this process is a copy of the caller.
        run: called instead of a worker's work; returns the exit code.
    """
    code = 1
    channel = Channel(socket.socket(fileno=fd))
    try:
        code = (run or work)(channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        code = 0  # the caller is gone or no longer interested
    finally:
        _leave(code, run_atexit=not forked)


def begin(channel: Channel) -> tuple[Start, list[int]]:
    """Return the first message and its descriptors without the lifeline, which is held from now on."""
    os.setpgid(0, 0)
    gc.freeze()  # copied objects are the parent's: their finalizers must not close descriptors that are ours by now
    received = channel.recv_wait()
    assert received is not None
    start, (life, *fds) = received
    lifeline.hold(life)
    return start, fds


def work(channel: Channel, entered: Start | None = None) -> int:
    """Run a worker from its first message to its end, and return the exit code.

    `entered`: the first message of the server with packages of which this process is a copy; None: it is not a copy of
    one.
    """
    start, (out, err, crash) = begin(channel)
    assert isinstance(start.spec, WorkerSpec)
    redirect(out, err)
    faulthandler.enable(file=crash)
    faulthandler.register(STACK_SIGNAL, file=crash)
    enter(start, entered)
    _keep_freed_memory()
    _receive(channel, start.spec.descriptors)
    programs, hello = build_here(start.spec, start.spec.build, in_caller=False, begins=partial(_note_slot, crash))
    try:
        channel.send(hello, block=True)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a space or metadata that cannot be pickled is reported instead
        hello = Hello(os.getpid(), failed=(start.spec.slots[0], Raised.of(error, "init")))
        channel.send(hello, block=True)
    if hello.failed:
        _close(start.spec, programs)
        return 1
    try:
        received = channel.recv_wait()
    except EOFError:  # the caller has no use for them: another worker has failed, for example
        _close(start.spec, programs)
        raise
    assert received is not None
    place, fds = received
    arena = Arena(fd=fds[0])
    arena.join(place.segments)
    bell, pool_bell = arena_bell(arena, place.line.bell), arena_bell(arena, place.pool_bell)
    slots = start.spec.slots
    line = WorkerLine(arena, place.line, bell, pool_bell, channel, longest=place.longest)
    server = Server(slots, programs)
    for program in programs:
        program.share(arena, line.words)
    if place.rows is not None:
        server.attach(Rows(Rings(arena, *place.rows), slots[0], slots[-1] + 1))
    if start.spec.trace is not None:
        server.record(start.spec.trace, start.spec.index, line)
    serve(server, line)
    return 0


def redirect(out: int, err: int) -> None:
    """Replace the standard streams: stdin is empty, stdout the caller's, stderr a pipe to the caller or its own."""
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(fd, target)
        os.close(fd)
    if isinstance(sys.stdout, io.TextIOWrapper):  # printed lines are not held back until a buffer is full
        sys.stdout.reconfigure(line_buffering=True)


def enter(start: Start, entered: Start | None) -> None:
    """Take over the caller's environment variables, directory and import path, before any user code is imported.

    `entered`: the first message of this process's server; changes that packages have made to variables since then stay.
    """
    then = dict(os.environ) if entered is None else entered.environ
    for name in then.keys() - start.environ.keys():
        os.environ.pop(name, None)
    os.environ.update(start.environ.items() - then.items())
    if any(then.get(name) != start.environ.get(name) for name in THREADS):
        _limit_threads(start.environ.get(OF_ALL) or "")
    time.tzset()
    os.chdir(start.cwd)
    if entered is None or entered.path != start.path:
        sys.path[:] = start.path
    current_process().authkey = start.authkey
    _reseed()


def _limit_threads(count: str) -> None:
    """Limit the threads of libraries that were imported before the variables were set, as in a copy of the caller.

    Without threadpoolctl all but torch keep their threads.
    """
    if not count.isdigit():
        return
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(int(count))
    with contextlib.suppress(ImportError):
        from threadpoolctl import threadpool_limits  # type: ignore[import-not-found]

        threadpool_limits(int(count))


def _reseed() -> None:
    """Seed the global generators anew.

    A forked child starts with its parent's generators, all children alike; likewise with generators that a module
    seeded from the system in the server.
    """
    random.seed()
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed()
    for bits in generators:
        bits.state = type(bits)().state


def _keep_freed_memory() -> None:
    """Have the C library keep freed memory, where it has mallopt and the user's environment does not set malloc.

    By default glibc gives the free end of its heap back to the system, and large blocks at once. The next message or
    state then pays for first touches of every page again. With states of 64 KiB that is two thirds of a planning
    worker's time.
    """
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        tell = getattr(ctypes.CDLL(None), "mallopt", None)
        if tell is not None:
            tell(M_TRIM_THRESHOLD, KEPT_BYTES)
            tell(M_MMAP_THRESHOLD, KEPT_BYTES)


def _receive(channel: Channel, count: int) -> None:
    """Receive `count` descriptors that the caller sends along."""
    found: list[int] = []
    while len(found) < count:
        received = channel.recv_wait()
        assert received is not None
        found += received[1]
    Arrived.held = tuple(found)


def _note_slot(crash: int, slot: int) -> None:
    """Note in the crash report which slot is being built, as the worker may die while it builds it."""
    try:
        os.pwrite(crash, b"%8d" % slot, 0)
    except OSError as error:  # a file may not have a byte (ulimit -f 0)
        raise OSError(error.errno, why(error)) from error


def _close(spec: WorkerSpec, programs: list[Any]) -> None:
    """Close the programs that were built, of a worker that never got to work."""
    if programs:
        Server(spec.slots[: len(programs)], programs).close()


def _leave(code: int, run_atexit: bool) -> None:
    """End the process. A process of its own runs its exit handlers; a fork of the caller must not run the caller's."""
    error = sys.exc_info()[1]
    if error is not None and not isinstance(error, EOFError):
        import traceback

        traceback.print_exception(error)
    if run_atexit:
        atexit._run_exitfuncs()
    elif (util := sys.modules.get("multiprocessing.util")) is not None:
        # as a process of multiprocessing ends: items that were put into a queue still get there
        util._run_finalizers(0)
        util._run_finalizers()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # its reader is gone
    if run_atexit:
        ctypes.CDLL(None).fflush(None)  # C's own buffers; a fork would print its caller's lines, too
    os._exit(code)
