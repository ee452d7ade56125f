"""The table of a worker's life: no process in sight."""

import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tables import diagram
from treadle.errors import UsageError
from treadle.wire.messages import Op, Reply, Request, WorkerSpec
from treadle.worker.life import ALIVE, TABLE, Event, State, after
from treadle.worker.worker import SerialWorker, Worker

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import draw_life

DOCS = Path(__file__).parent.parent.parent / "docs" / "life.md"


def test_the_documented_table_is_the_table() -> None:
    table = diagram(State, TABLE)
    assert table in DOCS.read_text(encoding="utf-8"), "put what `diagram` returns into docs/life.md"
    picture = DOCS.with_name("worker-life.svg").read_text(encoding="utf-8")
    assert picture == draw_life.worker_life(), "run scripts/draw_life.py"


def test_what_the_table_does_not_have_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="idle cannot see 'reply'"):
        after(State.IDLE, Event.REPLY)
    for state in State:
        for event in Event:
            if (state, event) in TABLE:
                assert after(state, event) is TABLE[state, event]
            else:
                with pytest.raises(RuntimeError):
                    after(state, event)


def test_every_state_can_be_reached_and_closed() -> None:
    reached, new = {State.STARTING}, {State.STARTING}
    while new:
        new = {then for (at, _), then in TABLE.items() if at in new} - reached
        reached |= new
    assert reached == set(State)
    for state in State:
        assert after(after(state, Event.CLOSE), Event.CLOSED) is State.CLOSED


def test_nothing_leads_out_of_a_terminal_state() -> None:
    for state in (State.GONE, State.CLOSED):
        ways = {then for (at, _), then in TABLE.items() if at is state} - {state}
        assert ways <= {State.CLOSING}, "all that is left is the pool's own end"
    assert {then for (at, _), then in TABLE.items() if at is State.CLOSED} == {State.CLOSED}


def test_every_living_worker_may_die() -> None:
    for state in ALIVE | {State.STARTING}:
        assert after(state, Event.DIED) is State.DEAD


class Silent(SerialWorker):
    """A worker that takes requests and does nothing."""

    def __init__(self) -> None:
        super().__init__(WorkerSpec(0, (0,), b""), [], None)

    def post(self, request: Request, packed: None) -> None:
        """Nothing happens."""


ACTS = st.lists(
    st.sampled_from(["send", "reply", "more", "deadline", "die", "restart", "drop", "hello", "close", "interrupted"]),
    max_size=40,
)


@given(ACTS)
def test_no_sequence_that_a_pool_can_produce_is_missing(acts: list[str]) -> None:
    """A worker is driven as the pool drives it: requests to the living only, answers in order, deadlines for all."""
    worker = Silent()
    sent: deque[int] = deque()  # what the worker has yet to answer
    dropped: set[int] = set()
    last = 0
    for act in acts:
        if act == "send" and worker.state in ALIVE:
            last += 1
            worker.send(Request(last, Op.STEP), None, (0,), 1.0)
            sent.append(last)
        elif act in ("reply", "more") and worker.state in ALIVE and sent:
            id = sent[0] if act == "more" else sent.popleft()
            wanted = worker.settle(Reply(id, last=act == "reply"))
            assert wanted == (id not in dropped), "late replies are dropped, all others delivered"
        elif act == "interrupted" and worker.state in ALIVE and len(sent) > 1:
            sent.popleft()  # its answer was taken, and never noted
        elif act == "deadline" and worker.state in ALIVE and worker.owed:
            dropped |= set(worker.late) | {owed.request.id for owed in worker.owed}
            worker.late |= {owed.request.id for owed in worker.owed}
            worker.see(Event.DEADLINE)
        elif act == "die" and worker.state in ALIVE | {State.STARTING}:
            worker.owed.clear()
            worker.late.clear()
            sent.clear()
            worker.see(Event.DIED)
        elif act == "restart" and worker.state is State.DEAD:
            worker.see(Event.RESTART)
        elif act == "drop" and worker.state is State.DEAD:
            worker.see(Event.DROP)
        elif act == "hello" and worker.state is State.STARTING:
            worker.see(Event.HELLO)
        elif act == "close":
            worker.see(Event.CLOSE)
        check(worker)
    worker.see(Event.CLOSE)
    worker.see(Event.CLOSED)
    assert worker.state is State.CLOSED


def check(worker: Worker) -> None:
    if worker.state is State.IDLE:
        assert not worker.owed
        assert not worker.late
    if worker.state in (State.BUSY, State.LATE):
        assert worker.owed
    if worker.state is State.BUSY:
        assert not worker.late


def test_a_request_that_could_not_be_sent_is_not_owed() -> None:
    class Refusing(Silent):
        def pack(self, payload: Any) -> None:
            raise TypeError("cannot pickle this")

        def post(self, request: Request, packed: None) -> None:
            raise OSError("no buffers")

    worker = Refusing()
    worker.see(Event.HELLO)
    with pytest.raises(UsageError, match="cannot pickle this"):
        worker.encoded("this")
    with pytest.raises(OSError, match="no buffers"):
        worker.send(Request(1, Op.CALL), None, (0,), None)
    assert worker.state is State.IDLE
    assert not worker.owed
