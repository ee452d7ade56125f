"""The workers of a sampler: who is there, and what becomes of those who fail."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from treadle.errors import UsageError, WorkerError
from treadle.pool import failure, life
from treadle.pool.calls import Event, Lost
from treadle.pool.carried import CannotTravel
from treadle.pool.failure import Policy
from treadle.pool.member import Member
from treadle.pool.messages import Op, Raised
from treadle.pool.parcel import Parcel, Shipment
from treadle.pool.pool import Pool
from treadle.sample.failed import reason_of
from treadle.sample.sampler_slot import Order, SamplerSlot, SlotRecipe
from treadle.sample.workers_lost import why

log = logging.getLogger("treadle")


@dataclass(eq=False)
class Asked:
    """One request to workers (several share one in the caller), from being sent until its stream is over.

    Attributes:
        sampling: the number of the sampling that it belongs to.
        orders: worker -> its order, of those that are still to be made.
        told: has the caller been told that its sampling failed?
        spec: of its environments: travels with its first haul.
    """

    sampling: int
    orders: dict[int, Order]
    told: bool = False
    spec: Any = None


class Crew:
    """A pool with one slot a worker.

    Args:
        recipes: one a worker.
        backend: "process", or "serial": all workers in the caller's own thread.
        on_failure: "raise", "restart" or "drop": what becomes of a worker that dies or raises.
        max_restarts: of one worker, in ten minutes (deaths) or without a rollout between them (exceptions).
        pool_options: see `treadle.pool.pool.Pool`.

    Attributes:
        lost: workers that will not come back -> what they failed of.
        strangers: workers whose next order must say all that the sampler was ever told: they took the place of others.

    Raises:
        StartupFailed: a worker could not be built; nothing is left running.
        UsageError: an agent or environment cannot be pickled, or the options make no sense.
    """

    def __init__(
        self, recipes: Sequence[SlotRecipe], *, backend: str, on_failure: str, max_restarts: int, **pool_options: Any
    ) -> None:
        self.shared = backend == "serial"
        factories = [partial(SamplerSlot, recipe, number, self.shared) for number, recipe in enumerate(recipes)]
        try:
            self.pool = Pool(
                factories,
                backend=backend,
                workers=len(factories),
                rows=False,
                on_failure=on_failure,
                max_restarts=max_restarts,
                **pool_options,
            )
        except CannotTravel as error:
            raise UsageError(
                f"worker {error.slot}: its factory, agent or environment cannot be sent to it: {error.reason}"
            ) from error
        self.policy, self.calls = self.pool.policy, self.pool.calls
        self.lost: dict[int, WorkerError] = {}
        self.strangers: set[int] = set()

    @property
    def count(self) -> int:
        """How many workers there were to begin with."""
        return self.pool.n

    def ready(self) -> list[int]:
        """Workers that take orders."""
        members = self.pool.members
        return sorted(
            slot for member in members if member.state in life.ALIVE for slot in member.slots if slot not in self.lost
        )

    def incarnation(self, worker: int) -> int:
        """How often it was replaced."""
        return len(self.member(worker).restarts)

    def owes(self, worker: int) -> int:
        """How many requests have not been answered to the end."""
        return len(self.member(worker).owed)

    def member(self, worker: int) -> Member:
        return next(member for member in self.pool.members if worker in member.slots)

    def send(self, orders: dict[int, Order], sampling: int) -> list[Asked]:
        """Send each worker its order. Returns the requests that it took."""
        found = []
        for member in self.pool.members:
            mine = {worker: orders[worker] for worker in member.slots if worker in orders}
            if mine:
                payload: Any = dict(mine) if self.shared else Shipment(mine, _parcels(mine))
                asked = Asked(sampling, mine)
                self.calls.submit(member, Op.STREAM, payload, mine, asked)
                found.append(asked)
                self.strangers -= mine.keys()
        return found

    def poll(self, timeout: float | None) -> list[Event]:
        """What has become of requests and workers; see `Calls.poll`."""
        events: list[Event] = []
        self.calls.poll(timeout, events.append)
        return events

    def raised(self, worker: int, raised: Raised, request: int) -> WorkerError:
        """The error of a worker that raised. Its stream, of that request, is told to end, should it go on."""
        member = self.member(worker)
        if not member.inline:  # a later request is not to be stopped by an earlier one's error
            member.worker.stop(request)
        return failure.task_error(raised, worker, member.shown, member.worker.pid)

    def died(self, event: Lost) -> bool:
        """A worker's process is gone. True: it is replaced, and the pool tells when that one is ready.

        Raises its error where that is what is wanted, or where it died too often.
        """
        member, (worker, *_) = event.member, event.member.slots
        if event.verdict is Policy.RESTART:
            log.warning("worker %d is replaced: %s", worker, reason_of(event.error))
            self.strangers.add(worker)
            return True
        if event.verdict is Policy.RAISE and self.policy is not Policy.RAISE:
            self.calls.drop(member)  # the others may go on in the next sampling
        self.lose(worker, event.error)
        return False

    def lose(self, worker: int, error: WorkerError) -> None:
        """A worker is given up. Raises its error unless workers may be dropped."""
        if self.policy is Policy.DROP or self.member(worker).state is life.State.GONE:
            self.lost[worker] = error
        if self.policy is not Policy.DROP:
            raise error
        left = self.count - len(self.lost)
        log.warning("worker %d is dropped, %d of %d are left: %s", worker, left, self.count, why(error))

    def close(self) -> None:
        self.pool.close()
        self.calls.clear()  # and with it what orders took along: the files of parcels


def _parcels(orders: dict[int, Order]) -> list[Parcel]:
    return [parcel for order in orders.values() for parcel in (*order.agent, *order.env)]
