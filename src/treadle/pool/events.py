"""What the book of calls tells: a request under way, and what has become of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from treadle.errors import WorkerError
from treadle.wire.messages import Op, Reply
from treadle.worker.life import RestartPolicy
from treadle.worker.worker import Order, Worker


class InFlight(NamedTuple):
    """A request whose (last) answer is still to come."""

    tag: Any
    worker: Worker
    id: int
    op: Op
    slots: tuple[int, ...]


class Done(NamedTuple):
    """An answer to a request; a stream has several, until `reply.last`.

    `cut`: there is none, an interrupt has cut the caller's own share short: `reply` says so of each slot.
    """

    call: InFlight
    reply: Reply
    cut: bool = False

    @property
    def tag(self) -> Any:
        return self.call.tag

    @property
    def worker(self) -> Worker:
        return self.call.worker


class Lost(NamedTuple):
    """A worker has failed, and no answer of these requests will come.

    `verdict`: what becomes of the worker. None: it lives, and was only late. RAISE is for the owner of the tags to
    carry out: the worker is not replaced, and `error` is the reason. `delay`: seconds before another one is started.
    """

    calls: list[InFlight]
    worker: Worker
    error: WorkerError
    verdict: RestartPolicy | None
    delay: float = 0.0

    @property
    def tags(self) -> list[Any]:
        return [call.tag for call in self.calls]


class Ready(NamedTuple):
    """A worker that was started in the place of another takes requests."""

    worker: Worker


Event = Done | Lost | Ready


class Notes(Protocol):
    """Records resets (`during_step`: instead of a step under way) and failures (`noted`: so is the step)."""

    def reset(self, orders: Sequence[Order], *, during_step: bool) -> None: ...
    def failed(self, error: WorkerError, *, noted: bool = False) -> None: ...
