"""Lines: two rings of words, whatever is said and wherever it is cut short."""

import itertools
import socket
import threading
from typing import Any

import pytest

from injector import Pressed
from pool.kit import until, within
from treadle.memory.arena import Arena
from treadle.wire.bell import LocalBell
from treadle.wire.channel import SPILL, Channel
from treadle.wire.info_rows import InfoPacker, InfoRows
from treadle.wire.line import BOX, CREDIT, STARVED, Chosen, Line, LineFields, Undecodable, Unsendable, WorkerLine
from treadle.wire.messages import Extras


class Ends:
    """Both ends of a line within this process, over a real channel."""

    def __init__(self, slots: int = 2) -> None:
        self.arena = Arena(shared=False)
        plan = self.arena.plan()
        fields = LineFields.plan(plan, slots)
        self.arena.grow(plan)
        a, b = socket.socketpair()
        self.channels = Channel(a), Channel(b)
        self.bells = LocalBell(), LocalBell()
        names = tuple(range(slots))
        self.caller = Line(self.arena, fields, *self.bells, self.channels[0], names)
        self.worker = WorkerLine(self.arena, fields, *self.bells, self.channels[1])

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


@pytest.fixture
def line() -> Any:
    made = Ends()
    yield made
    made.close()


def extras(value: Any) -> Extras:
    return Extras({0: value}, {}, {}, {})


@pytest.mark.parametrize("size", [None, 10, BOX - 300, BOX, BOX + 1, 20 * SPILL])
def test_both_rings_wrap(size: int | None, line: Ends) -> None:
    """With nothing to say, with words that fit the box, that just do not, and that need a file."""
    for id in range(1, 5 * line.caller.depth):
        line.caller.post(id, 2, id % 7, line.caller.channel.pack({"payload": id}) if id % 3 == 0 else None)
        assert line.worker.next() == (id, 2, id % 7, {"payload": id} if id % 3 == 0 else None)
        assert line.caller.take(0.0) is None
        line.worker.answer(id, None if size is None else extras(b"%d" % id + b"x" * size))
        reply = line.caller.take(1.0)
        assert reply is not None
        assert (reply.id, reply.last) == (id, True)
        assert reply.extras == (None if size is None else extras(b"%d" % id + b"x" * size))
    assert line.caller.idle()


@pytest.mark.parametrize("size", [0, BOX - 100, BOX, 3 * SPILL])
def test_payloads_of_any_size(size: int, line: Ends) -> None:
    """Those that fit the box need no channel; the others keep their place among them."""
    payloads = [b"%d" % id + b"x" * (size if id % 2 else 0) for id in range(1, 3 * line.caller.depth)]
    for id, payload in enumerate(payloads, 1):
        line.caller.post(id, 3, -1, line.caller.channel.pack(payload))
        if id > 5:  # some are always on their way
            assert line.worker.next() == (id - 5, 3, -1, payloads[id - 6])
            line.worker.answer(id - 5, None)
            assert line.caller.take(0.0) is not None


# what a channel itself raises when the other end is gone is also what a proxy raises whose server is
KINDS = [RuntimeError, EOFError, ConnectionRefusedError, FileNotFoundError, SystemExit]
POISONS = pytest.mark.parametrize("kind", KINDS)
SIZES = pytest.mark.parametrize("size", [0, 2 * BOX, 3 * SPILL])


@POISONS
@SIZES
def test_a_payload_that_cannot_be_unpickled_fails_its_request(size: int, kind: type, line: Ends) -> None:
    line.caller.post(1, 3, -1, line.caller.channel.pack(Poison(kind, size)))
    line.caller.post(2, 3, -1, line.caller.channel.pack("sound"))
    found = line.worker.next()[3]
    assert isinstance(found, Undecodable)
    assert isinstance(found.error, kind)
    assert str(found.error) == "poison"
    assert line.worker.next()[3] == "sound"


def test_requests_queue_up_in_order(line: Ends) -> None:
    for id in range(1, line.caller.depth):
        line.caller.post(id, 2, -1)
    assert not line.caller.idle()
    assert [line.worker.next()[0] for _ in range(1, line.caller.depth)] == list(range(1, line.caller.depth))


@pytest.mark.parametrize("slot", [0, 1, 100_000])
def test_a_step_of_one_slot_needs_no_message(slot: int, line: Ends) -> None:
    line.caller.post(1, 2, 5, Chosen.one(slot))
    with line.channels[1].sock as nothing_there, pytest.raises(BlockingIOError):
        nothing_there.recv(1)
    id, op, block, (chosen, loose) = line.worker.next()
    assert (id, op, block, chosen, loose) == (1, 2, 5, [slot], None)


def test_a_stream_waits_for_credit(line: Ends) -> None:
    id, worker = 1, line.worker
    room = 0
    while worker.given - worker.words[CREDIT] < worker.depth - 2:
        assert worker.credit(id)
        worker.answer(id, None, last=False)
        room += 1
    assert room == worker.depth - 2, "two entries stay free: for the last answer, and for that to close"
    got: list[bool] = []
    waiting = threading.Thread(target=lambda: got.append(worker.credit(id)))
    waiting.start()
    until(lambda: worker.words[2] == 1)
    assert line.caller.take(0.0) is not None
    with within(2.0):
        waiting.join()
    assert got == [True]
    line.caller.stop(id)
    worker.answer(id, None, last=False)
    assert not worker.credit(id)
    assert worker.stopped(id)
    assert not worker.stopped(id + 1)


def test_the_beat_of_a_stream(line: Ends) -> None:
    """It changes with every look of the worker; while that waits for the caller there is none to be had."""
    seen = [line.caller.beat()]
    assert not line.worker.stopped(1)
    seen.append(line.caller.beat())
    assert len(set(seen)) == 2
    assert None not in seen
    line.worker.words[STARVED] = 1
    assert line.caller.beat() is None


def test_a_new_worker_finds_a_clean_line(line: Ends) -> None:
    for id in range(1, 6):
        line.caller.post(id, 2, -1)
    line.worker.next()
    line.worker.answer(1, extras("old"))
    line.caller.stop(5)
    line.caller.clear()
    fresh = line.worker
    fresh.taken = fresh.given = 0
    assert line.caller.take(0.0) is None
    assert not fresh.stopped(1)
    line.caller.post(9, 2, 3)
    assert fresh.next() == (9, 2, 3, None)


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("payload", [None, b"in the box"])
def test_a_post_that_is_interrupted_is_there_or_is_not(payload: Any, fenced: bool, line: Ends) -> None:
    """Wherever that was: what is posted after it arrives."""
    caller, pressed = line.caller, Pressed()
    caller.fenced = line.worker.fenced = fenced
    ids = itertools.count(1)

    def post() -> None:
        caller.post(next(ids), 2, 5, None if payload is None else caller.channel.pack(payload))

    points, posted = pressed.count(post), 1
    for point in range(1, points + 1):
        pressed.run(post, point)
        assert caller.posted in (posted, posted + 1), pressed.moment
        posted = caller.posted + 1
        caller.post(next(ids), 2, 6)
        assert caller.posted == posted, pressed.moment
        while line.worker.taken < posted:
            request = line.worker.next()
            assert request[1:3] in ((2, 5), (2, 6)), pressed.moment
            assert request[3] == (payload if request[2] == 5 else None), pressed.moment
        assert request[2] == 6
    assert points > 2


@POISONS
@SIZES
def test_an_answer_that_cannot_be_unpickled_names_the_slots(size: int, kind: type, line: Ends) -> None:
    line.caller.post(1, 3)
    line.worker.next()
    line.worker.answer(1, extras(Poison(kind, size)))
    reply = line.caller.take(1.0)
    assert reply is not None
    assert set(reply.extras.raised) == {0, 1}
    assert (reply.extras.raised[0].error_type, reply.extras.raised[0].message) == (kind.__name__, "poison")
    assert line.caller.idle()


class Poison:
    def __init__(self, kind: type, size: int) -> None:
        self.kind, self.size = kind, size

    def __reduce__(self) -> Any:
        return swallow, (self.kind, b"x" * self.size)


def swallow(kind: type, _: bytes) -> None:
    raise kind("poison")


class Sealed(int):
    """A word that cannot be packed."""

    def __reduce__(self) -> Any:
        raise TypeError("sealed")


def test_rows_are_not_known_before_their_schema_has_travelled(line: Ends) -> None:
    groups, _ = InfoPacker((0,)).pack({0: {"x": 1}})
    groups[0][0].keys = ("x", Sealed())
    with pytest.raises(Unsendable, match="TypeError"):
        line.worker.answer(1, Extras(InfoRows(groups), {}, {}, {}))
    groups[0][0].keys = ("x",)
    for id in (2, 3):
        line.worker.answer(id, Extras(InfoRows(groups), {}, {}, {}))
        reply = line.caller.take(1.0)
        assert reply is not None
        assert reply.extras is not None
        assert dict(reply.extras.infos) == {0: {"x": 1}}
        assert not reply.extras.raised


def test_a_worker_that_dies_within_an_answer(line: Ends) -> None:
    """The entry is announced and the payload never comes: nothing is taken, nothing is raised."""
    line.caller.post(1, 3)
    line.worker.next()
    at = 0
    line.worker.answers[at + 1], line.worker.answers[at + 2], line.worker.answers[at] = 1, 2, 1
    line.channels[1].close()
    assert line.caller.take(1.0) is None
    assert line.caller.taken == 0
