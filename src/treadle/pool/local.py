"""Workers that are threads of the caller's. They cannot be killed, and no deadline can be enforced on them; everything
else is the same walk.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from functools import partial

from treadle.errors import ClosedPool
from treadle.pool import bell, child
from treadle.pool.layout import MemoryLayout
from treadle.pool.line import Line
from treadle.pool.local_channel import LocalChannel
from treadle.pool.messages import CLOSING, ExitReport, Hello, Op, Reply
from treadle.pool.rows import Rows
from treadle.pool.serve import Server
from treadle.pool.worker import Worker, build_here


class ThreadWorker(Worker):
    """Drives its server from a thread, over a line in ordinary memory."""

    in_caller = True

    def start(self) -> None:
        self.channel, self._theirs = LocalChannel.pair()
        self.line = None
        self._places: queue.SimpleQueue[tuple[Line, Rows | None] | None] = queue.SimpleQueue()
        self._hello: Hello | None = None
        self._building = self.slots[0]
        self._over = False  # asked instead of Thread.is_alive, which an interrupt can make lie for ever
        self._thread = threading.Thread(target=self._run, name=f"treadle-worker-{self.index}", daemon=True)
        self._thread.start()

    def hello(self) -> Hello | None:
        return self._hello

    def building(self) -> int:
        return self._building

    def join(self, memory: MemoryLayout) -> None:
        fields, bells = memory.lines[self.index], (bell.local_bell(), memory.pool_bell)
        line = Line(memory.arena, fields, *bells, self.channel, self.slots)
        line.clear()
        theirs = Line(memory.arena, fields, *bells, self._theirs, self.slots)
        self.line = line
        self._places.put((theirs, None if memory.rows is None else memory.rows.of(self)))

    def take(self) -> Reply | None:
        return None if self.line is None else self.line.take(0.0)

    def ended(self) -> bool:
        return self._over

    def stack(self) -> str:
        import traceback

        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()

    def ask(self) -> None:
        self._places.put(None)  # for one that has not joined yet
        if self.line is not None:
            self.line.stop(CLOSING)
            self.line.post(CLOSING, Op.CLOSE)

    def bury(self) -> ExitReport:
        if threading.get_ident() != self._thread.ident:  # where the collector found a pool that nobody closed
            self._thread.join(0.0)
        return self.report

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._over = True

    def _serve(self) -> None:
        told = partial(setattr, self, "_building")
        programs, hello = build_here(self.spec, self.factories, in_caller=False, begins=told)
        self._hello = hello
        place = self._places.get()
        server = Server(self.spec.slots, programs, in_caller=False, local=True)
        if hello.failed or place is None:
            server.close()
            return
        line, rows = place
        if rows is not None:
            server.attach(rows)
        with contextlib.suppress(ClosedPool):  # the pool was dropped, and has not waited for the answer
            child.serve(server, line)


__all__ = ["ThreadWorker"]
