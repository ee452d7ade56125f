"""The events of the book of calls: a request under way, and what has become of it."""

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

    `cut`: True if no answer came, as an interrupt has cut the caller's own share short; `reply` then has a failure for
    each slot.
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
    """A worker has failed, and no answer to these requests will come.

    `verdict`: what becomes of the worker. None: it was only late, and lives. RAISE: the worker is not replaced, and the
    owner of the tags raises `error`. `delay`: seconds before another worker is started.
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
    """Records resets (`during_step`: in the place of a step under way) and failures (`noted`: so is the step)."""

    def reset(self, orders: Sequence[Order], *, during_step: bool) -> None: ...
    def failed(self, error: WorkerError, *, noted: bool = False) -> None: ...
