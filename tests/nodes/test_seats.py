"""A worker on a node that turns out to be gone before its actor began: it waits for another one. Without a cluster."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import numpy as np

from treadle.nodes.placing import Machine, Placement
from treadle.nodes.travel import PIECE, Message, MessageBatch, message_of
from treadle.nodes.worker import NodeCommon, NodeWorker
from treadle.wire.messages import Extras, Hello, Op, Reply, Request, WorkerSpec
from treadle.worker.life import Event


class NeverBegan(Exception):
    """What a call of such an actor has failed of."""


class Cluster:
    """`calls`: what actors are asked, until the test answers."""

    def __init__(self) -> None:
        self.there = [Machine("a", "10.0.0.1", 4)]
        self.started: list[str] = []
        self.calls: list[tuple[str, Any]] = []
        self.values: list[int] = []

    def machines(self) -> list[Machine]:
        return list(self.there)

    def start(self, kind: type, aside: Any, machine: Machine, *args: Any) -> str:
        self.started.append(machine.id)
        return machine.id

    def call(self, actor: Any, method: str, *args: Any, then: Any, values: int = 1) -> None:
        self.calls.append((method, then))
        self.values.append(values)

    def get(self, references: list[Any]) -> list[Any]:
        return references

    def put(self, value: Any) -> Any:
        return value

    def never_began(self, error: BaseException) -> bool:
        return isinstance(error, NeverBegan)

    def why(self, error: BaseException) -> str:
        return str(error)


def worker_on(cluster: Cluster, shared: bool = False) -> NodeWorker:
    options: Any = SimpleNamespace(
        placement=Placement(2, shared=shared), recycle_after=None, step_timeout=None, start_timeout=60.0
    )  # as much as is read
    common = NodeCommon(options)
    common.cluster = cluster  # type: ignore[assignment]
    common.world, common._own_options, common.groups = None, b"", [(0,)]  # type: ignore[assignment]
    spec = WorkerSpec(0, (0,), b"")
    common._specs.append(spec)
    worker = NodeWorker(spec, [], common)
    worker.start()
    return worker


def test_a_worker_whose_node_never_was_there_sits_down_elsewhere() -> None:
    """Also when it counts as started, so that nobody asks for its hello any more."""
    cluster = Cluster()
    there, cluster.there = cluster.there, []
    worker = worker_on(cluster)
    worker.common.hello = Hello(1, ())  # another worker's
    assert worker.hello() is not None
    cluster.there, worker.common._looked = there, float("-inf")
    assert not worker.ended()
    (_, then), *_ = cluster.calls
    then(None, NeverBegan("its node is gone"))
    assert not worker.ended()
    cluster.there, worker.common._looked = [Machine("b", "10.0.0.2", 4)], float("-inf")
    assert not worker.ended()
    assert cluster.started == ["a", "b"]
    cluster.calls[-1][1](message_of((0, Hello(2, ()))), None)
    worker.see(Event.HELLO)
    assert not worker.ended()
    assert worker.placed


def test_what_is_asked_of_one_that_waits_for_a_node_waits_with_it() -> None:
    cluster = Cluster()
    there, cluster.there = cluster.there, []
    worker = worker_on(cluster, shared=True)
    worker.see(Event.HELLO)
    worker.send(Request(7, Op.CALL), worker.encoded({0: ("get", (), {})}), (0,), None)
    assert worker.take() is None
    assert not worker.ended()
    cluster.there, worker.common._looked = there, float("-inf")
    assert not worker.ended()
    assert [method for method, _ in cluster.calls] == ["advance"]
    cluster.calls[0][1](message_of((0, Hello(2, ()))), None)
    assert worker.take() is None
    assert "post" in [method for method, _ in cluster.calls]
    then = [then for method, then in cluster.calls if method == "advance"][-1]
    then(message_of((0, Reply(7)))._replace(number=1), None)
    assert worker.take() == Reply(7)


def test_a_stream_that_waits_for_a_node_is_stopped_when_it_begins() -> None:
    cluster = Cluster()
    worker = worker_on(cluster, shared=True)
    worker.see(Event.HELLO)  # by another one's
    worker.send(Request(7, Op.STREAM), worker.encoded({0: None}), (0,), None)
    worker.stop(7)
    cluster.calls[0][1](message_of((0, Hello(2, ()))), None)
    assert worker.take() is None
    methods = [method for method, _ in cluster.calls]
    assert methods[methods.index("post") :] == ["post", "tell"]


def test_nobody_waits_longer_for_a_node_than_for_a_start() -> None:
    cluster = Cluster()
    cluster.there = []
    worker = worker_on(cluster, shared=True)
    worker.see(Event.HELLO)
    worker.send(Request(7, Op.CALL), worker.encoded(None), (0,), 1.0)
    assert not worker.ended()
    assert worker.turn > 0  # no deadline runs while nobody is at work
    worker.common.options.start_timeout = -1.0
    assert worker.ended()
    assert "no node has been there" in worker.bury().stderr[0]


def test_what_was_not_posted_waits_for_another_node_when_the_first_never_was_there() -> None:
    cluster = Cluster()
    worker = worker_on(cluster, shared=True)
    worker.see(Event.HELLO)
    worker.send(Request(7, Op.CALL), worker.encoded(None), (0,), None)
    cluster.calls[0][1](None, NeverBegan("its node is gone"))
    assert not worker.ended()
    cluster.there, worker.common._looked = [Machine("b", "10.0.0.2", 4)], float("-inf")
    assert not worker.ended()
    assert cluster.started == ["a", "b"]
    cluster.calls[-1][1](message_of((0, Hello(2, ()))), None)
    assert worker.take() is None
    assert cluster.calls[-1][0] == "post"


def test_a_small_answer_that_overtakes_a_large_one_waits_for_it() -> None:
    cluster = Cluster()
    worker = worker_on(cluster)
    cluster.calls[0][1](message_of((0, Hello(2, ())))._replace(more=True), None)
    assert worker.hello() is not None
    assert [method for method, _ in cluster.calls] == ["advance"] * 3
    cluster.calls[2][1](message_of((0, Reply(8)))._replace(number=2), None)
    assert worker.take() is None
    cluster.calls[1][1](message_of((0, Reply(7)))._replace(number=1), None)
    assert [worker.take(), worker.take()] == [Reply(7), Reply(8)]


def test_what_follows_a_large_answer_is_cut_into_pieces() -> None:
    cluster = Cluster()
    worker = worker_on(cluster)
    cluster.calls[0][1](message_of((0, Hello(2, ())))._replace(more=True), None)
    assert worker.hello() is not None
    large = Reply(7, Extras({0: np.arange(PIECE)}, {}, {}, {}))
    cluster.calls[1][1](message_of((0, large))._replace(number=1, more=True), None)  # as large as eight pieces
    assert worker.take() is not None
    assert cluster.values == [1, 1, 1, 16]
    *pieces, batch = message_of((0, large))._replace(number=2, more=True).cut(16)
    cluster.calls[2][1](message_of((0, Reply(8)))._replace(number=3, more=True), None)
    cluster.calls[3][1]((pieces, batch), None)
    taken = worker.take()
    assert taken is not None
    assert taken.extras.infos[0].tolist() == list(range(PIECE))
    assert worker.take() == Reply(8)
    assert cluster.values == [1, 1, 1, 16, 8, 8]


def test_one_that_waits_for_a_node_can_be_killed() -> None:
    cluster = Cluster()
    cluster.there = []
    worker = worker_on(cluster, shared=True)
    worker.kill(signal.SIGKILL)
    assert worker.ended()


def test_an_answer_that_cannot_be_read_is_the_actors_end() -> None:
    cluster = Cluster()
    worker = worker_on(cluster)
    cluster.calls[-1][1](MessageBatch((Message(9, ()),), np.frombuffer(b"no pickle", np.uint8)), None)
    assert worker.hello() is None
    assert worker.ended()
    assert "cannot be read" in worker._actor.gone  # type: ignore[union-attr]
