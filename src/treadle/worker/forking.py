"""A fork server's own side: it imports modules, forks workers on request, and reports how they ended.

`forkserver.py` has the caller's side, and which servers there are when.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from treadle.worker import lifeline

if TYPE_CHECKING:  # see `forkserver.begin`
    from treadle.wire.channel import Channel
    from treadle.worker.child import Start

BASE = (
    "numpy",
    "gymnasium",
    "gymnasium.envs.classic_control",  # needs nothing else, and is the first environment that most people try
    "cloudpickle",
    "treadle.worker.child",
    "treadle.program.gym_env",
)
DEVICES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")  # how the paths of GPUs begin


@dataclass(frozen=True)
class Spoilt:
    """Reports that a server is of no use. `unfit`: True if the module makes every server unfit that imports it."""

    module: str
    why: str
    unfit: bool


def serve_base(fd: int, life: int) -> None:
    """Run the base server, until the caller is gone."""
    lifeline.hold(life)
    gc.disable()  # imports leave little garbage, and looking for it takes a tenth of their time
    for name in BASE:
        importlib.import_module(name)
    gc.enable()
    from treadle.wire.channel import Channel

    serve(Channel(socket.socket(fileno=fd)), None)


def _preload(channel: Channel) -> NoReturn:
    """Become a server that has imported packages with the caller's environment variables and import path.

    The packages' output goes to the caller's user. Afterwards the descriptors are those of the base server again, and
    hold nothing.
    """
    from treadle.worker import child

    start, (out, err) = child.begin(channel)
    usual = os.dup(1), os.dup(2)
    child.redirect(out, err)
    child.enter(start, None)
    assert isinstance(start.spec, tuple)
    _import_all(channel, start.spec)
    child.redirect(*usual)
    serve(channel, start)


def _import_all(channel: Channel, modules: Iterable[str]) -> None:
    """Import modules, and report each to the caller. Ends the process if one cannot be imported, or makes it unfit."""
    before = _open_files()
    gc.disable()  # as in `serve_base`
    try:
        for name in modules:
            channel.send(("import", name), block=True)
            spoilt = _import(name, before)
            if spoilt is not None:
                channel.send(("import", spoilt), block=True)
                os._exit(0)
        gc.enable()
        gc.collect()
        _find_generators()
        channel.send(("import", frozenset(sys.modules)), block=True)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the caller is gone


def _import(name: str, before: frozenset[str]) -> Spoilt | None:
    """Import one module; return why it makes the server useless, or None. `before`: the files that were open before."""
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - sys.exit included; the worker that needs it has the traceback
        return Spoilt(name, f"{type(error).__name__}: {error}", False)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # else each worker would print it again
    if len(sys._current_frames()) > 1:
        names = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
        return Spoilt(name, f"starts a thread ({', '.join(names[:3]) or 'without a name'})", True)
    for target in _open_files() - before:
        if target.startswith(DEVICES):  # CUDA, for one, does not survive a fork
            return Spoilt(name, f"opens the GPU ({target})", True)
        if target.startswith("socket:"):  # all workers would talk over one connection; an event loop has some, too
            return Spoilt(name, "opens a socket", True)
    return None


def _find_generators() -> None:
    """Give `child` NumPy's generators that modules have made for themselves and seeded from the system."""
    import numpy as np

    from treadle.worker import child

    for each in gc.get_objects():
        kind = type(each)  # not isinstance, which asks a proxy for its __class__: others' code, that may raise or warn
        if issubclass(kind, np.random.Generator | np.random.RandomState):
            bits = each.bit_generator if issubclass(kind, np.random.Generator) else each._bit_generator
            entropy = getattr(getattr(bits, "_seed_seq", None), "entropy", None)
            if isinstance(entropy, int) and entropy >= 2**64:  # the system's entropy has 128 bits
                child.generators.append(bits)


def _open_files() -> frozenset[str]:
    """Return the targets of all open descriptors."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return frozenset(found)


def serve(channel: Channel, entered: Start | None) -> NoReturn:
    """Fork workers on request; never returns. `entered`: this server's first message; None: the base server."""
    gc.freeze()
    with contextlib.suppress(EOFError, OSError):  # the caller is gone, or was interrupted while it waited for an answer
        while (message := channel.recv_wait()) is not None:
            (order, what), fds = message
            if order in ("fork", "server"):
                _import_own(what)
                _fork(channel, fds[0], order, entered)
            elif order == "modules":
                channel.send((order, frozenset(sys.modules)), block=True)
            else:
                channel.send((what, os.waitstatus_to_exitcode(os.waitpid(what, 0)[1])), block=True)
    os._exit(0)


def _import_own(modules: Iterable[str]) -> None:
    new = [name for name in modules if name not in sys.modules]
    for name in new:
        with contextlib.suppress(Exception):  # an extra that is not installed: the worker reports it
            importlib.import_module(name)
    if new:
        gc.freeze()


def _fork(channel: Channel, fd: int, order: str, entered: Start | None) -> None:
    """Fork a worker, or a server, on `fd`, and answer with its pid and pidfd."""
    try:
        pid = os.fork()
    except OSError as error:
        os.close(fd)
        channel.send((order, f"cannot fork a worker: {error}"), block=True)
        return
    if pid == 0:
        channel.close()
        signal.set_wakeup_fd(-1)
        from treadle.worker import child

        child.main(fd, run=_preload if order == "server" else partial(child.work, entered=entered))
    os.close(fd)
    pidfd = os.pidfd_open(pid)  # it stays a zombie until the caller asks for its exit status
    channel.send((order, pid), (pidfd,), block=True)
    os.close(pidfd)
