"""Workers in processes of their own: how they are started, watched, asked for their stack, and ended.

There are three ways to start one, all of which end in `child.main` on one socket. `forkserver` (the default) forks a
clean process that has our imports loaded. `spawn` starts a new interpreter, which is slower. `fork` copies the caller.
It is used only on request, and refused while the caller has threads, whose locks the copy would inherit locked.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from treadle.errors import TooManyFiles, UsageError
from treadle.interrupts import Later
from treadle.memory.arena import anonymous_file, text_of
from treadle.wire import carried
from treadle.wire.carried import AT_ONCE
from treadle.wire.channel import Channel, Undecodable
from treadle.wire.line import Line
from treadle.wire.messages import CLOSING, ExitReport, Hello, Op, Raised, WorkerSpec, signal_name
from treadle.worker import child, forkserver, lifeline, modules
from treadle.worker.options import PoolOptions, environ_of, one_thread
from treadle.worker.place import Place
from treadle.worker.stderr import THREAD_NAME, StderrReader, Tail
from treadle.worker.worker import Common, Worker

START_METHODS = ("forkserver", "spawn", "fork")
PAYLOAD_TIMEOUT = 30.0  # seconds for the rest of a message that a worker has announced
STACK_SECONDS = 2.0  # seconds in which a worker may tell its stack; one that is stopped does not
OWN, CGROUP, VMSTAT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"), Path("/proc/vmstat")

Kills = dict[str, int]  # file -> how many processes it counts as killed; files without such a count are left out


@dataclass(frozen=True)
class Child:
    """A started process. `reap()` returns how it ended, as os.waitstatus_to_exitcode does; None: unknown."""

    pid: int
    pidfd: int
    reap: Callable[[], int | None]


class ProcessCommon(Common):
    """The start, the preloaded modules and the reader of stderr, which the worker processes of a pool share.

    Attributes:
        reader: of their stderr, and with `stdout_too` of their stdout; None: no worker has been started.
        carriers: worker's index -> the files that go along to it, and to each successor.
    """

    def __init__(self, options: PoolOptions) -> None:
        super().__init__(options)
        if not forkserver.works():
            raise UsageError("worker processes want pidfds (Linux): use backend='serial', or 'thread' for coroutines")
        self.start_method = options.start_method or "forkserver"
        check_start_method(self.start_method)
        self.stdout_too = options.prints or options.worker_output == "keep"
        self.reader: StderrReader | None = None
        self.carriers: dict[int, carried.Carrier] = {}
        self.preload: tuple[str, ...] = ()  # modules of others that the fork server has imported, as far as it could
        self.ours: tuple[str, ...] = ()  # modules of this package, which the fork server imports
        self._pickles: dict[bytes, None] = {}

    def spec(self, index: int, slots: tuple[int, ...], factories: Sequence[Callable[[], Any]]) -> WorkerSpec:
        programs, carrier = carried.pickled(list(factories), slots, self.start_method)
        self.carriers[index] = carrier
        self._pickles[programs] = None
        return WorkerSpec(index, slots, programs, len(carrier.files))

    def prepare(self) -> None:
        if self.start_method != "forkserver" or self.options.worker_environ is not None:
            return
        preload, found = self.options.preload, modules.named(self._pickles)
        asked = modules.named_by_multiprocessing() if preload is None else preload
        self.ours = tuple(filter(modules.is_ours, found))
        users = [name for name in asked if name not in modules.NEVER]
        if preload is None:
            users += modules.worth_preloading(name for name in found if not modules.is_ours(name))
        self.preload = tuple(dict.fromkeys(users))
        if not self.options.brief:
            self.preload = forkserver.prepare(self.preload, self.options.start_timeout, asked=preload is not None)

    def close(self) -> None:
        for carrier in self.carriers.values():
            carrier.close()
        if self.reader is not None:
            self.reader.close()


class ProcessWorker(Worker):
    """One worker process. Not for two threads at once."""

    shared, payload_timeout = True, PAYLOAD_TIMEOUT
    _crash = -1  # the crash report's descriptor: see `child.Start`
    _child = Child(-1, -1, lambda: None)

    @classmethod
    def common_of(cls, options: PoolOptions) -> Common:
        return ProcessCommon(options)

    @property
    def starts_here(self) -> bool:  # type: ignore[override]  # the caller's own thread makes a copy of the caller
        return bool(self.common.start_method == "fork")

    def start(self) -> None:
        self.line = None
        self.report = ExitReport()
        self._forced = self.unreachable = self._ended = self._reaped = False
        self._made_by = os.getpid()
        with Later():
            self.common.reader = self.common.reader or StderrReader(shown=self.common.options.worker_output != "keep")
        self._reader = self.common.reader
        self._tail: Tail | None = None
        self._kills = kills()
        self._watch = select.poll()  # its pidfd
        self._child = type(self)._child  # the former process is buried, and its number may be another's
        try:
            self._crash = anonymous_file("treadle-crash")
            os.lseek(self._crash, child.REPORT, os.SEEK_SET)
            self._child = forkserver.insist(self._launch)
            self._watch.register(self._child.pidfd, select.POLLIN)
            self._greet(self.common.carriers[self.index].files)
        except BaseException:  # no more descriptors, for example: nothing of it stays behind
            self.abandon()
            raise
        self.pid = self._child.pid

    def _launch(self) -> Child:
        """Start a process on a channel of its own. A process that a dying server has forked finds its end closed."""
        self.channel, theirs = Channel.pair()
        try:
            with theirs:
                return _started(theirs, self.common)
        except BaseException:
            self.channel.close()
            raise

    def _greet(self, files: list[io.FileIO]) -> None:
        """Send the first message with the worker's stdout, stderr, lifeline and crash file, and the carrier's files."""
        environ = environ_of(self.common.options.worker_environ, self.index)
        start = child.Start.now(self.spec, environ)
        theirs: list[int] = []
        try:
            read, err = os.pipe()
            theirs.append(err)
            self._tail = self._reader.add(read, _prefix(self.spec.slots))
            theirs.insert(0, os.dup(err) if self.common.stdout_too else forkserver.usable(1))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died at once: `hello` will find out
                self.channel.send(start, (lifeline.read_end(), *theirs, self._crash))
                for at in range(0, len(files), AT_ONCE):
                    self.channel.send(None, tuple(file.fileno() for file in files[at : at + AT_ONCE]))
        finally:
            for fd in theirs:
                os.close(fd)

    def abandon(self) -> None:
        if self._child.pid > 0:
            self.kill(signal.SIGKILL)
            self.bury()
            return
        self.channel.close()
        crash, self._crash = self._crash, -1
        if crash >= 0:
            os.close(crash)

    def fds(self, *, closing: bool = False) -> list[int]:
        """Return the descriptors to poll while it starts, or while it is to end.

        An end of file on the channel means nothing while it ends.
        """
        found = [self._child.pidfd] if closing else [self.channel.fileno(), self._child.pidfd]
        return [fd for fd in found if fd >= 0]

    def hello(self) -> Hello | None:
        try:
            self.channel.pump()
            message = self.channel.recv()
        except Undecodable as undecodable:  # its spaces, for example: of a module that cannot be imported here
            return Hello(self._child.pid, failed=(self.spec.slots[0], Raised.of(undecodable.error, "init")))
        except TooManyFiles:  # the caller's limit: a large hello needs a descriptor, and is lost
            raise
        except (EOFError, OSError):
            return None
        return None if message is None else message[0]

    def building(self) -> int | None:
        """Return the slot that it builds, or has built last; None while it has not begun and has several."""
        slots = self.spec.slots
        said = os.pread(self._crash, child.REPORT, 0).strip(b"\0 ") if self._crash >= 0 else b""
        return int(said) if said else slots[0] if len(slots) == 1 else None

    def join(self, place: Place) -> None:
        bells, longest = (place.bell, place.pool_bell), place.longest
        line = Line(place.arena, place.line, *bells, self.channel, self.slots, longest=longest)
        line.clear()
        self.line = line
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it dies: `ended` will find out
            self.channel.send(place.told, place.fds)

    def ended(self) -> bool:
        if self._ended:
            return True
        self._ended = bool(self._watch.poll(0))
        return self._ended

    def stack(self) -> str:
        """Return its Python stack now, also if it holds the GIL in C; "" if it does not answer (stopped, dying)."""
        before = max(child.REPORT, os.fstat(self._crash).st_size)
        try:
            os.kill(self._child.pid, child.STACK_SIGNAL)
        except ProcessLookupError:
            return ""
        deadline, size = time.monotonic() + STACK_SECONDS, before
        while time.monotonic() < deadline:
            last, size = size, os.fstat(self._crash).st_size
            if size > before and size == last:
                break
            time.sleep(0.01)
        return os.pread(self._crash, 65536, before).decode("utf-8", "replace").strip()

    def ask(self) -> None:
        if self.line is None:
            self.channel.close()
            return
        try:
            self.line.stop(CLOSING)
            self.line.post(CLOSING, Op.CLOSE)
        except OSError:
            return  # dying already

    def kill(self, number: int) -> None:
        """Signal its whole process group."""
        if self._reaped or not self._has_its_number():
            return
        self._forced = True
        try:
            os.killpg(self._child.pid, number)
        except (ProcessLookupError, PermissionError):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, number)  # so young that it does not lead a group yet

    def _has_its_number(self) -> bool:
        """Return True if the process is still there, if only as a zombie.

        When other code has reaped it (because its fork server died, for example), its number may be another process's
        by now. It must not be signalled.
        """
        try:
            signal.pidfd_send_signal(self._child.pidfd, 0)
        except ProcessLookupError:
            return False
        return True

    def bury(self, timeout: float = 1.0) -> ExitReport:
        """Learn how it ended, kill what it left in its group, and close every descriptor. Called after its end."""
        if self._crash < 0:
            return self.report
        if not self._reaped:
            if self._has_its_number():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._child.pid, signal.SIGKILL)  # its children that outlived it
            status = self._child.reap() if forkserver.wait_readable([self._child.pidfd], timeout) else None
            lines = self._reader.finish(self._tail) if self._tail is not None else ()
            stack = os.pread(self._crash, 65536, child.REPORT).decode("utf-8", "replace").strip()
            killed = status == -signal.SIGKILL and not self._forced
            self.report = ExitReport(
                status if status is not None and status >= 0 else None,
                signal_name(-status) if status is not None and status < 0 else None,
                lines,
                _fatal(stack),
                self._forced,
                risen(self._kills, kills()) if killed and self._kills else None,
                lines=0 if self._tail is None else self._tail.count,
            )
            self._ended = self._reaped = True
        # noted as closed before they are closed: after an interrupt between the two, this is called again
        self.line = None
        self.channel.close()
        pidfd, self._child = self._child.pidfd, replace(self._child, pidfd=-1)
        if pidfd >= 0:
            os.close(pidfd)
        crash, self._crash = self._crash, -1
        os.close(crash)
        return self.report

    def __del__(self) -> None:
        if self._crash >= 0 and self._made_by == os.getpid():
            self.abandon()  # an interrupt came before the pool had the worker


def _fatal(text: str) -> str:
    """Return the dump of a fatal signal; earlier dumps that were asked for have not caused the death."""
    at = text.rfind("Fatal Python error")
    return text[at:] if at >= 0 else ""


def _prefix(slots: tuple[int, ...]) -> str:
    return f"[slot {slots[0]}]" if len(slots) == 1 else f"[slots {slots[0]}-{slots[-1]}]"


# -- launching -------------------------------------------------------------------------------------------------------


def check_start_method(start_method: str) -> None:
    if start_method not in START_METHODS:
        # multiprocessing's own words, too
        names = ", ".join(START_METHODS)
        raise UsageError(f"start_method must be one of {names}: cannot find context for {start_method!r}")
    if start_method == "fork":
        # a thread that `threading` did not start is listed once it has asked for its own name, and stays listed at its
        # end
        running = sys._current_frames()
        others = [t for t in threading.enumerate() if t is not threading.main_thread() and t.ident in running]
        threads = [t.name for t in others if t.name != THREAD_NAME]
        if threads:
            raise UsageError(
                f"start_method='fork' copies this process, and it has other threads ({', '.join(threads[:5])}): their "
                "locks would be copied locked. Use 'forkserver' (the default) or 'spawn'"
            )


def _started(sock: Any, common: ProcessCommon) -> Child:
    """Start a process on `sock`."""
    if common.start_method == "forkserver":
        server = forkserver.server(common.preload)
        pid, pidfd = server.fork(sock, common.ours)
        return Child(pid, pidfd, partial(server.status, pid))
    if common.start_method == "spawn":
        process = subprocess.Popen(
            forkserver.bootstrap("treadle.worker.child", f"main({sock.fileno()})"),
            pass_fds=(sock.fileno(),),
            stdin=subprocess.DEVNULL,
            env=one_thread(os.environ),
        )
        process.returncode = 0  # `waited` waits for it
        return Child(process.pid, os.pidfd_open(process.pid), partial(forkserver.waited, process.pid))
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _after_fork()
        _only(sock.fileno())
        child.main(sock.fileno(), forked=True)
    return Child(pid, os.pidfd_open(pid), partial(forkserver.waited, pid))


def _after_fork() -> None:
    """Do in a forked child what multiprocessing does in its own, so that a manager's proxies connect anew."""
    from multiprocessing import util

    util._finalizer_registry.clear()  # type: ignore[attr-defined]  # they are the caller's
    util._run_after_forkers()  # type: ignore[attr-defined]  # before descriptors are closed: it closes connections


def _only(keep: int) -> None:
    """Close in a forked child every pipe, socket and memory file of this package that the caller held."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd <= 2 or fd == keep:
            continue
        try:
            if not os.get_inheritable(fd) and os.readlink(f"/proc/self/fd/{fd}").startswith(("socket:", "pipe:")):
                os.close(fd)
        except OSError:
            continue  # the listing's own descriptor


# -- out of memory? --------------------------------------------------------------------------------------------------
# A worker that the out-of-memory killer ends is gone by SIGKILL, as if killed by hand, and can report nothing. But the
# kernel counts: for a control group (`memory.events` or, of version 1, `memory.oom_control`) and for the machine
# (`/proc/vmstat`); and it counts before it sends the signal.


def kills() -> Kills:
    """Return the counters as they are now."""
    found = {}
    for path in (*_group_files(), VMSTAT):
        count = _count(path)
        if count is not None:
            found[str(path)] = count
    return found


def risen(before: Kills, now: Kills) -> str:
    """Return the first counter that has risen, in words; "" when none has."""
    for path, count in now.items():
        if count > before.get(path, count):
            return f"the kernel counts {count} out-of-memory kills in {path}, before it started {before[path]}"
    return ""


def _group_files() -> list[Path]:
    """Return the counter files of this process's groups: under the group's name, or at the root as in a container."""
    files = []
    for line in text_of(OWN).splitlines():
        _, controllers, name = line.split(":", 2)
        if not controllers:
            folders, file = (CGROUP / name.lstrip("/"), CGROUP), "memory.events"
        elif "memory" in controllers.split(","):
            folders, file = (CGROUP / "memory" / name.lstrip("/"), CGROUP / "memory"), "memory.oom_control"
        else:
            continue
        files.append(next((folder / file for folder in folders if (folder / file).exists()), folders[0] / file))
    return files


def _count(path: Path) -> int | None:
    for line in text_of(path).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None
