"""How workers are run: options of every face, checked here, once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from treadle.checks import check_seconds, check_whole, ends_of, several, suggests
from treadle.errors import UsageError
from treadle.worker.life import RestartPolicy

WorkerEnviron = Mapping[str, str | None] | Callable[[int], Mapping[str, str | None]] | None
MOST_WORKERS = 128  # processes for environments that wait, where the user gives no number: each has its own memory
WORKER_OUTPUTS = ("prefix", "keep")
AUTO = "auto"
OF_ALL = "OMP_NUM_THREADS"
THREADS = (OF_ALL, "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
EXAMPLE = "WorkerOptions(start_timeout=300)"


@suggests
@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How workers are run.

    Every interface that starts workers takes it as `worker_options`, beside `workers`, `step_timeout` and `on_failure`.

    Attributes:
        backend: "process", "thread" or "serial" (everything in the caller), or a registered name. None: "process"; on
            other systems than Linux see README. For samplers it is refused, since their class decides.
        start_method: start method of worker processes: "forkserver", "spawn" or "fork". None: the default, which is
            "forkserver" on Linux.
        preload: names of modules that the fork server imports once for all workers. None: installed packages that the
            environment factories (and objects in them) come from or refer to. Also the modules given to
            multiprocessing's `set_forkserver_preload`. (): no modules of users. See `treadle.worker.modules`.
        start_timeout: seconds for all workers together to build their slots, and for each restarted worker.
        max_restarts: largest number of restarts of each worker in ten minutes. None: unlimited, unless ten restarts in
            a row bring no answer. With "auto" it is None for `collect`, `collect_dataset` and `evaluate`, which make
            lost episodes again; else 3.
        worker_output: "prefix": stderr of worker processes goes through the caller, with "[slot 3]" before each line. A
            warning that several workers give is shown once (see docs/faults.md). "keep": their stderr and stdout are
            shown only in errors.
        worker_environ: environment variables of worker processes beside the caller's, or a function of the worker's
            index that returns them. For example {"CUDA_VISIBLE_DEVICES": "", "MUJOCO_GL": "osmesa"}; the value None
            removes a variable. They are set before any of the users' modules is imported, so nothing is preloaded.
            Libraries have one thread in workers unless a variable such as OMP_NUM_THREADS, here or in the caller, says
            otherwise.
        recorder: True: each failure comes with a repro, which `treadle.replay` plays again. With "full" the repro also
            has a check sum of every observation, where the interface supports that. False: nothing is recorded.
        recycle_after: limit at which a worker process is replaced, between two episodes and with nothing lost. A whole
            number: episodes of one process, for simulators that wear out. A text such as "2GB" or "500 MiB": private
            memory of one process (without the pool's shared memory), on Linux. A tuple of both, such as (500, "2GB"):
            whichever is reached first. The log has a line, and no restart is counted. `docs/faults.md` says when each
            interface replaces a worker. None: never.

    Raises:
        UsageError: a field makes no sense.
    """

    backend: str | None = None
    start_method: str | None = None
    preload: Sequence[str] | None = None
    start_timeout: float = 120.0
    max_restarts: int | str | None = AUTO
    worker_output: str = "prefix"
    worker_environ: WorkerEnviron = None
    recorder: bool | str = True
    recycle_after: int | str | tuple[int, str] | None = None

    def __post_init__(self) -> None:
        if self.worker_output not in WORKER_OUTPUTS:
            raise UsageError(f"worker_output must be 'prefix' or 'keep', got {self.worker_output!r}")
        if self.recorder not in (True, False, "full"):
            raise UsageError(f"recorder must be True, False or 'full', got {self.recorder!r}")
        if self.worker_environ is not None:
            if self.backend in ("thread", "serial") or self.start_method == "fork":
                here = self.backend if self.backend in ("thread", "serial") else "start_method='fork'"
                raise UsageError(f"worker_environ is for processes that begin anew, not for {here}")
            if self.preload:
                raise UsageError("worker_environ is set before anything is imported: it cannot go with preload")
            if not callable(self.worker_environ):
                check_environ(self.worker_environ)
        if self.preload is not None:
            modules = several("preload", self.preload, lambda one: isinstance(one, str), "names of modules")
            object.__setattr__(self, "preload", modules)
        if self.max_restarts != AUTO:
            check_whole(0, max_restarts=self.max_restarts)
        if ends_of(self.recycle_after)[1] is not None and not os.path.exists("/proc/self/statm"):
            raise UsageError("recycle_after a size needs /proc/PID/statm, which holds a process's private memory")
        if self.recycle_after is not None and self.backend in ("thread", "serial"):
            raise UsageError("recycle_after is for processes, which can be replaced")
        check_seconds("start_timeout", self.start_timeout)


@dataclass(frozen=True, kw_only=True)
class PoolOptions(WorkerOptions):
    """How a pool's workers are run, and what becomes of those that fail.

    Attributes:
        close_timeout: seconds for a clean end; `close` takes at most one second more.
        step_timeout: seconds for one request of a worker; None: no limit (one warning after a minute). A worker that
            streams is killed when it does not get on for so long. A thread cannot be killed: the methods of its
            environments must be coroutines, which are cancelled; other environments are refused. For slots in the
            caller's own thread (serial, inline), and in threads with on_failure "raise", it is measured and not
            enforced: see `Calls.overruns`.
        on_failure: "raise", "restart" or "drop": what a worker's death leads to.
        placement: set by faces: of workers on nodes of a cluster, where the backend has any, `treadle.nodes.placing`.
        prints: set by faces: the stdout of workers goes where their stderr goes, to the caller's stderr.
        brief: set by faces: the pool is over in a moment, so no fork server is made for it. A server that has imported
            its modules already is used.

    Raises:
        UsageError: a field makes no sense.
    """

    backend: str = "process"
    max_restarts: int | None = 3
    step_timeout: float | None = None
    on_failure: str = "raise"
    close_timeout: float = 5.0
    placement: Any = None
    prints: bool = False
    brief: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on_failure not in [each.value for each in RestartPolicy]:
            raise UsageError(f"on_failure must be 'raise', 'restart' or 'drop', got {self.on_failure!r}")
        if self.placement is not None and self.backend in ("process", "thread", "serial"):
            raise UsageError(f"placement is for workers on nodes of a cluster, not for backend={self.backend!r}")
        check_seconds("step_timeout", self.step_timeout, none=True)
        check_seconds("close_timeout", self.close_timeout, zero=True)

    @property
    def policy(self) -> RestartPolicy:
        return RestartPolicy(self.on_failure)


def chosen(given: WorkerOptions | None, **elsewhere: str) -> dict[str, Any]:
    """Return the fields of a face's `worker_options` that differ from the defaults; the face chooses the others.

    `elsewhere`: fields that the face takes in another place -> that place. Raises UsageError for these, and for other
    objects.
    """
    if given is None:
        return {}
    if not isinstance(given, WorkerOptions):
        raise UsageError(f"worker_options is a treadle.WorkerOptions such as {EXAMPLE}, or None, got {given!r}")
    found = {each.name: getattr(given, each.name) for each in fields(WorkerOptions)}
    found = {name: value for name, value in found.items() if value != getattr(WorkerOptions, name)}
    for name in found.keys() & elsewhere.keys():
        raise UsageError(f"{name} of worker_options cannot be given here: {elsewhere[name]}")
    return found


def started_by(given: WorkerOptions | None, start_method: str | None, name: str) -> WorkerOptions | None:
    """Return the options of a face that takes the start method by a name of its own. Raises UsageError for both."""
    if start_method is None:
        return given
    return WorkerOptions(start_method=start_method, **chosen(given, start_method=f"{name}= says it"))


def environ_of(given: WorkerEnviron, index: int) -> dict[str, str]:
    """Return the environment variables of a worker. Raises UsageError."""
    mine = given(index) if callable(given) else given
    check_environ(mine or {})
    found = one_thread({**os.environ, **(mine or {})})
    return {name: value for name, value in found.items() if value is not None}


def one_thread(environ: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables, with one thread for each library whose number of threads they do not set.

    There are as many workers as cores.
    """
    others = THREADS if OF_ALL not in environ else ()  # libraries read it when their own variable is not set
    return {**dict.fromkeys(others, "1"), **environ}


def check_environ(given: Any) -> None:
    """Raise UsageError for objects other than environment variables."""
    texts = isinstance(given, Mapping) and all(
        isinstance(name, str) and isinstance(value, str | None) for name, value in given.items()
    )
    if not texts:
        raise UsageError(f"worker_environ is a dict of texts (or None), or a function that returns one, got {given!r}")
