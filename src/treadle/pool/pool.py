"""The pool: the caller's side of many workers. It starts, asks, watches, restarts and closes them; it knows neither
environments nor tasks, only programs that describe themselves.

What is under way is in `calls.py`; here are its arguments, its beginning and its end, and the schedule that most of its
users want, lockstep.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from numbers import Real
from time import monotonic
from typing import Any, Self

from treadle.errors import UsageError, WorkerError
from treadle.pool import bell, open_pools
from treadle.pool.arena import too_many_files
from treadle.pool.batch import Batch
from treadle.pool.calls import Calls
from treadle.pool.failure import Policy
from treadle.pool.ground import Grounding
from treadle.pool.life import Event, State
from treadle.pool.lockstep import Lockstep
from treadle.pool.member import Member
from treadle.pool.roster import FAREWELL, Roster, partition

BACKENDS = ("process", "thread", "serial")


class Pool:
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

    def __init__(
        self,
        factories: Sequence[Callable[[], Any]],
        *,
        backend: str = "process",
        workers: int | None = None,
        inline: int = 0,
        start_method: str | None = None,
        preload: Sequence[str] | None = None,
        start_timeout: float = 120.0,
        step_timeout: float | None = None,
        close_timeout: float = 5.0,
        on_failure: str = "raise",
        max_restarts: int | None = 3,
        worker_output: str = "prefix",
        rows: bool = True,
        copy: bool = True,
        blocks: int = 6,
    ) -> None:
        self.n = len(factories)
        _check(factories, backend, workers, inline, on_failure, worker_output)
        check_seconds("step_timeout", step_timeout, none=True)
        check_seconds("start_timeout", start_timeout)
        check_seconds("close_timeout", close_timeout, zero=True)
        if backend == "process":
            from treadle.pool import process

            start_method = start_method or process.default_start_method()
            process.check_start_method(start_method)
        if inline == self.n:  # no worker, so nothing that workers need
            backend = "serial"
        self.backend, self.start_method = backend, start_method
        self.close_timeout, self.policy, self.max_restarts = close_timeout, Policy(on_failure), max_restarts
        self._pid = os.getpid()
        cores = bell.cores()
        inline = self.n if backend == "serial" else inline
        shares = partition(self.n - inline, workers or min(cores, max(1, self.n - inline)), inline)
        # threads share one interpreter: the one that tries keeps the one it waits for from running
        longest = (0, 0) if backend == "thread" else bell.who_tries(len(shares), inline, cores, rows)
        self.grounding = Grounding(self.n, rows=rows, copy=copy, blocks=blocks, shared=backend == "process")
        self.roster = Roster(backend, start_method, preload, self.grounding, longest, start_timeout)
        self.members = self.roster.members
        self.calls = Calls(
            self.roster,
            self.grounding,
            policy=self.policy,
            max_restarts=max_restarts,
            step_timeout=step_timeout,
            remote=backend != "serial" and not inline,
        )
        open_pools.note(self)
        try:
            self.roster.equip(worker_output)
            for index, slots in enumerate(shares):
                self.roster.add(index, slots, [factories[s] for s in slots])
            # without rows nothing is gained by stepping slots together, and each is a worker that is asked by itself
            mine = [(s,) for s in range(inline)] if not rows else [tuple(range(inline))] if inline else []
            for index, slots in enumerate(mine, len(shares)):
                self.roster.add(index, slots, [factories[s] for s in slots], inline=True)
            self.roster.launch()
            self.descriptions = self.roster.start()
            self.calls.begin(longest[0])
        except BaseException as error:
            try:
                self.roster.end_building()
            finally:
                self.close(min(self.close_timeout, FAREWELL))
            if (limited := too_many_files(error)) is not None:
                raise limited from error
            raise

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

    def in_slot_order(self) -> list[Member]:
        return self.roster.in_slot_order()

    @property
    def restarts(self) -> tuple[int, ...]:
        """How often each slot's worker was started anew."""
        return tuple(len(member.restarts) for member in self.in_slot_order() for _ in member.slots)

    @property
    def overruns(self) -> int:
        """Requests that took longer than step_timeout where it cannot be enforced."""
        return self.calls.overruns

    @property
    def broken(self) -> WorkerError | None:
        """What has ended it."""
        return self.calls.broken

    def check(self) -> None:
        """Raise ClosedPool or BrokenPool when there is nothing more to be had."""
        self.calls.check()

    # -- the end -----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.calls.closed

    def disown(self) -> None:
        """In a fork: it belongs to the parent."""
        self.calls.closed = True  # what keeps the fast lane of `step` from being taken
        self.calls.lock = threading.RLock()

    def close(self, timeout: float | None = None) -> None:
        """End all workers: ask, wait, SIGTERM to the groups, 1 s, SIGKILL. Idempotent; from any thread, at any time.

        Takes at most `timeout` (default `close_timeout`) + 1 s, however stuck the workers are.
        """
        if self.calls.closed or self._pid != os.getpid():
            return
        with self.calls.lock:
            if self.calls.closed:
                return
            left: list[Member] = []
            try:
                self.calls.closed = True
                open_pools.forget(self)
                deadline = monotonic() + (self.close_timeout if timeout is None else timeout)
                left = [m for m in self.members if m.state not in (State.DEAD, State.GONE)]
                for member in self.members:
                    member.see(Event.CLOSE)
                self.roster.end(left, deadline)
            except BaseException:  # a second Ctrl-C, say: no more patience, but nothing stays behind
                self.roster.end(left or self.members, 0.0)
                raise
            finally:
                for member in self.members:
                    member.see(Event.CLOSED)
                    member.owed.clear()  # and with it what requests took along: the files of broadcasts
                self.grounding.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "calls") and not self.calls.closed and self._pid == os.getpid():
            import warnings

            warnings.warn("a treadle pool was dropped without close(); its workers are killed", ResourceWarning, 2)
            self.close(0.0)


def _check(factories: Any, backend: str, workers: int | None, inline: int, on_failure: str, worker_output: str) -> None:
    n = len(factories)
    if n == 0:
        raise UsageError("a pool needs at least one slot")
    if backend not in BACKENDS:
        raise UsageError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise UsageError(f"workers must be a positive integer or None, got {workers!r}")
    if not 0 <= inline <= n:
        raise UsageError(f"inline must be between 0 and the number of slots ({n}), got {inline!r}")
    if on_failure not in {p.value for p in Policy}:
        raise UsageError(f"on_failure must be 'raise', 'restart' or 'drop', got {on_failure!r}")
    if worker_output not in ("prefix", "label", "keep", "raw"):
        raise UsageError(f"worker_output must be 'prefix', 'label', 'keep' or 'raw', got {worker_output!r}")


def check_seconds(name: str, seconds: Any, *, none: bool = False, zero: bool = False) -> None:
    """Raises UsageError for what is no time to wait."""
    if none and seconds is None:
        return
    if (
        not isinstance(seconds, Real)
        or isinstance(seconds, bool)
        or not (float(seconds) > 0 or (zero and seconds == 0))
    ):
        some = " or None" if none else ""
        raise UsageError(f"{name} must be {'at least' if zero else 'more than'} 0 seconds{some}, got {seconds!r}")


__all__ = ["BACKENDS", "Pool", "check_seconds"]
