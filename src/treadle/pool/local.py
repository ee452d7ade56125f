"""Workers that are threads of the caller's. They cannot be killed: one that is to be replaced because it is late is
left behind in the call of its environment (`aside.py`). Everything else is the same walk.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from treadle.errors import ClosedPool, UsageError
from treadle.pool import bell, child
from treadle.pool.aside import GivenUp, Patience
from treadle.pool.failure import RestartPolicy
from treadle.pool.layout import MemoryLayout
from treadle.pool.line import STOP, Line
from treadle.pool.messages import CLOSING, ExitReport, Extras, Hello, Op
from treadle.pool.rows import Rows
from treadle.pool.serve import Server
from treadle.pool.worker import Worker, build_here

MOST_LEFT = 100  # threads that may be left behind in calls that do not end

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

    def leave(self) -> None:
        """Its words are another thread's now; in those that it sees it is told to stop."""
        self.words = list(self.words)  # type: ignore[assignment]
        self.words[STOP] = CLOSING

    def answer(self, id: int, extras: Extras | None, last: bool = True, ended: bool = False) -> None:
        if not self.patience.over:
            super().answer(id, extras, last, ended)
        elif id != CLOSING:
            raise ClosedPool("nobody waits for it any more")


class ThreadWorker(Worker):
    """Drives its server from a thread, over a line in ordinary memory."""

    in_caller = True
    left: ClassVar[set[threading.Thread]] = set()  # of this process, behind in a call when last looked at

    @classmethod
    def behind(cls) -> int:
        """How many threads are left behind and have not ended since."""
        cls.left.difference_update([thread for thread in cls.left.copy() if not thread.is_alive()])
        return len(cls.left)

    def start(self) -> None:
        if self.behind() >= MOST_LEFT:
            raise UsageError(
                f"{MOST_LEFT} threads hang in calls of environments that were given up, and no more are left behind: "
                "processes (backend='process') can be killed"
            )
        options = self.common.options
        self._patience = Patience(options.step_timeout is not None and options.policy is not RestartPolicy.RAISE)
        self._asked = False
        self.channel, self._theirs = LocalChannel.pair()
        self.line = None
        self._their_line: TheirLine | None = None
        self._places: queue.SimpleQueue[tuple[Line, Rows | None] | None] = queue.SimpleQueue()
        self._hello: Hello | None = None
        self._building = self.slots[0]
        mine = self._patience, self._places  # one that is left behind has no others
        self._thread = threading.Thread(target=self._run, args=mine, name=f"treadle-worker-{self.index}", daemon=True)
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
        self.line, self._their_line = line, theirs
        self._places.put((theirs, None if memory.rows is None else memory.rows.of(self)))

    def ended(self) -> bool:
        return self._patience.gone  # not Thread.is_alive, which an interrupt can make lie for ever

    @property
    def measured(self) -> bool:
        return not self._patience.limited

    def kill(self, number: int) -> None:
        patience = self._patience
        if patience.limited and not patience.waiting and not patience.over:
            log.warning("%s hangs elsewhere than in its environment: it is given up when that ends", self._thread.name)
        already = patience.gone
        patience.give_up()
        if patience.gone and not already:
            self.left.add(self._thread)
            if self._their_line is not None:
                self._their_line.leave()
            for close in patience.files:
                close()
            if many := self.behind():
                log.warning("a thread is left behind in a call that was given up (%d of at most %d)", many, MOST_LEFT)
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
        if self._patience.over and self._thread.is_alive():  # perhaps it hangs in what it closes
            self.left.add(self._thread)
        return self.report  # without Thread.join: it would list a thread that it does not know, such as an interrupt's

    def _run(self, patience: Patience, places: Any) -> None:
        patience.adopt()
        try:
            self._serve(patience, places)
        finally:
            patience.gone = True

    def _serve(self, patience: Patience, places: Any) -> None:
        told = partial(setattr, self, "_building")
        programs, hello = build_here(self.spec, self.factories, in_caller=False, begins=told)
        server = Server(self.spec.slots, programs, in_caller=False, local=True)
        if patience.gone:  # another one is in its place
            server.close()
            return
        self._hello = hello
        place = places.get()
        if hello.failed or place is None:
            server.close()
            return
        line, rows = place
        if rows is not None:
            server.attach(rows)
        try:
            child.serve(server, line)
        except (ClosedPool, GivenUp):  # or the pool was dropped, and has not waited for the answer
            if patience.over:
                server.close()
