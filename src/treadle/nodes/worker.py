"""The backend "ray": a worker whose slot runs on a node of a cluster, in the pool of an actor.

Workers are dealt to actors in groups, and an actor's pool has one for each of its group. The events of that worker
become events of this one: an answer, its end, and its replacement by another process. The caller decides about lost
requests and restarts as for every other backend (`treadle.pool.calls`). When an actor is lost, with its node or alone,
all of its group have died, and go to another one together.

The start of a worker never waits for a node. Where no node has room yet, as after the death of its node, the worker
repeats another worker's description of its slots. It is `placed` once a node has room. A courier asks for `placed`
before it gives orders. It does not ask about a worker that shares an actor, whose orders wait. The calls that an actor
has not answered show its death; the error names its node.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from treadle import pickling
from treadle.checks import ends_of
from treadle.errors import UsageError
from treadle.interrupts import Later
from treadle.nodes.host import ASIDE, INSIDE, Host, Site, World, software
from treadle.nodes.placing import Machine, Placement, check, seat
from treadle.nodes.ray_cluster import RayCluster
from treadle.nodes.travel import PIECE, MessageBatch, Said, message_of, read
from treadle.pool.group import partition
from treadle.wire import carried
from treadle.wire.broadcast import Payload
from treadle.wire.channel import mapped
from treadle.wire.messages import ExitReport, Hello, Op, Reply, Request, WorkerSpec
from treadle.worker import modules
from treadle.worker.backends import register
from treadle.worker.life import State
from treadle.worker.options import PoolOptions
from treadle.worker.place import Place
from treadle.worker.worker import Common, Worker

log = logging.getLogger("treadle")

BACKEND = "ray"
VALUES = 24  # that a large answer is cut into at most
CREDITS = 2  # calls that are under way while there is more to come: the node works on while an answer travels
LOST_SECONDS = 30.0  # a node that seems to be gone is not tried again
SLOW_SECONDS = 10.0  # for a node to begin, after which that is said
LOOK_SECONDS = 1.0  # between two looks for a node, or at a node that says nothing
TAKEN = "others may hold its CPUs (see `ray status`)"
STARTING = "Ray is still starting its process"
KILL_SECONDS = 5.0  # that an actor has to kill a worker, before it is killed itself


class NodeCommon(Common):
    """The common objects of a pool's workers: the connection, and their actors.

    Attributes:
        placement: how actors are spread.
        cluster: the connection; None before `prepare`.
        hello: the latest hello of a worker that has started; None: none has.
        groups: worker -> all workers in its actor.
        actors: group -> its latest actor.
        ring: wakes a thread that waits for any of the workers.
        lost: node's id -> the moment (monotonic seconds) when it seemed to be gone, though Ray may not know it yet.

    Raises UsageError for another placement, and for `recycle_after` with a size. `prepare` raises as `RayCluster`, and
    UsageError if no actor fits on any node.
    """

    def __init__(self, options: PoolOptions) -> None:
        super().__init__(options)
        if not isinstance(options.placement, Placement | None):
            raise UsageError(f"placement is a treadle.nodes.placing.Placement, got {options.placement!r}")
        if ends_of(options.recycle_after)[1] is not None:  # this machine's processes would be looked at
            raise UsageError(
                "recycle_after a size is for workers of this machine: over nodes give a number of episodes"
            )
        self.placement: Placement = options.placement or Placement()
        self.cluster: Any = None  # a RayCluster, once it is prepared
        self.hello: Hello | None = None
        self.groups: list[tuple[int, ...]] = []
        self.actors: dict[tuple[int, ...], Actor] = {}
        self.ring: Callable[[], None] = lambda: None
        self._specs: list[WorkerSpec] = []
        self._machines: list[Machine] = []
        self._looked = float("-inf")
        self.lost: dict[str, float] = {}
        self._waiting = False  # was it said that there are too few nodes?
        self._needed: set[str] = set()
        self._programs: dict[bytes, Any] = {}  # pickles of factories -> references to them

    def spec(self, index: int, slots: tuple[int, ...], factories: Sequence[Callable[[], Any]]) -> WorkerSpec:
        programs, carrier = carried.pickled(list(factories), slots, None)
        carrier.close()
        if carrier.files:
            raise UsageError(f"slot {slots[0]}: what belongs to a process of this machine cannot go to another node")
        self._needed.update(modules.named([programs]))
        self._specs.append(WorkerSpec(index, slots, programs))
        return self._specs[-1]

    def prepare(self) -> None:
        with Later():
            self.cluster = RayCluster(self.placement.address)
        self._machines, self._looked = self.cluster.machines(), monotonic()
        check(self._machines, self.placement)
        self.world = World(os.getcwd(), [each for each in sys.path if each], software(sorted(self._needed)))
        n, shared = len(self._specs), self.placement.shared
        groups = partition(n, min(self.placement.nodes, len(self._machines)) if shared else n)
        self.groups = [group for group in groups for _ in group]
        lasts = self.options.on_failure == "restart"  # how often is decided here
        own = replace(
            self.options, backend="process" if shared else INSIDE, placement=None, step_timeout=None,
            recycle_after=None, on_failure="restart" if lasts else "drop", max_restarts=None,
        )  # fmt: skip
        self._own_options = pickling.dumps(own)

    def actor_of(self, worker: int) -> Actor | None:
        """Return the actor of a worker, a new one if it has none or its actor has ended; None: no node has room now."""
        group = self.groups[worker]
        actor = self.actors.get(group)
        if actor is None or actor.gone:
            machine = self._room()
            if machine is None:
                return None
            actor = self.actors[group] = self._started(machine, [self._specs[index] for index in group])
        return actor

    def _started(self, machine: Machine, specs: Sequence[WorkerSpec]) -> Actor:
        """Start an actor. `specs`: of the workers of its group; equal programs travel to a node once."""
        for spec in specs:
            if spec.programs not in self._programs:
                self._programs[spec.programs] = self.cluster.put(np.frombuffer(spec.programs, np.uint8))
        cpus = self.placement.cpus_per_node or 0
        gpus = min(1.0, machine.gpus) if self.placement.gpu else 0.0
        handle = self.cluster.start(
            Host, ASIDE, machine, cpus, gpus, self.world, Site(machine.address, cpus or max(1, int(machine.cpus))),
            self._own_options, tuple(slot for spec in specs for slot in spec.slots),
            *(self._programs[spec.programs] for spec in specs),
        )  # fmt: skip
        return Actor(self, machine, handle, len(specs))

    @property
    def why_slow(self) -> str:
        """The probable reason why a node has not begun."""
        return STARTING if self.cluster.exclusive else TAKEN

    def _room(self) -> Machine | None:
        """Return a node for an actor; None: no node has room. Ray is asked at most once in `LOOK_SECONDS`."""
        now = monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._machines, self._looked = self.cluster.machines(), now
        taken = Counter(actor.machine.id for actor in self.actors.values() if not actor.gone)
        there = [each for each in self._machines if now - self.lost.get(each.id, float("-inf")) > LOST_SECONDS]
        found = seat(there, taken, self.placement)
        if found is None and not self._waiting:
            self._waiting = True
            log.warning(
                "%d of %d nodes are there; others are used as soon as they join", taken.total(), self.placement.nodes
            )
        return found

    def close(self) -> None:
        self._programs.clear()
        if self.cluster is not None:
            self.cluster.close()


def values_for(size: int) -> int:
    """Return the number of values that an answer is cut into if the ones before had at most `size` bytes.

    The pieces have room for twice as many bytes; there are at most `VALUES`. Return 1 if `size` is too large to cut.
    """
    return 1 if size > VALUES * PIECE else max(1, min(VALUES, 2 * size // PIECE))


class Actor:
    """One actor, from its start to its end. Threads of Ray's put its answers into `_inbox`.

    Attributes:
        machine: its node.
        said: answers of each of its workers, in order, that are not taken yet.
        deaths: number of deaths of each worker.
        posted: number of requests to each worker.
        gone: why the actor has ended; "" while it lives.
        began: False: it ended before it ran.
        looks: how often each worker's stream has looked, by the latest answer about it.
    """

    def __init__(self, common: NodeCommon, machine: Machine, handle: Any, workers: int) -> None:
        self._cluster, self._common, self.machine, self._handle = common.cluster, common, machine, handle
        self.said: list[deque[Said]] = [deque() for _ in range(workers)]
        self.deaths, self.looks, self.posted = [0] * workers, [0] * workers, [0] * workers
        self.gone, self.began = "", True
        # by number, until those before them have been sorted: pieces, and what they belong to
        self._inbox: dict[int, tuple[list[Any], MessageBatch]] = {}
        self._size = 0  # bytes that its next answer may have, by those before
        self._sorted = 0  # batches
        self._out, self._credits = 0, 1  # calls of `advance`: under way, and as many as there may be
        self._heard = self._ending = False  # anything of it; has it been asked to end?
        self._slow_from = monotonic() + SLOW_SECONDS
        self.listen(True)

    def call(self, method: str, *args: Any, then: Callable[[Any], None] = lambda _: None, values: int = 1) -> None:
        def heard(result: Any, error: BaseException | None) -> None:
            if error is None:
                self._heard = True
                then(result)
            else:
                self.began = self.began and (self._heard or not self._cluster.never_began(error))
                self.lost(self._cluster.why(error))
            self._common.ring()

        self._cluster.call(self._handle, method, *args, then=heard, values=values)

    def listen(self, more: bool) -> None:
        """Sort the answers that have arrived. `more`: True: answers are awaited, so ask the actor for more."""
        while self._sorted in self._inbox:
            pieces, batch = self._inbox.pop(self._sorted)
            self._sorted += 1
            self._out -= 1
            self._credits = CREDITS if batch.more else 1
            try:
                there = self._cluster.get(pieces)
                self._size = max(sum(map(len, there)) + len(batch.body), self._size // 2)
                for worker, what in read(batch, *there):
                    self.said[worker].append(what)
            except Exception as unread:  # noqa: BLE001 - of a class that is not here, say
                self.lost(f"its answer cannot be read: {unread!r}")
        while more and self._out < self._credits and not self._ending and not self.gone:
            self._out += 1
            values = values_for(self._size)
            self.call("advance", values, then=self._arrived, values=values)
        if more and not self._heard and monotonic() > self._slow_from:
            self._slow_from = float("inf")
            log.warning("node %s has not begun yet: %s", self.machine.address, self._common.why_slow)

    def _arrived(self, answer: Any) -> None:
        pieces, batch = ([], answer) if isinstance(answer, MessageBatch) else answer
        self._inbox[batch.number] = pieces, batch

    def end(self) -> None:
        """Ask the actor to close its slots, and then count it as gone. One that has not begun is killed."""
        if not self._ending:
            self._ending = True
            if not self._heard:
                self.kill()
            else:
                self.call("end")
                self.call("close", then=self.lost)

    def lost(self, why: str) -> None:
        self.gone = self.gone or f"node {self.machine.address}: {why}"

    def kill(self) -> None:
        self.lost("it was ended by the caller")
        self._cluster.kill(self._handle)


class NodeWorker(Worker):
    """A worker that stands for one in an actor's pool; see this module's docstring and `Worker`."""

    _actor: Actor | None = None
    _hello: Any = None

    @classmethod
    def common_of(cls, options: PoolOptions) -> Common:
        return NodeCommon(options)

    @property
    def pid(self) -> int | None:  # type: ignore[override]
        return None if self._hello is None else self._hello.pid

    @property
    def node(self) -> str | None:  # type: ignore[override]
        return None if self._actor is None else self._actor.machine.address

    @property
    def slow(self) -> str:  # type: ignore[override]
        return f"A node that has not begun: {self.common.why_slow}"

    @property
    def placed(self) -> bool:  # type: ignore[override]
        """True if the worker is ready, in a live actor."""
        return self._actor is not None and self._hello is not None and not self._actor.gone

    @property
    def about(self) -> Any:  # type: ignore[override]
        """The slot's description of itself, on its own node."""
        return self._hello.descriptions[0]

    def start(self) -> None:
        self.report, self._forced, self._over = ExitReport(), False, False
        self._said: deque[Said] = deque()
        self._actor, self._hello, self._seen, self._silent = None, None, -1, monotonic()
        self._give_up_at = float("inf")
        self._early: list[tuple[Request, Any]] = []
        self._stopped, self._waits_from = 0, monotonic()
        self._sit()

    def _sit(self) -> None:
        """Join the actor of this worker's group, if a node has room for one."""
        self._actor = self.common.actor_of(self.index)
        if self._actor is not None:
            self._at = self.common.groups[self.index].index(self.index)
            self._said = self._actor.said[self._at]

    def _catch_up(self) -> None:
        """Post the requests that have waited until the worker was placed."""
        early, self._early = self._early, []
        for request, packed_ in early:
            self.post(request, packed_)
        if early and self._stopped:
            self.stop(self._stopped)

    def _next(self, kind: type, more: bool = True) -> Any:
        """Return the worker's next answer if it is of this kind, else None. The answer stays in `_said`."""
        if self._actor is not None:
            self._actor.listen(more)
        if self._said and isinstance(self._said[0], Hello):
            self._hello = self._said.popleft()
            if not self._hello.failed:
                self.common.hello = self._hello
                self._catch_up()
        return self._said[0] if self._said and type(self._said[0]) is kind else None

    def hello(self) -> Hello | None:
        if self._actor is None:  # it waits for a node
            return self.common.hello
        self._next(Hello)
        return self._hello

    def join(self, place: Place) -> None:
        self.common.ring = place.pool_bell.release

    def pack(self, payload: Any) -> Any:
        references = self._references(payload) if isinstance(payload, Payload) else []
        return _Packed(pickling.dumps(payload, 5), references)

    def _references(self, payload: Payload) -> list[Any]:
        """Return a reference to each file of a payload. A file is put once, and each node pulls it once."""
        found: list[Any] = [None] * len(payload.files)
        for broadcast in payload.broadcasts:
            if broadcast.number >= 0:
                if broadcast.elsewhere is None:
                    content = np.frombuffer(mapped(payload.files[broadcast.number]), np.uint8)
                    broadcast.elsewhere = self.common.cluster.put(content)
                found[broadcast.number] = broadcast.elsewhere
        return found

    def post(self, request: Request, packed_: Any) -> None:
        if self.common.placement.shared and self._hello is None:
            if not self._early:
                self._waits_from = monotonic()
            self._early.append((request, packed_))
            return
        if self._actor is None:  # nobody gives it work; what it is asked besides has no answer
            self._said.append(Reply(request.id))
            self.common.ring()
            return
        keys = tuple(reference.hex() for reference in packed_.references)
        message = message_of((request.id, int(request.op), packed_.head))
        self._tell("post", self._actor.posted[self._at], self._deaths, message, keys, *packed_.references)
        self._actor.posted[self._at] += 1
        self._actor.listen(True)

    @property
    def _deaths(self) -> int:
        return 0 if self._actor is None else self._actor.deaths[self._at]

    def _tell(self, method: str, *args: Any) -> None:
        if self._actor is not None and not self._actor.gone:
            self._actor.call(method, self._at, *args)

    def take(self) -> Reply | None:
        if (reply := self._next(Reply)) is not None:
            self._said.popleft()
        return reply

    def stop(self, id: int) -> None:
        self._stopped = id
        self._tell("tell", self._deaths, "stop", id)

    def got_on(self, now: float) -> bool:
        """See `Worker.got_on`. The looks cost a call, so they are asked for only when nothing has come for a while."""
        actor, limit = self._actor, self.common.options.step_timeout
        pause = LOOK_SECONDS if limit is None else min(LOOK_SECONDS, limit / 4)  # several looks before it is late
        if actor is None or now - self.turn < pause:
            return actor is None
        if self._early:
            return True
        if actor.looks[self._at] != self._seen:
            self._seen, self.turn = actor.looks[self._at], now
            return True
        if now - self._silent >= pause:
            self._silent = now
            actor.call("looks", then=partial(setattr, actor, "looks"))
        return False

    def ended(self) -> bool:
        actor = self._actor
        if self._early:
            self.turn = monotonic()  # nobody is at work on it yet
            limit = self.common.options.start_timeout
            if self.turn - self._waits_from > limit:
                self.report = ExitReport(stderr=(f"no node has been there for it for {limit:g} s (start_timeout)",))
                self._over = True
                return True
        if actor is None:
            if not self._over:
                self._sit()
            return self._over
        if self._next(ExitReport, self.changing) is not None:
            return True
        if self._hello is not None and self._hello.failed:  # perhaps it counted as started, and nobody looks at it
            actor.lost("{0.error_type}: {0.message}".format(self._hello.failed[1]))
        if monotonic() > self._give_up_at and not actor.gone:
            actor.kill()
        if not actor.began and not self._over and len(self.owed) <= len(self._early):  # else the rest is lost with it
            self.common.lost[actor.machine.id] = monotonic()  # Ray thought that it was there
            self._actor = None
            return False
        return bool(actor.gone) and (self._over or not self._said)

    def ask(self) -> None:
        if self.state is State.RETIRING:
            self.post(Request(0, Op.CLOSE), self.pack(None))
            return
        self._over = True
        if self._actor is not None and not self._actor.gone:
            self._actor.end()

    def kill(self, number: int) -> None:
        if self._actor is None:
            self._over = True
        if self._actor is not None and number == signal.SIGKILL:
            self._forced = True
            if self._over or self._hello is None:
                self._actor.kill()
            else:
                self._give_up_at = monotonic() + KILL_SECONDS
                self._tell("tell", self._deaths, "kill", number)

    def bury(self) -> ExitReport:
        actor, self._early = self._actor, []
        if actor is not None and not self._over and (report := self._next(ExitReport, False)) is not None:
            self._said.popleft()
            actor.deaths[self._at] += 1
            self.report = replace(report, forced=self._forced)
        elif actor is not None and actor.gone:
            self.report = ExitReport(stderr=(actor.gone,), forced=self._forced)
            actor.kill()
        return self.report


class _Packed:
    """A request's payload. `head`: its pickle; `references`: to the files that go along."""

    def __init__(self, head: bytes, references: list[Any]) -> None:
        self.head, self.references = head, references

    def discard(self) -> None:
        """Nothing is held."""


register(BACKEND, lambda: NodeWorker)
