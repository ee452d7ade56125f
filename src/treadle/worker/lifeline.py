"""Workers end with the caller, however the caller dies.

The caller holds the write end of a pipe. Each worker leads a process group of its own and holds the read end. When the
caller is gone, the kernel itself kills the worker and its children, even one that is stuck in C with the GIL held. The
read end is set to send SIGKILL to the group when something happens on it (O_ASYNC, F_SETSIG, F_SETOWN). These settings
live on the open file description, so each worker reopens the pipe for one of its own. With a shared one only a single
worker would die. PR_SET_PDEATHSIG is not enough: it fires when the creating *thread* ends.

All this is Linux's. A grandchild that leaves the group (setsid) escapes.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading

_ends: tuple[int, int] | None = None
_lock = threading.Lock()


def read_end() -> int:
    """Return the read end of the process-wide pipe, which workers get. Made at the first call; stays open for life."""
    global _ends
    with _lock:
        if _ends is None:
            _ends = os.pipe()
        return _ends[0]


def _forked() -> None:
    """Close the pipe in a child that the caller forks, which must not keep the workers alive."""
    global _ends, _lock
    _lock = threading.Lock()
    if _ends is not None:
        for fd in _ends:
            os.close(fd)
        _ends = None


os.register_at_fork(after_in_child=_forked)


def hold(fd: int) -> None:
    """Die with the caller. Called in a worker that leads its process group; takes `fd` over."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.close(fd)
    fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(own, select.POLLIN | select.POLLHUP)
    if poll.poll(0):  # the caller died before the settings were in force
        os.killpg(0, signal.SIGKILL)
