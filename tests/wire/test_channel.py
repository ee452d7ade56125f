"""Channels: messages arrive whole, in order, with their descriptors; sending never waits."""

import os
import socket
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import open_fds
from injector import Pressed
from pool.kit import within
from treadle.wire import channel
from treadle.wire.channel import SPILL, Channel, Undecodable, decode, encode
from treadle.worker.thread import LocalChannel


@pytest.fixture
def ends() -> Any:
    a, b = socket.socketpair()
    pair = Channel(a), Channel(b)
    yield pair
    for end in pair:
        end.close()


MESSAGES = st.recursive(
    st.none() | st.integers() | st.text(max_size=50) | st.binary(max_size=3 * SPILL),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=40)
@given(st.lists(MESSAGES, max_size=5))
def test_messages_arrive_whole_and_in_order(messages: list[Any]) -> None:
    a, b = socket.socketpair()
    ours, theirs = Channel(a), Channel(b)
    try:
        for message in messages:
            ours.send(message)
        found = []
        while len(found) < len(messages):
            ours.pump()
            received = theirs.recv_wait(5.0)
            assert received is not None
            found.append(received[0])
        assert found == messages
        assert theirs.recv() is None
    finally:
        ours.close()
        theirs.close()


def test_arrays_of_any_size(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    for n in (0, 10, SPILL // 8, SPILL, 3 * 2**20):
        sent = {"a": np.arange(n), "b": [np.zeros(2, np.float32)] * 3}
        ours.send(sent)
        received = theirs.recv_wait(5.0)
        assert received is not None
        assert received[1] == [], "a spill file is no descriptor of the message's own"
        assert (received[0]["a"] == sent["a"]).all()
        received[0]["a"] += 1  # it is the receiver's to write in


def test_beyond_so_many_mappings_arrays_are_copied(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = ends
    monkeypatch.setattr(channel, "MOST_MAPPED", len(channel._mappings) + 1)
    held = []
    for value in (7, 8):
        ours.send(np.full(3 * SPILL, value, np.uint8))
        received = theirs.recv_wait(5.0)
        assert received is not None
        held.append(received[0])
    assert len(channel._mappings) == channel.MOST_MAPPED
    assert [set(array.tolist()) for array in held] == [{7}, {8}]


def test_sending_never_waits(ends: tuple[Channel, Channel]) -> None:
    """Far more than a socket buffer holds, with nobody reading."""
    ours, theirs = ends
    with within(5.0):
        for i in range(2000):
            ours.send((i, b"x" * 1000))
    assert not ours.pump()
    for i in range(2000):
        while (received := theirs.recv()) is None:
            ours.pump()
        assert received[0][0] == i
    assert ours.pump()


def test_partial_frames(ends: tuple[Channel, Channel]) -> None:
    """A frame is nothing until its last byte is there."""
    ours, theirs = ends
    scratch, other = socket.socketpair()
    Channel(scratch).send({"key": list(range(100))})
    frame = other.recv(65536)
    for i in range(len(frame)):
        assert theirs.recv() is None
        ours.sock.send(frame[i : i + 1])
    assert theirs.recv_wait(1.0) == ({"key": list(range(100))}, [])
    scratch.close()
    other.close()


def test_descriptors_travel(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    read, write = os.pipe()
    ours.send("plain")
    ours.send(np.zeros(SPILL), (write, read))  # beside a spill file
    ours.send("after", (read,))
    os.close(write)
    assert theirs.recv_wait(1.0) == ("plain", [])
    received = theirs.recv_wait(1.0)
    assert received is not None
    os.write(received[1][0], b"hello")
    last = theirs.recv_wait(1.0)
    assert last is not None
    assert last[0] == "after"
    assert os.read(last[1][0], 10) == b"hello"
    for fd in (read, *received[1], *last[1]):
        os.close(fd)


def test_unpicklable_messages_send_nothing(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    with pytest.raises(TypeError):
        ours.send({"lock": threading.Lock()})
    ours.send(lambda: 42)
    received = theirs.recv_wait(1.0)
    assert received is not None
    assert received[0]() == 42


def test_a_message_that_cannot_be_unpickled_leaves_no_descriptors(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    read, write = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    ours.send(Poison(), (read, write), block=True)
    ours.send("next", (read,), block=True)
    with pytest.raises(Undecodable) as caught:
        theirs.recv_wait(1.0)
    assert isinstance(caught.value.error, ZeroDivisionError)
    received = theirs.recv_wait(1.0)
    assert received is not None
    assert received[0] == "next"
    for fd in received[1]:
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(read)
    os.close(write)


class Poison:
    def __reduce__(self) -> Any:
        return divmod, (1, 0)


def test_what_is_packed_and_never_sent_leaves_no_descriptors(ends: tuple[Channel, Channel]) -> None:
    """Ctrl-C may come between the two."""
    before = len(os.listdir("/proc/self/fd"))
    packed = ends[0].pack(b"x" * 10 * SPILL)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    with pytest.warns(ResourceWarning):
        del packed
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_other_end_is_gone(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    ours.send("last")
    ours.close()
    assert theirs.recv() == ("last", [])
    with pytest.raises(EOFError):
        theirs.recv()
    with pytest.raises(OSError):
        theirs.send("anybody?")


class Slow:
    """The person at the keyboard has no patience while it is unpickled for the first time."""

    impatient = True

    def __init__(self, size: int) -> None:
        self.data = np.zeros(size, np.uint8)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if Slow.impatient:
            Slow.impatient = False
            raise KeyboardInterrupt
        self.__dict__.update(state)


@pytest.mark.parametrize("size", [1, 2 * SPILL])
def test_an_interrupt_while_unpickling_loses_nothing(size: int, ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    Slow.impatient = True
    ours.send(Slow(size), block=True)
    ours.send("next", block=True)
    with pytest.raises(KeyboardInterrupt):
        theirs.recv_wait(1.0)
    received = theirs.recv_wait(1.0)
    assert received is not None
    assert received[0].data.size == size
    assert theirs.recv_wait(1.0) == ("next", [])


@given(MESSAGES)
def test_encode_and_decode(message: Any) -> None:
    body, files = encode(message)
    try:
        assert decode(body, [file.fileno() for file in files]) == (message, [])
    finally:
        for file in files:
            file.close()


def test_within_a_process_objects_pass_as_they_are() -> None:
    a, b = LocalChannel.pair()
    thing = object()
    a.send_packed(a.pack(thing))
    assert b.recv_wait() == (thing, [])
    assert b.recv_wait() is None
    assert a.recv_wait(0.0) is None


class TakesAlong:
    """A message with a large array, and two descriptors that go along."""

    def __init__(self, files: tuple[int, ...]) -> None:
        self.files, self.array = files, np.zeros(SPILL)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the file of a message that nobody has closes itself
def test_ctrl_c_at_every_moment_of_packing_and_sending_loses_no_descriptor(ends: Any) -> None:
    ours, theirs = ends
    message, pressed = TakesAlong((0, 1)), Pressed()

    def act() -> None:
        packed = ours.pack(message)
        try:
            ours.send_packed(packed)
        except BaseException:
            pressed.stop()
            packed.discard()
            raise

    def arrived() -> None:
        while (received := theirs.recv()) is not None:
            for fd in received[1]:
                os.close(fd)

    points = pressed.count(act)
    arrived()
    before = set(open_fds())
    for point in range(1, points + 1):
        pressed.run(act, point)
        ours.pump()
        arrived()
        assert set(open_fds()) <= before, pressed.moment
    assert points > 50
