"""The pool: the caller's side of many workers. It starts, sends, receives, watches, restarts and closes; it knows
neither environments nor tasks, only programs that describe themselves.

What it does is in `dispatch.py`; here are its arguments, and the schedule that most of its users want, lockstep.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from treadle.pool.batch import Batch
from treadle.pool.dispatch import BACKENDS, Dispatch
from treadle.pool.lockstep import Lockstep


class Pool(Dispatch):
    """Many workers, each running some slots.

    Args:
        factories: one callable a slot that builds its `Program` (in its worker). For processes they travel by
            cloudpickle, so lambdas, closures and classes of `__main__` are fine.
        backend: "process", "thread" or "serial" (everything in the caller).
        workers: how many workers, the caller not counted; None: as many as cores, at most one a slot. The slots are
            dealt in contiguous runs, the first ones one slot longer where it does not come out even.
        inline: how many slots (the first ones) the caller steps itself while its workers step theirs.
        start_method: "forkserver" (default on Linux), "spawn" or "fork".
        preload: modules that the fork server imports once for all workers. None: those that the factories, and what
            they hold, come from, and those given to `set_forkserver_preload` of a multiprocessing context; (): none of
            users'. Nothing of it is ever stale: see `treadle.pool.forkserver`.
        start_timeout: seconds for all workers together to build their slots (and for a restarted one).
        step_timeout: seconds for one request of a worker; None: no limit (one warning after a minute). A worker that
            streams is killed when it does not get on for so long. For slots in the caller's own process (serial,
            inline, thread) it is measured and not enforced: see `overruns`.
        close_timeout: seconds for a clean end; `close` takes at most one second more.
        on_failure: "raise", "restart" or "drop" - what a worker's death leads to.
        max_restarts: per worker in ten minutes; None: as often as it takes, unless ten in a row bring no answer.
        worker_output: "prefix": stderr of worker processes goes through the caller, "[slot 3]" before each line;
            "label": their stdout goes the same way, to the caller's stderr; "keep": as "label", but it is shown only in
            errors; "raw": as is.
        rows: does this pool step in lockstep (and so need rows in the arena)? False for pools that only stream.
        copy: False: every step's batch lies in the same memory.
        blocks: batches that the caller may hold before they are copied.

    Raises:
        StartupFailed: a slot could not be built; nothing is left running.
        UsageError, ArenaError.
    """

    @cached_property
    def lockstep(self) -> Lockstep:
        """The lockstep schedule over this pool's slots. Raises UsageError when it was made with rows=False."""
        return Lockstep(self)

    def reset(self, *args: Any, **kwargs: Any) -> Batch:
        """See `Lockstep.reset`."""
        return self.lockstep.reset(*args, **kwargs)

    @cached_property
    def step(self) -> Callable[[Any], Batch]:
        """`step(actions) -> Batch`; see `Lockstep`."""
        return self.lockstep.step


__all__ = ["BACKENDS", "Pool"]
