"""Workers inside the caller: `SerialWorker` (the caller's own thread steps the slots) and `ThreadWorker`.

They cannot be killed, and no deadline can be enforced on them; everything else is the same walk.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from treadle.errors import ClosedPool
from treadle.pool import child
from treadle.pool.line import Line
from treadle.pool.lined import Lined
from treadle.pool.local_channel import LocalChannel
from treadle.pool.messages import CLOSING, ExitReport, Hello, Op, Raised, Reply, Request, WorkerSpec
from treadle.pool.rows import Rows
from treadle.pool.serve import Server, caught


class SerialWorker:
    """Runs its requests when somebody takes the replies. A stream runs one reply further at each `take`."""

    in_caller = True
    pid = None
    channel = None
    line: Line | None = None

    def __init__(self, spec: WorkerSpec, factories: list[Any]) -> None:
        self.spec = spec
        self.report = ExitReport()
        self._programs, self._hello = build_here(spec, factories, in_caller=True)
        self.server = Server(spec.slots, self._programs, in_caller=True, local=True)
        self._requests: deque[Request] = deque()
        self._running: Iterator[Reply] | None = None
        self._stop = self._looks = 0
        self.looked: Callable[[], None] | None = None  # called at every look of a stream: nobody else runs meanwhile
        self._raised: dict[int, Raised] = {}
        self._closed = False

    def fds(self, *, closing: bool = False) -> list[int]:
        return []

    def hello(self) -> Hello | None:
        return self._hello

    def building(self) -> None:
        """Nobody asks: it is built before it is there."""

    def attach(self, rows: Rows) -> None:
        self.server.attach(rows)

    def pack(self, payload: Any) -> None:
        """Nothing travels."""

    def send(self, request: Request, packed: None) -> None:
        self._requests.append(request)

    def take(self) -> Reply | None:
        while True:
            if self._running is None:
                if not self._requests:
                    return None
                request = self._requests.popleft()
                self._running = self.server.handle(request, _Control(self, request.id))
            reply = next(self._running, None)
            if reply is not None:
                return reply
            self._running = None

    def stop(self, id: int) -> None:
        self._stop = id

    def stopped(self, id: int) -> bool:
        self._looks += 1
        if self.looked is not None:
            self.looked()
        return self._stop >= id

    def looks(self) -> int:
        """How often its streams have looked whether to stop."""
        return self._looks

    def ended(self) -> bool:
        return self._closed

    def stack(self, timeout: float = 0.0) -> str:
        return ""

    def ask(self) -> None:
        self._stop = CLOSING
        if self._running is not None:
            self._running.close()  # type: ignore[attr-defined]
            self._running = None
        self._requests.clear()
        if not self._closed:
            self._closed = True
            self._raised = self.server.close()

    def drain(self) -> None:
        """It never waits to send anything."""

    def idle(self) -> bool:
        """Has every request been answered, and every answer been taken?"""
        return self._running is None and not self._requests

    def last_words(self) -> dict[int, Raised]:
        """What its slots raised when they were closed."""
        return self._raised

    def kill(self, number: int) -> None:
        """Nothing can be done."""

    def bury(self, timeout: float = 0.0) -> ExitReport:
        return self.report


class _Control:
    def __init__(self, worker: SerialWorker, id: int) -> None:
        self._worker, self._id = worker, id

    def stopped(self) -> bool:
        return self._worker.stopped(self._id)

    def resets(self, episode: int) -> None:
        """Nobody asks: it does not die alone."""

    def begins(self) -> None:
        """As above."""

    def ends(self) -> None:
        """As above."""


class ThreadWorker(Lined):
    """Drives its server from a thread, over a line in ordinary memory."""

    in_caller = True
    pid = None

    def __init__(self, spec: WorkerSpec, factories: list[Any]) -> None:
        self.spec = spec
        self.report = ExitReport()
        self.channel, self._theirs = LocalChannel.pair()
        self.line: Line | None = None
        self._grounds: queue.SimpleQueue[tuple[Line, Rows | None] | None] = queue.SimpleQueue()
        self._hello: Hello | None = None
        self._building = spec.slots[0]
        self._over = False  # asked instead of Thread.is_alive, which an interrupt can make lie for ever
        self._thread = threading.Thread(
            target=self._run, args=(factories,), name=f"treadle-worker-{spec.index}", daemon=True
        )
        self._thread.start()

    def fds(self, *, closing: bool = False) -> list[int]:
        return []

    def hello(self) -> Hello | None:
        return self._hello

    def building(self) -> int:
        """The slot that it builds, or has built last."""
        return self._building

    def ground_here(self, line: Line, their_line: Line, rows: Rows | None) -> None:
        self.line = line
        self._grounds.put((their_line, rows))

    def send(self, request: Request, packed: Any) -> None:
        assert self.line is not None
        self.line.post(request.id, request.op, request.block, packed)

    def take(self) -> Reply | None:
        return None if self.line is None else self.line.take(0.0)

    def ended(self) -> bool:
        return self._over

    def stack(self, timeout: float = 0.0) -> str:
        import traceback

        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()

    def ask(self) -> None:
        self._grounds.put(None)  # for one that has no ground yet
        if self.line is not None:
            self.line.stop(CLOSING)
            self.line.post(CLOSING, Op.CLOSE)

    def abandon(self) -> None:
        """Nobody wants it: let it end."""
        self.ask()

    def kill(self, number: int) -> None:
        """A thread cannot be killed; it is a daemon and ends with the program."""

    def bury(self, timeout: float = 0.0) -> ExitReport:
        if threading.get_ident() != self._thread.ident:  # where the collector found a pool that nobody closed
            self._thread.join(timeout)
        return self.report

    def _run(self, factories: list[Any]) -> None:
        try:
            self._serve(factories)
        finally:
            self._over = True

    def _serve(self, factories: list[Any]) -> None:
        programs, hello = build_here(self.spec, factories, in_caller=False, begins=partial(setattr, self, "_building"))
        self._hello = hello
        ground = self._grounds.get()
        server = Server(self.spec.slots, programs, in_caller=False, local=True)
        if hello.failed or ground is None:
            server.close()
            return
        line, rows = ground
        if rows is not None:
            server.attach(rows)
        with contextlib.suppress(ClosedPool):  # the pool was dropped, and has not waited for the answer
            child.serve(server, line)


def build_here(
    spec: WorkerSpec, factories: list[Any], *, in_caller: bool, begins: Callable[[int], object] = lambda slot: None
) -> tuple[list[Any], Hello]:
    """Build a worker's programs in this process. `in_caller`: as of `Server`; `begins`: is told each slot."""
    catch = caught(in_caller)
    programs: list[Any] = []
    slot = spec.slots[0]
    try:
        for slot, factory in zip(spec.slots, factories, strict=True):
            begins(slot)
            programs.append(factory())
        return programs, Hello(0, tuple(program.describe() for program in programs))
    except catch as error:  # reported as its slot's failure
        return programs, Hello(0, failed=(slot, Raised.of(error, "init", catch=catch)))
    except BaseException:  # an interrupt: nobody else knows of them
        Server(spec.slots, programs, in_caller=True, local=True).close()
        raise


__all__ = ["SerialWorker", "ThreadWorker", "build_here"]
