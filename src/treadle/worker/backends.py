"""The backends by name: the classes that run a pool's workers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from treadle.errors import UsageError
from treadle.worker import forkserver
from treadle.worker.worker import SerialWorker, Worker

OF_PROCESSES = ("start_method", "preload", "worker_environ", "recycle_after")  # options of processes


def _thread() -> type[Worker]:
    from treadle.worker.thread import ThreadWorker

    return ThreadWorker


def _process() -> type[Worker]:
    from treadle.worker.process import ProcessWorker

    return ProcessWorker


BACKENDS: dict[str, Callable[[], type[Worker]]] = {
    "process": _process,
    "thread": _thread,
    "serial": lambda: SerialWorker,
}


def register(name: str, backend: Callable[[], type[Worker]]) -> None:
    """Make a backend known under a name. `backend` returns its class, and is called by pools that ask for it."""
    BACKENDS[name] = backend


def kind_of(name: Any) -> type[Worker]:
    """Return the class of a backend. Raises UsageError where none has that name."""
    if name not in list(BACKENDS):
        raise UsageError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    return BACKENDS[name]()


def default_backend(given: Mapping[str, Any], *, coroutines: bool = False) -> str:
    """Return the backend where the user has named none: "process".

    Where processes cannot be forked from a server, and no option that is `given` is for processes, one warning is
    logged. The backend is then "thread" for environments of coroutines, else "serial".
    """
    if forkserver.works() or any(given.get(name) is not None for name in OF_PROCESSES):
        return "process"
    _tell_the_price()
    return "thread" if coroutines else "serial"


@cache
def _tell_the_price() -> None:
    logging.getLogger("treadle").warning(
        "worker processes are made for Linux (fork, pidfds), and this is %s. Environments are stepped in this "
        "process, on one core, and one that crashes ends your program; backend='process' is refused",
        sys.platform,
    )
