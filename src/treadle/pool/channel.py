"""The control plane's road between two processes: a socket pair that carries pickled messages and descriptors.

Frames are `length, descriptors` and a pickle (protocol 5). A message above `SPILL` bytes is written with its
out-of-band buffers into a memory file of its own, and only the descriptor travels: the receiver maps it and unpickles
arrays straight over the mapping, without a copy, and no socket buffer can ever be too small for it. So sending a
request never blocks the caller, and an episode of 100 MB costs the same trip as a small one.

`LocalChannel` is the same road within one process (threads): objects pass as they are.
"""

from __future__ import annotations

import array
import errno
import mmap
import os
import pickle
import select
import socket
import struct
import tempfile
from collections import deque
from dataclasses import dataclass
from typing import Any

import cloudpickle

HEAD = struct.Struct("<II")  # bytes of the body, number of descriptors
SPILL_HEAD = struct.Struct("<Q")
SPILL = 16 * 1024


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickled message; `fds` holds its spill file, if it has one, and then the files that it takes along."""

    body: bytes
    fds: list[int]

    @property
    def size(self) -> float:
        """Bytes, when the body is all there is; infinite when files go with it."""
        return float("inf") if self.fds else len(self.body)

    def discard(self) -> None:
        """It is not going to be sent."""
        for fd in self.fds:
            os.close(fd)


class Channel:
    """One end. `recv` and `send` are for one thread at a time; frames keep their order."""

    in_process = False

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self._inbox = bytearray()
        self._fds: deque[int] = deque()
        self._outbox: deque[tuple[memoryview, list[int]]] = deque()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """The caller's end, and the socket that becomes the other's."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Any, fds: tuple[int, ...] = (), *, block: bool = False) -> None:
        """Send, never waiting unless `block`; what the socket does not take now goes with a later call of `pump`.

        `fds` are duplicated at once, so the caller may close its own. Raises OSError when the other end is gone, and
        whatever pickling raises (nothing is sent then).
        """
        self.send_packed(self.pack(message), fds, block=block)

    @staticmethod
    def pack(message: Any) -> Packed:
        """Pickle a message without sending it. Whoever packs must send or `discard` it (a spill file may be open).

        A message that names descriptors as its `files` takes them along, as duplicates.
        """
        packed = Packed(*encode(message))
        for file in getattr(message, "files", ()):
            packed.fds.append(os.dup(file))
        return packed

    def send_packed(self, packed: Packed, fds: tuple[int, ...] = (), *, block: bool = False) -> None:
        """The second half of `send`."""
        owned = list(packed.fds)
        try:
            for fd in fds:
                owned.append(os.dup(fd))
        except OSError:
            for fd in owned:
                os.close(fd)
            raise
        self._outbox.append((memoryview(HEAD.pack(len(packed.body), len(owned)) + packed.body), owned))
        while not self.pump() and block:
            select.select([], [self.sock], [])

    def pump(self) -> bool:
        """Push out what is waiting. True when nothing is left."""
        while self._outbox:
            data, fds = self._outbox[0]
            try:
                sent = _sendmsg(self.sock, data, fds)
            except BlockingIOError:
                return False
            self._outbox[0] = (data[sent:], [])  # noted before descriptors are closed: an interrupt may come
            while fds:
                os.close(fds.pop())
            if sent == len(data):
                self._outbox.popleft()
        return True

    def recv(self) -> tuple[Any, list[int]] | None:
        """The next message and its own descriptors; None when it is not whole yet. Raises EOFError at the end."""
        message = self._whole()
        while message is None:
            try:
                data, fds = _recvmsg(self.sock)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                data, fds = b"", []
            if not data:
                raise EOFError("the other end of the channel is closed")
            self._inbox += data
            self._fds.extend(fds)
            message = self._whole()
        return message

    def recv_wait(self, timeout: float | None = None) -> tuple[Any, list[int]] | None:
        """As `recv`, waiting up to `timeout` seconds (None: for ever) for the next whole message."""
        while (message := self.recv()) is None:
            if not select.select([self.sock], [], [], timeout)[0]:
                return None
        return message

    def close(self) -> None:
        for _, fds in self._outbox:
            while fds:
                os.close(fds.pop())
        self._outbox.clear()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self.sock.close()

    def _whole(self) -> tuple[Any, list[int]] | None:
        if len(self._inbox) < HEAD.size:
            return None
        length, count = HEAD.unpack_from(self._inbox)
        if len(self._inbox) < HEAD.size + length or len(self._fds) < count:
            return None
        body, fds = bytes(self._inbox[HEAD.size : HEAD.size + length]), [self._fds[i] for i in range(count)]
        try:
            message = decode(body, fds)
        except Exception:
            self._consume(HEAD.size + length, count, body)
            raise  # what foreign code says; an interrupt (Ctrl-C) of it leaves the message there, to be read again
        self._consume(HEAD.size + length, count, body)
        return message

    def _consume(self, nbytes: int, count: int, body: bytes) -> None:
        fds = [self._fds.popleft() for _ in range(count)]
        del self._inbox[:nbytes]
        if _spilt(body):
            os.close(fds[0])


def encode(message: Any) -> tuple[bytes, list[int]]:
    """(body, [descriptor of the spill file]) of a message; large ones go into the spill file whole."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        head = pickle.dumps(message, 5, buffer_callback=buffers.append)
    except Exception:  # noqa: BLE001 - lambdas and local classes: cloudpickle knows how, or raises the real reason
        buffers.clear()
        head = cloudpickle.dumps(message, 5, buffer_callback=buffers.append)
    raws = [b.raw() for b in buffers]
    total = len(head) + sum(len(r) for r in raws)
    if total <= SPILL and not raws:
        return b"\0" + head, []
    if total <= SPILL:
        return b"\0" + pickle.dumps(message, 5), []
    fd = spill([head, *raws], [len(head), *(len(r) for r in raws)])
    return b"\1", [fd]


def decode(body: bytes, fds: list[int]) -> tuple[Any, list[int]]:
    """The message and the descriptors that came with it, without the spill file, which stays open."""
    if not _spilt(body):
        return pickle.loads(memoryview(body)[1:]), fds
    first, *fds = fds
    return unpack(mapped(first)), fds


def mapped(file: int, *, private: bool = False) -> memoryview:
    """A spill file in memory; the descriptor stays open. `private`: what is written there, nobody else sees."""
    size = os.fstat(file).st_size
    return memoryview(mmap.mmap(file, size, flags=mmap.MAP_PRIVATE if private else mmap.MAP_SHARED))


def unpack(view: memoryview) -> Any:
    """The message in a spill file; its arrays lie in the file's memory."""
    (count,) = SPILL_HEAD.unpack_from(view)
    sizes = struct.unpack_from(f"<{count}Q", view, SPILL_HEAD.size)
    parts, offset = [], _align(SPILL_HEAD.size * (count + 1))
    for nbytes in sizes:
        parts.append(view[offset : offset + nbytes])
        offset += _align(nbytes)
    return pickle.loads(parts[0], buffers=parts[1:])


def _spilt(body: bytes) -> bool:
    return body[0] == 1


def spill(parts: list[Any], sizes: list[int]) -> int:
    head = struct.pack(f"<Q{len(sizes)}Q", len(sizes), *sizes)
    total = _align(len(head)) + sum(_align(n) for n in sizes)
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("treadle-message", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(prefix="treadle-") as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, total)
        offset = 0
        for part in (head, *parts):
            view = memoryview(part).cast("B")
            done = 0
            while done < len(view):
                done += os.pwrite(fd, view[done : done + 2**30], offset + done)
            offset += _align(len(view))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _align(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _sendmsg(sock: socket.socket, data: memoryview, fds: list[int]) -> int:
    if not fds:
        return sock.send(data)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    return sock.sendmsg([data], ancillary)


def _recvmsg(sock: socket.socket, nbytes: int = 65536, most: int = 16) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE(most * array.array("i").itemsize)
    data, ancillary, flags, _ = sock.recvmsg(nbytes, room, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:  # the kernel drops what it cannot number; waiting for it would be for ever
        for fd in fds:
            os.close(fd)
        raise OSError(errno.EMFILE, "Too many open files: a descriptor that came with a message was lost")
    return data, list(fds)


@dataclass(frozen=True, slots=True)
class LocalPacked:
    """A message that needs no pickling, and so never fits the box."""

    body: Any
    size: float = float("inf")

    def discard(self) -> None:
        """Nothing is held."""


class LocalChannel:
    """One end of a road within a process: messages pass by reference."""

    in_process = True

    def __init__(self, inbox: deque[Any], outbox: deque[Any]) -> None:
        self._inbox, self._outbox = inbox, outbox

    @classmethod
    def pair(cls) -> tuple[LocalChannel, LocalChannel]:
        a: deque[Any] = deque()
        b: deque[Any] = deque()
        return cls(a, b), cls(b, a)

    @staticmethod
    def pack(message: Any) -> LocalPacked:
        return LocalPacked(message)

    def send(self, message: Any, fds: tuple[int, ...] = (), *, block: bool = False) -> None:
        self._outbox.append(message)

    def send_packed(self, packed: LocalPacked, fds: tuple[int, ...] = (), *, block: bool = False) -> None:
        self._outbox.append(packed.body)

    def recv(self) -> tuple[Any, list[int]] | None:
        return (self._inbox.popleft(), []) if self._inbox else None

    def recv_wait(self, timeout: float | None = None) -> tuple[Any, list[int]] | None:
        return self.recv()

    def pump(self) -> bool:
        return True

    def close(self) -> None:
        self._inbox.clear()
