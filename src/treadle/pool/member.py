"""A member: the pool's record of one worker - where it is in its life, and what it still owes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from treadle.errors import Where, WorkerError
from treadle.pool.life import Event, State, after
from treadle.pool.messages import Op, Reply, Request, WorkerSpec


class Owed(NamedTuple):
    """A request without its (last) answer yet. `limit`: seconds it may take once its turn comes; None: for ever."""

    request: Request
    slots: tuple[int, ...]
    limit: float | None


class Answered(NamedTuple):
    """An event: a reply. Late ones never become events: they are dropped."""

    member: Member
    reply: Reply


class Failed(NamedTuple):
    """An event: the member died (WorkerDied) or missed a deadline (WorkerTimeout). `owed`: what it had not answered."""

    member: Member
    error: WorkerError
    owed: tuple[Owed, ...]


class Started(NamedTuple):
    """An event: a restarted member is ready for requests."""

    member: Member


PoolEvent = Answered | Failed | Started


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

    def see(self, event: Event) -> None:
        self.state = after(self.state, event)

    def send(self, request: Request, slots: tuple[int, ...], limit: float | None) -> None:
        self.owe(request, slots, limit)
        self.worker.send(request)

    def owe(self, request: Request, slots: tuple[int, ...], limit: float | None) -> None:
        if not self.owed:
            self.turn = monotonic()
        self.owed.append(Owed(request, slots, limit))
        self.see(Event.SEND)

    def settle(self, reply: Reply) -> bool:
        """Note a reply. False: it belongs to a request that was given up, and must be dropped."""
        self.turn = monotonic()
        wanted = reply.id not in self.late
        if reply.last:
            self.late.discard(reply.id)
            if self.owed and self.owed[0].request.id == reply.id:
                self.owed.popleft()
            self.see(Event.REPLY if self.owed else Event.LAST_REPLY)
        return wanted

    def where(self, done: Any, owed: Owed | None = None) -> Where:
        """The slot that is at work on the first owed request: the first whose row is not done yet."""
        owed = owed or (self.owed[0] if self.owed else None)
        worker = self.shown
        if owed is None:
            slot = self.slots[0] if len(self.slots) == 1 else None
            return Where(slot, worker, self.worker.pid)
        slot = owed.slots[0]
        if owed.request.op in (Op.STEP, Op.RESET) and done is not None:
            slot = next((s for s in owed.slots if done[s] != owed.request.id), slot)
        return Where(slot, worker, self.worker.pid, owed.request.op.name.lower())
