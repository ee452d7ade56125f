"""Workers that are threads of the caller's.

They cannot be killed: where one is late and is to be replaced, the coroutine that it waits for is cancelled
(`treadle.coroutines`). Everything else is as for processes.
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

from treadle.coroutines import GivenUp, Owner, Settled
from treadle.errors import ClosedPool
from treadle.memory.rows import Rows
from treadle.wire.line import Line, WorkerLine
from treadle.wire.messages import CLOSING, ExitReport, Extras, Hello, Op
from treadle.worker.life import RestartPolicy
from treadle.worker.loop import serve
from treadle.worker.place import Place
from treadle.worker.serve import Server
from treadle.worker.worker import Worker, build_here

log = logging.getLogger("treadle")


@dataclass(frozen=True, slots=True)
class LocalPacked:
    """A message that needs no pickling, and so never goes into the box."""

    body: Any
    size: float = float("inf")

    def discard(self) -> None:
        """Do nothing: nothing is held."""


class LocalChannel:
    """One end of a channel within a process: messages pass by reference."""

    in_process = True
    outbox = ()  # messages that are not sent yet: none

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

    def send_packed(self, packed: LocalPacked, fds: tuple[int, ...] = (), *, block: bool = False) -> None:
        self._outbox.append(packed.body)

    def recv_wait(self, timeout: float | None = None) -> tuple[Any, list[int]] | None:
        """Return the message that was announced, or None: it never comes later."""
        return (self._inbox.popleft(), []) if self._inbox else None


class TheirLine(WorkerLine):
    """The thread's half of the line. A thread that was given up answers nothing more."""

    owner: Owner

    def answer(self, id: int, extras: Extras | None, last: bool = True, ended: bool = False) -> None:
        if not self.owner.over:
            super().answer(id, extras, last, ended)
        elif id != CLOSING:
            raise ClosedPool("its caller no longer waits for it")


class ThreadWorker(Worker):
    """Drives its server from a thread, over a line in ordinary memory."""

    in_caller = True

    def start(self) -> None:
        self._owner = Owner(self.common.options.step_timeout is not None)
        self._asked = False
        self.channel, self._theirs = LocalChannel.pair()
        self.line = None
        self._places: queue.SimpleQueue[tuple[WorkerLine, Rows | None] | None] = queue.SimpleQueue()
        self._hello: Hello | None = None
        self._building = self.slots[0]
        mine = self._owner, self._places  # a thread that was given up keeps its own
        self._thread = threading.Thread(target=self._run, args=mine, name=f"treadle-worker-{self.index}", daemon=True)
        self._thread.start()

    def hello(self) -> Hello | None:
        return self._hello

    def building(self) -> int:
        return self._building

    def join(self, place: Place) -> None:
        about = (place.arena, place.line, place.bell, place.pool_bell)
        line = Line(*about, self.channel, self.slots)
        line.clear()
        theirs = TheirLine(*about, self._theirs)
        theirs.owner = self._owner
        self.line = line
        self._places.put((theirs, place.rows))

    def ended(self) -> bool:
        return self._owner.gone  # not Thread.is_alive, which an interrupt can leave wrong for ever

    @property
    def measured(self) -> bool:
        return self.common.options.policy is RestartPolicy.RAISE

    def kill(self, number: int) -> None:
        owner = self._owner
        if owner.timed and not self.measured and owner.pending is None and not owner.over:
            log.warning("%s hangs elsewhere than in a coroutine: it is given up when that ends", self._thread.name)
        owner.give_up()
        if not self._asked:
            self.ask()

    def held_up(self, now: float) -> float:
        return self._owner.held_up(now)

    def stack(self) -> str:
        import traceback

        frame = sys._current_frames().get(self._owner.thread() or self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()

    def ask(self) -> None:
        self._asked = True
        self._places.put(None)  # for a thread that has not joined yet
        if self.line is not None:
            self.line.stop(CLOSING)
            self.line.post(CLOSING, Op.CLOSE)

    def bury(self) -> ExitReport:
        Settled.join()
        return self.report  # without Thread.join: it would list a thread unknown to `threading`, such as an interrupt's

    def _run(self, owner: Owner, places: Any) -> None:
        owner.adopt()
        try:
            self._serve(owner, places)
        finally:
            owner.gone = True

    def _serve(self, owner: Owner, places: Any) -> None:
        told = partial(setattr, self, "_building")
        programs, hello = build_here(self.spec, lambda: self.factories, in_caller=False, begins=told)
        server = Server(self.spec.slots, programs, in_caller=False, local=True)
        self._hello = hello
        place = places.get()
        if hello.failed or place is None:
            server.close()
            return
        line, rows = place
        if rows is not None:
            server.attach(rows)
        if self.spec.trace is not None:
            server.record(self.spec.trace, self.index, line)
        try:
            serve(server, line)
        except (ClosedPool, GivenUp):  # ClosedPool also if the pool was dropped without waiting for the answer
            if owner.over:
                server.close()
