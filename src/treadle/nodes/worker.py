"""The backend "ray": a worker whose slots run in an actor on a node of a cluster.

Starting one never waits for a node. Where none has room yet, as after the death of the one that it was on, the worker
says what another one's slots have said, and is `placed` as soon as a node is there: whoever has work to give asks for
that. An actor's death is known from the calls that it has not answered; the error names its node.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import numpy as np

from treadle import pickling
from treadle.errors import UsageError
from treadle.nodes.host import ASIDE, Host, Site, World
from treadle.nodes.placing import Machine, Placement, check, seat
from treadle.nodes.ray_cluster import Cluster
from treadle.nodes.software import software
from treadle.nodes.travel import Batch, packed, read
from treadle.pool import carried, modules
from treadle.pool.broadcast import Payload
from treadle.pool.channel import mapped
from treadle.pool.layout import MemoryLayout
from treadle.pool.messages import CLOSING, ExitReport, Hello, Op, Raised, Reply, Request, WorkerSpec
from treadle.pool.options import PoolOptions
from treadle.pool.worker import Common, Worker, register

log = logging.getLogger("treadle")

BACKEND = "ray"
CREDITS = 2  # calls that are under way while there is more to come: the node works on while an answer travels
LOST_SECONDS = 30.0  # a node that seems to be gone is not tried again
SLOW_SECONDS = 10.0  # for a node to begin, after which that is said
LOOK_SECONDS = 1.0  # between two looks for a node, or at a node that says nothing


class NodeCommon(Common):
    """What the actors of a pool share: the connection, which nodes they are on, and what they are made of.

    Attributes:
        hello: the first that any of them has said.
    """

    def __init__(self, options: PoolOptions) -> None:
        super().__init__(options)
        if not isinstance(options.placement, Placement | None):
            raise UsageError(f"placement is a treadle.nodes.placing.Placement, got {options.placement!r}")
        self.placement: Placement = options.placement or Placement()
        self.cluster: Cluster | None = None
        self.hello: Hello | None = None
        self.seats: dict[int, Machine] = {}  # worker -> where its actor is
        self._machines: list[Machine] = []
        self._looked = float("-inf")
        self._lost: dict[str, float] = {}  # node -> when it seemed to be gone
        self._waiting = False  # was it said that there are too few nodes?
        self._needed: set[str] = set()
        self._programs: dict[bytes, Any] = {}  # pickles of factories -> references to them

    def open(self) -> None:
        self.cluster = Cluster(self.placement.address)

    def spec(self, index: int, slots: tuple[int, ...], factories: Sequence[Callable[[], Any]]) -> WorkerSpec:
        (programs, found), carrier = carried.packed(modules.dumps, list(factories), slots, None)
        carrier.close()
        if carrier.files:
            raise UsageError(f"slot {slots[0]}: what belongs to a process of this machine cannot go to another node")
        named = modules.worth_preloading(found)
        self._needed |= {*named.ours, *named.users}
        return WorkerSpec(index, slots, programs)

    def prepare(self) -> None:
        assert self.cluster is not None
        self._machines, self._looked = self.cluster.machines(), monotonic()
        check(self._machines, self.placement)
        self.world = World(os.getcwd(), [each for each in sys.path if each], software(sorted(self._needed)))

    def programs(self, spec: WorkerSpec) -> Any:
        """A reference to what a worker is made of; workers that are made of the same have one."""
        assert self.cluster is not None
        if spec.programs not in self._programs:
            self._programs[spec.programs] = self.cluster.put(np.frombuffer(spec.programs, np.uint8))
        return self._programs[spec.programs]

    def take_seat(self, worker: int) -> Machine | None:
        """A node for a worker's actor; None: there is none with room now. Looks once in a while."""
        assert self.cluster is not None
        now = monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._machines, self._looked = self.cluster.machines(), now
        taken: dict[str, int] = {}
        for machine in self.seats.values():
            taken[machine.id] = taken.get(machine.id, 0) + 1
        there = [each for each in self._machines if now - self._lost.get(each.id, float("-inf")) > LOST_SECONDS]
        found = seat(there, taken, self.placement)
        if found is not None:
            self.seats[worker] = found
        elif not self._waiting:
            self._waiting = True
            log.warning(
                "%d of %d nodes are there; others are used as soon as they join", len(self.seats), self.placement.nodes
            )
        return found

    def leave_seat(self, worker: int, *, lost: bool = False) -> None:
        """A worker's actor is gone; `lost`: and its node, it seems, though Ray may not know it yet."""
        machine = self.seats.pop(worker, None)
        if machine is not None and lost:
            self._lost[machine.id] = monotonic()

    def close(self) -> None:
        self._programs.clear()
        if self.cluster is not None:
            self.cluster.close()


class Actor:
    """One actor, from its start to its end. What it answers is put into `inbox` by threads of Ray's.

    Attributes:
        out: calls of `advance` under way.
        gone: why there is no more of it; "" while there is.
        began: False: it has ended before anything of it ran.
        looks: of its streams, as far as it was asked.
    """

    def __init__(self, worker: NodeWorker, machine: Machine) -> None:
        common: NodeCommon = worker.common
        assert common.cluster is not None
        self._cluster, self._worker, self.machine = common.cluster, worker, machine
        placement = common.placement
        cpus = placement.cpus or (1 if placement.shared else max(1, int(machine.cpus)))
        site = Site(machine.address, cpus)
        self.handle = self._cluster.start(
            Host, ASIDE, machine, placement.cpus or 0, min(1.0, machine.gpus) if placement.gpu else 0.0,
            common.world, site, worker.slots, common.programs(worker.spec),
        )  # fmt: skip
        self.inbox: deque[Batch] = deque()
        self.hello: Hello | None = None
        self.closed: dict[int, Raised] | None = None
        self.gone, self.began = "", True
        self.out = self.looks = 0
        self._asked = False  # for its looks
        self._call("hello", then=self._greeted)

    def _call(self, method: str, *args: Any, then: Callable[[Any], None]) -> None:
        def heard(result: Any, error: BaseException | None) -> None:
            if error is None:
                try:
                    then(result)
                except Exception as unread:  # noqa: BLE001 - of a class that is not here, say; Ray would only log it
                    self.gone = self.gone or f"node {self.machine.address}: its answer cannot be read: {unread!r}"
            else:
                if self.hello is None and self._cluster.never_began(error):
                    self.began = False
                self.gone = self.gone or f"node {self.machine.address}: {self._cluster.why(error)}"
            self._worker.ring()

        self._cluster.call(self.handle, method, *args, then=heard)

    def _greeted(self, batch: Batch) -> None:
        self.hello = next(read(batch))

    def advance(self, request: Batch | None, broadcasts: Sequence[Any] = ()) -> None:
        self.out += 1
        self._call("advance", request, *broadcasts, then=self.inbox.append)

    def look(self) -> None:
        """Ask for its looks, unless it has been."""
        if not self._asked:
            self._asked = True
            self._call("looks", then=self._looked)

    def _looked(self, looks: int) -> None:
        self.looks, self._asked = looks, False

    def stop(self, id: int) -> None:
        self._call("stop", id, then=lambda _: None)

    def close(self) -> None:
        """Ask it to close its slots; then its process is ended."""
        self.stop(CLOSING)
        self._call("close", then=self._closed)

    def _closed(self, batch: Batch) -> None:
        self.closed = next(read(batch))

    def kill(self) -> None:
        self.gone = self.gone or f"node {self.machine.address}: it was ended by the caller"
        self._cluster.kill(self.handle)


class NodeWorker(Worker):
    """See the module.

    Attributes:
        placed: has it an actor that is ready?
    """

    _actor: Actor | None = None

    @classmethod
    def common_of(cls, options: PoolOptions) -> Common:
        return NodeCommon(options)

    @property
    def pid(self) -> int | None:  # type: ignore[override]
        actor = self._actor
        return None if actor is None or actor.hello is None else actor.hello.pid

    @property
    def placed(self) -> bool:
        actor = self._actor
        return actor is not None and actor.hello is not None and not actor.gone

    @property
    def about(self) -> Any:
        """What its (first) slot has said of itself, on its own node."""
        assert self._actor is not None
        assert self._actor.hello is not None
        return self._actor.hello.descriptions[0]

    @property
    def address(self) -> str:
        """Of its node, "" while it has none."""
        machine = self.common.seats.get(self.index)
        return "" if machine is None else machine.address

    def start(self) -> None:
        self.report, self._forced, self._over = ExitReport(), False, False
        self._replies: deque[Reply] = deque()
        self._actor, self._beats, self._seen, self._silent = None, 0, -1, monotonic()
        self.ring: Callable[[], None] = getattr(self, "ring", lambda: None)
        self._sit()

    def _sit(self) -> None:
        """Have an actor, if a node has room for one."""
        machine = self.common.take_seat(self.index)
        if machine is not None:
            self._slow_from = monotonic() + SLOW_SECONDS
            self._actor = Actor(self, machine)

    def _leave(self) -> None:
        """Wait for a node again: Ray thought that this one was there."""
        self.common.leave_seat(self.index, lost=True)
        self._actor = None

    def hello(self) -> Hello | None:
        common: NodeCommon = self.common
        if self._actor is None:  # it waits for a node
            if common.hello is None:
                self._sit()
            return common.hello
        found = self._actor.hello
        if found is None and not self._actor.began and not self._over:
            self._leave()
            return None
        if found is None and monotonic() > self._slow_from:
            self._slow_from = float("inf")
            log.warning("node %s has not begun yet: others may have its CPUs (`ray status` tells)", self.address)
        if found is not None and not found.failed:
            common.hello = common.hello or found
        return found

    def join(self, memory: MemoryLayout) -> None:
        bell = memory.pool_bell
        self.ring = bell.release

    def pack(self, payload: Any) -> Any:
        if payload is None:
            return None
        references = self._references(payload) if isinstance(payload, Payload) else []
        return _Packed(pickling.dumps(payload, 5), references)

    def _references(self, payload: Payload) -> list[Any]:
        """One to each of the files that go along: put once, pulled once by each node."""
        found: list[Any] = [None] * len(payload.files)
        for broadcast in payload.broadcasts:
            if broadcast.number >= 0:
                if broadcast.elsewhere is None:
                    content = np.frombuffer(mapped(payload.files[broadcast.number]), np.uint8)
                    broadcast.elsewhere = self.common.cluster.put(content)
                found[broadcast.number] = broadcast.elsewhere
        return found

    def post(self, request: Request, packed_: Any) -> None:
        if self._actor is None:  # nobody gives it work; what it is asked besides has no answer
            self._replies.append(Reply(request.id))
            self.ring()
            return
        head = None if packed_ is None else packed_.head
        message = packed((request.id, int(request.op), head))
        self._actor.advance(message, () if packed_ is None else packed_.references)
        if request.op is Op.STREAM and self._actor.out < CREDITS:
            self._actor.advance(None)

    def take(self) -> Reply | None:
        actor = self._actor
        while not self._replies and actor is not None and actor.inbox:
            batch = actor.inbox.popleft()
            actor.out -= 1
            self._replies.extend(read(batch))
            if batch.more and actor.out < CREDITS:
                actor.advance(None)
        return self._replies.popleft() if self._replies else None

    def idle(self) -> bool:
        return False

    def drain(self) -> None:
        self.take()

    def stop(self, id: int) -> None:
        if self._actor is not None and not self._actor.gone:
            self._actor.stop(id)

    def looks(self) -> int:
        """Nobody is asked for them in passing: a call for each look of somebody at the run would be too many."""
        return 0

    def got_on(self, now: float) -> bool:
        """Its looks come with a message, so they are asked for only when nothing else has come for a while."""
        actor = self._actor
        if actor is None or now - self.turn < LOOK_SECONDS:
            return actor is None
        if actor.looks != self._seen:
            self._seen, self.turn = actor.looks, now
            return True
        if now - self._silent >= LOOK_SECONDS:
            self._silent = now
            actor.look()
        return False

    def ended(self) -> bool:
        actor = self._actor
        if actor is None:
            if not self._over:
                self._sit()
            return self._over
        if actor.closed is not None and not actor.gone:
            actor.kill()
        if not actor.began and not self._over and not self.owed:  # else what it owes is lost with it
            self._leave()
            return False
        return bool(actor.gone) and (self._over or not actor.inbox)

    def ask(self) -> None:
        self._over = True
        if self._actor is not None and not self._actor.gone:
            if self._actor.hello is None:
                self._actor.kill()
            else:
                self._actor.close()

    def last_words(self) -> dict[int, Raised]:
        return (self._actor.closed if self._actor is not None else None) or {}

    def kill(self, number: int) -> None:
        if self._actor is not None and number == signal.SIGKILL:
            self._forced = True
            self._actor.kill()

    def bury(self) -> ExitReport:
        actor = self._actor
        self.common.leave_seat(self.index)
        if actor is not None:
            self.report = ExitReport(stderr=(actor.gone,), forced=self._forced)
            actor.kill()
        return self.report

    def abandon(self) -> None:
        self.kill(signal.SIGKILL)


class _Packed:
    """A request's payload. `references`: to what goes along."""

    def __init__(self, head: bytes | None, references: list[Any]) -> None:
        self.head, self.references = head, references

    def discard(self) -> None:
        """Nothing is held."""


register(BACKEND, lambda: NodeWorker)

__all__ = ["BACKEND", "NodeCommon", "NodeWorker"]
