"""A member: the pool's record of one worker - where it is in its life, and what it still owes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from treadle.errors import TooManyFiles, UsageError, WorkerError, WorkerTimeout
from treadle.pool.arena import too_many_files
from treadle.pool.carried import Carrier
from treadle.pool.life import ALIVE, Event, State, after
from treadle.pool.messages import Reply, Request, WorkerSpec


class Owed(NamedTuple):
    """A request without its (last) answer yet. `limit`: seconds it may take once its turn comes; None: for ever."""

    request: Request
    slots: tuple[int, ...]
    limit: float | None


@dataclass(eq=False)
class Member:
    spec: WorkerSpec
    factories: list[Any]
    worker: Any
    inline: bool = False
    state: State = State.STARTING
    owed: deque[Owed] = field(default_factory=deque)
    turn: float = 0.0  # when the first of `owed` came to its turn (monotonic)
    late: set[int] = field(default_factory=set)  # requests whose answers will be dropped
    restarts: list[float] = field(default_factory=list)
    restart_at: float | None = None
    warned: int = 0  # the request that a "still waiting" warning was given for
    overran: int = 0  # the request that was last counted as overrunning
    asides: int = 0  # requests since it started that were not steps of all its slots
    beat: int | None = None  # of its stream, when it was last looked at
    stalled: WorkerTimeout | None = None  # what it was killed for, and has yet to be seen dead of
    carrier: Carrier | None = None  # what its worker, and any that follows it, is sent along
    barren: int = 0  # deaths of its workers in a row without an answer between them
    failure: WorkerError | None = None  # what it last failed of; a missed deadline, not the killing that followed
    undecided: bool = False  # it is dead, and nobody has said yet what is to become of it

    @property
    def index(self) -> int:
        return self.spec.index

    @property
    def shown(self) -> int | None:
        """The worker's number in errors; None for the caller's own share."""
        return None if self.inline else self.index

    @property
    def slots(self) -> tuple[int, ...]:
        return self.spec.slots

    @property
    def changing(self) -> bool:
        """Is its worker on its way out (killed, or dead, and what follows is open), or the next on its way in?"""
        killed = self.stalled is not None and self.state in ALIVE
        return killed or self.undecided or self.restart_at is not None or self.state is State.STARTING

    def see(self, event: Event) -> None:
        self.undecided = event is Event.DIED or (self.undecided and event not in (Event.RESTART, Event.DROP))
        self.state = after(self.state, event)

    def failed(self, error: WorkerError) -> None:
        """Note a failure. Call it before the state is changed."""
        if self.state is not State.LATE or not isinstance(self.failure, WorkerTimeout):
            self.failure = error

    def pack(self, payload: Any) -> Any:
        """A payload as `send` takes it. Raises UsageError when it cannot travel, and TooManyFiles."""
        try:
            return self.worker.pack(payload)
        except TooManyFiles:
            raise
        except Exception as error:  # pickling runs foreign code
            if (limited := too_many_files(error)) is not None:
                raise limited from error
            raise UsageError(f"the request cannot be sent to a worker: {type(error).__name__}: {error}") from error

    def send(self, request: Request, packed: Any, slots: tuple[int, ...], limit: float | None) -> None:
        before = self.state
        self.owe(request, slots, limit)
        try:
            self.worker.send(request, packed)
        except Exception:
            self.owed.pop()
            self.state = before
            raise

    def recall(self, id: int) -> Reply | None:
        """The answer to request `id`, if it is the last that was taken."""
        latest = self.worker.line.latest if self.worker.line is not None else None
        return latest if latest is not None and latest.id == id else None

    def owe(self, request: Request, slots: tuple[int, ...], limit: float | None) -> None:
        if not self.owed:
            self.turn = monotonic()
        self.owed.append(Owed(request, slots, limit))
        self.see(Event.SEND)

    def got_on(self, now: float) -> bool:
        """Has its stream got on since it was last asked, or does it wait for the caller?"""
        before, self.beat = self.beat, self.worker.line.beat() if self.worker.line is not None else None
        if self.beat is None or self.beat != before:
            self.turn = now
            return True
        return False

    def forget_if(self, idle: bool) -> None:
        """An idle worker owes nothing: an interrupt fell between its last answer and the note of it, or came before the
        request was sent, perhaps before that was seen."""
        if idle and self.owed:
            self.owed.clear()
            self.late.clear()
            if self.state is not State.IDLE:
                self.see(Event.LAST_REPLY)

    def settle(self, reply: Reply) -> bool:
        """Note a reply. False: it belongs to a request that was given up, and must be dropped."""
        self.turn = monotonic()
        self.barren = 0
        wanted = reply.id not in self.late
        if reply.last:
            self.late.discard(reply.id)
            # answers keep the order of requests, so what came before and has no answer was cut short by an interrupt
            while self.owed and self.owed[0].request.id <= reply.id:
                self.late.discard(self.owed.popleft().request.id)
            self.see(Event.REPLY if self.owed else Event.LAST_REPLY)
        return wanted
