"""The pool: the caller's side of many workers, which it starts, asks, watches, restarts and closes.

It knows neither environments nor tasks, only programs that describe themselves. `calls.py` has the requests under way;
this file has the pool's arguments, its beginning and its end. Schedules are built on it: `Lockstep` steps all slots at
once.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from time import monotonic
from typing import Any

from treadle.checks import check_names, check_whole, check_workers
from treadle.errors import UsageError, Where
from treadle.interrupts import Closes, Later, undisturbed
from treadle.memory.arena import too_many_files
from treadle.pool import tracing
from treadle.pool.calls import Calls
from treadle.pool.events import Done, Lost, Ready
from treadle.pool.group import FAREWELL, WorkerGroup, partition
from treadle.pool.layout import MemoryLayout
from treadle.wire import bell
from treadle.wire.messages import Op
from treadle.worker import life
from treadle.worker.life import Event, State
from treadle.worker.options import PoolOptions
from treadle.worker.worker import Worker


class Pool(Closes):
    """Many workers, each running some slots.

    Args:
        factories: one callable a slot that builds its `Program` (in its worker). For processes they travel by
            cloudpickle, so lambdas, closures and classes of `__main__` are fine.
        workers: how many workers, the caller not counted; None: as many as cores, at most one a slot. The slots are
            dealt in contiguous runs, the first ones one slot longer where they do not divide evenly.
        inline: how many slots (the first ones) the caller steps itself while its workers step theirs.
        later: how many slots (the last ones) have no workers yet; see `grow`. They are like the others.
        rows: True if this pool steps in lockstep, and so needs rows in the memory. False for pools that only stream.
        blocks: batches that the caller may hold before they are copied.
        options: how workers are run, and what becomes of those that fail; or by keyword, see `PoolOptions`.

    Attributes:
        calls: the requests under way.
        workers: all of them, the caller's own included.
        by_slot: slot -> its worker.
        memory: their memory.
        descriptions: the slots' descriptions of themselves, without slots that came later.
        later: slots that have no workers yet.
        start_seconds: seconds until all workers were ready.

    Raises:
        StartupFailed: a slot could not be built; nothing is left running.
        UsageError, ArenaError.
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], Any]],
        *,
        workers: int | None = None,
        inline: int = 0,
        later: int = 0,
        rows: bool = True,
        blocks: int = 6,
        options: PoolOptions | None = None,
        **given: Any,
    ) -> None:
        check_names(type(self), given, PoolOptions.__dataclass_fields__)
        n = self.n = len(factories)
        self.options = PoolOptions(**given) if options is None else replace(options, **given)
        _check(n, workers, inline, blocks)
        self.policy, self._pid = self.options.policy, os.getpid()
        self._at_end = ExitStack()  # lets go of the memory
        group = self.group = WorkerGroup(self.options)
        self.workers = group.workers
        kind, cores = group.kind, bell.cores()
        if kind.inline:
            inline = n
        self._factories, self.later, self._rows = factories, later, rows
        started = n - later - inline
        shares = partition(started, workers or min(cores, max(1, started)), inline)
        # threads share one interpreter: a thread that keeps trying stops the thread that it waits for
        longest = (0, 0) if kind.in_caller and not kind.inline else bell.who_tries(len(shares), inline, cores, rows)
        _watch_this_process()
        _open.add(self)
        began = monotonic()
        try:
            for slots in shares:
                group.add(slots, factories)
            # without rows nothing is gained by stepping slots together: each slot is a worker that is asked by itself
            for slots in [(s,) for s in range(inline)] if not rows else [tuple(range(inline))] if inline else []:
                group.add(slots, factories, inline=True)
            self.descriptions = group.start()
            self.start_seconds = monotonic() - began
            self.by_slot = {slot: worker for worker in self.workers for slot in worker.slots}

            def lay() -> None:
                self.memory = MemoryLayout(
                    self.descriptions, self.workers, rows=rows, blocks=blocks, longest=longest, later=later
                )
                self._at_end.callback(self.memory.clear)
                for worker in self.workers:
                    worker.join(self.memory.place(worker))

            undisturbed(lay, lambda _: self._at_end.close())
            self.calls = Calls(group, self.memory, self.options)
            self.calls.wear.begin(self.workers)
            if tracing.current is not None:
                tracing.current.attach(self)
        except BaseException as error:
            try:
                group.end_building()
            finally:
                self.close(min(self.options.close_timeout, FAREWELL))
            if (limited := too_many_files(error)) is not None:
                raise limited from error
            raise

    def grow(self, count: int) -> list[Worker]:
        """Start `count` more workers, one for each next slot of those that were left for `later`. See `Calls.extend`.

        Raises OSError or ArenaError where the system refuses; the workers that were started go on.
        """
        first, cores = self.n - self.later, bell.cores()
        with self.group.lock, Later():
            self.check()
            self.later -= count
            added = [self.group.add((slot,), self._factories) for slot in range(first, first + count)]
            self.memory.extend(added, bell.who_tries(len(self.workers) + count, 0, cores, self._rows))
            self.calls.extend(added)
            self.by_slot.update((slot, worker) for worker in added for slot in worker.slots)
        return added

    def ask(self, name: str) -> None:
        """Call a method of its program, by `name`, in every slot of the workers that are alive."""
        for worker in self.workers:
            if worker.state in life.ALIVE:
                asked: dict[int, Any] = dict.fromkeys(worker.slots, (name, (), {}))
                self.calls.submit(worker, Op.CALL, asked, worker.slots, name)

    def answers(self, tag: Any, timeout: float | None = None) -> list[Done | Lost | Ready]:
        """Return all events until no request under the tag is awaited, or until none comes for `timeout` seconds."""
        events: list[Done | Lost | Ready] = []
        while self.calls.awaits(tag) and self.calls.poll(timeout, events.append):
            continue
        return events

    def where(self, slot: int) -> Where:
        """Return the place of a slot, for errors."""
        return self.by_slot[slot].at(slot)

    @property
    def restarts(self) -> tuple[int, ...]:
        """How often each slot's worker was restarted."""
        return tuple(len(worker.restarts) for worker in self.group.in_slot_order() for _ in worker.slots)

    def check(self) -> None:
        """Raise ClosedPool or BrokenPool if the pool can give no more answers, UsageError in a fork of its process."""
        self.calls.check()

    # -- the end -----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.group.closed

    def close(self, timeout: float | None = None) -> None:
        """End all workers: ask, wait, SIGTERM to the groups, 1 s, SIGKILL. Idempotent; from any thread, at any time.

        Takes at most `timeout` (default `close_timeout`) + 1 s, however stuck the workers are.
        """
        if self.group.closed or self._pid != os.getpid():
            return
        with self.group.lock:
            if self.group.closed:
                return
            left: list[Worker] = []
            try:
                self.group.closed = True
                _open.discard(self)
                deadline = monotonic() + (self.options.close_timeout if timeout is None else timeout)
                left = [m for m in self.workers if m.state not in (State.DEAD, State.GONE)]
                for worker in self.workers:
                    if worker.extra:  # it has nothing to close, and reads no requests
                        worker.kill(signal.SIGTERM)
                    worker.see(Event.CLOSE)
                self.group.end(left, deadline)
            except BaseException:  # such as a second Ctrl-C: the wait is over, but no worker stays behind
                self.group.end(left or self.workers, 0.0)
                raise
            finally:
                for worker in self.workers:
                    worker.see(Event.CLOSED)
                    worker.owed.clear()  # also closes what requests took along: the files of broadcasts
                self._at_end.close()

    def __del__(self) -> None:
        if hasattr(self, "group") and not self.group.closed and self._pid == os.getpid():
            import warnings

            warnings.warn("a treadle pool was dropped without close(); its workers are killed", ResourceWarning, 2)
            self.close(0.0)


MOST_BLOCKS = 10_000  # each block is planned by itself


def _check(n: int, workers: int | None, inline: int, blocks: int) -> None:
    if n == 0:
        raise UsageError("a pool needs at least one slot")
    check_workers(workers)
    check_whole(1, MOST_BLOCKS, none=False, blocks=blocks)
    check_whole(0, none=False, inline=inline)
    if inline > n:
        raise UsageError(f"inline must be between 0 and the number of slots ({n}), got {inline!r}")


_open: weakref.WeakSet[Pool] = weakref.WeakSet()  # closed at this process's exit; unusable in its forks


@cache
def _watch_this_process() -> None:
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_in_fork)


def _at_exit() -> None:
    for pool in list(_open):
        pool.close()
    from treadle.worker import forkserver

    forkserver.stop()


def _in_fork() -> None:
    for pool in list(_open):  # they belong to the parent
        pool.group.closed = True  # keeps the fast lane of `step` from being taken
        pool.group.lock = threading.RLock()
