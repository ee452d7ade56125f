"""Workers that are threads of the caller's. They cannot be killed: one that is to be replaced because it is late waits
no more for its environment, and ends; the thread that is in the environment's call is left behind (`aside.py`).
Everything else is the same walk.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

from treadle.errors import ClosedPool, UsageError
from treadle.pool import bell, child
from treadle.pool.aside import MOST_LEFT, OwnThread, Patience
from treadle.pool.failure import RestartPolicy
from treadle.pool.layout import MemoryLayout
from treadle.pool.line import Line
from treadle.pool.messages import CLOSING, ExitReport, Extras, Hello, Op
from treadle.pool.rows import Rows
from treadle.pool.serve import Server
from treadle.pool.worker import Worker, build_here

log = logging.getLogger("treadle")


@dataclass(frozen=True, slots=True)
class LocalPacked:
    """A message that needs no pickling, and so never fits the box."""

    body: Any
    size: float = float("inf")

    def discard(self) -> None:
        """Nothing is held."""


class LocalChannel:
    """One end of a road within a process: messages pass by reference."""

    in_process = True
    outbox = ()  # what has yet to be sent: nothing

    def __init__(self, inbox: deque[Any], outbox: deque[Any]) -> None:
        self._inbox, self._outbox = inbox, outbox

    @classmethod
    def pair(cls) -> tuple[LocalChannel, LocalChannel]:
        a: deque[Any] = deque()
        b: deque[Any] = deque()
        return cls(a, b), cls(b, a)

    @staticmethod
    def pack(message: Any) -> LocalPacked:
        return LocalPacked(message)

    def send(self, message: Any, fds: tuple[int, ...] = (), *, block: bool = False) -> None:
        self._outbox.append(message)

    def send_packed(self, packed: LocalPacked, fds: tuple[int, ...] = (), *, block: bool = False) -> None:
        self._outbox.append(packed.body)

    def recv(self) -> tuple[Any, list[int]] | None:
        return (self._inbox.popleft(), []) if self._inbox else None

    def recv_wait(self, timeout: float | None = None) -> tuple[Any, list[int]] | None:
        return self.recv()

    def settle(self) -> None:
        """Nothing is borrowed."""

    def pump(self) -> bool:
        return True

    def close(self) -> None:
        self._inbox.clear()


class TheirLine(Line):
    """The thread's half. One that was given up has nothing more to say."""

    patience: Patience

    def answer(self, id: int, extras: Extras | None, last: bool = True, ended: bool = False) -> None:
        if not self.patience.over:
            super().answer(id, extras, last, ended)
        elif id != CLOSING:
            raise ClosedPool("nobody waits for it any more")


class ThreadWorker(Worker):
    """Drives its server from a thread, over a line in ordinary memory."""

    in_caller = True

    def start(self) -> None:
        if OwnThread.behind() >= MOST_LEFT:
            raise UsageError(
                f"{MOST_LEFT} threads hang in calls of environments that were given up, and no more are left behind: "
                "processes (backend='process') can be killed"
            )
        options = self.common.options
        self._patience = Patience(options.step_timeout is not None and options.policy is not RestartPolicy.RAISE)
        self._asked = False
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
        fields, bells = memory.lines[self.index], (bell.LocalBell(), memory.pool_bell)
        line = Line(memory.arena, fields, *bells, self.channel, self.slots)
        line.clear()
        theirs = TheirLine(memory.arena, fields, *bells, self._theirs, self.slots)
        theirs.patience = self._patience
        self.line = line
        self._places.put((theirs, None if memory.rows is None else memory.rows.of(self)))

    def ended(self) -> bool:
        return self._over

    @property
    def measured(self) -> bool:
        return not self._patience.limited

    def kill(self, number: int) -> None:
        if self._patience.limited and not self._patience.waiting and not self._patience.over:
            log.warning("%s hangs elsewhere than in its environment: it is given up when that ends", self._thread.name)
        self._patience.give_up()
        if not self._asked:
            self.ask()

    def stack(self) -> str:
        import traceback

        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()

    def ask(self) -> None:
        self._asked = True
        self._places.put(None)  # for one that has not joined yet
        if self.line is not None:
            self.line.stop(CLOSING)
            self.line.post(CLOSING, Op.CLOSE)

    def bury(self) -> ExitReport:
        return self.report  # without Thread.join: it would list a thread that it does not know, such as an interrupt's

    def _run(self) -> None:
        self._patience.adopt()
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
        try:
            child.serve(server, line)
        except ClosedPool:  # it was given up; or the pool was dropped, and has not waited for the answer
            if self._patience.over:
                server.close()
