"""The channel between two processes: a socket pair that carries pickled messages and descriptors.

Frames are `length, descriptors` and a pickle (protocol 5). A message above `SPILL` bytes is written with its
out-of-band buffers into a memory file of its own, and only the descriptor travels. The receiver maps it and unpickles
arrays over the mapping, without a copy, and no socket buffer can be too small for it. So sending a request never blocks
the caller, and an episode of 100 MB costs the same trip as a small one.

Within one process (threads) `LocalChannel` (`treadle.worker.thread`) has the same interface.
"""

from __future__ import annotations

import array
import errno
import io
import mmap
import os
import pickle
import select
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from treadle import pickling
from treadle.interrupts import owned
from treadle.memory.arena import anonymous_file, map_file, too_many_files
from treadle.whole_file import why

HEAD = struct.Struct("<II")  # bytes of the body, number of descriptors
SPILL_HEAD = struct.Struct("<Q")
SPILL = 16 * 1024
MOST_MAPPED = 1 << 14  # mappings of messages that may be held; Linux allows a process 65530 of all kinds


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickled message; `files` holds its spill file, if it has one, and then the files that it takes along.

    They are objects, which close themselves where an interrupt (Ctrl-C) comes before they are sent. They do so without
    a `__del__` of ours, in which an interrupt would be lost.
    """

    body: bytes
    files: list[io.FileIO]

    @property
    def size(self) -> float:
        """Bytes, when the body is the whole message; infinite when files go with it."""
        return float("inf") if self.files else len(self.body)

    def take_along(self, fds: Iterable[int]) -> None:
        """Add duplicates of descriptors. Raises OSError when the limit is reached, and is discarded then."""
        try:
            for fd in fds:
                self.files.append(owned(partial(os.dup, fd)))
        except OSError:
            self.discard()
            raise

    def discard(self) -> None:
        """Close the files, once it has been sent or will not be."""
        for file in self.files:
            file.close()
        self.files.clear()


SENT = Packed(b"", [])  # in place of a message whose last bytes are not sent yet: its files are closed


class Undecodable(Exception):
    """A message has arrived and cannot be unpickled. `error`: why, of any class, a channel's own errors included.

    A worker passes it on in place of the payload.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__} while unpickling")
        self.error = error


class Channel:
    """One end of a channel. `recv` and `send` are for one thread at a time; frames keep their order.

    Attributes:
        outbox: messages that the socket has not taken yet.
    """

    in_process = False

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self._inbox = bytearray()
        self._fds: deque[int] = deque()
        self.outbox: deque[tuple[memoryview, Packed]] = deque()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return the caller's end, and the socket that becomes the other's."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Any, fds: tuple[int, ...] = (), *, block: bool = False) -> None:
        """Send, never waiting unless `block`; a later call of `pump` sends what the socket does not take now.

        `fds` are duplicated at once, so the caller may close its own. Raises OSError when the other end is gone, and
        whatever pickling raises (nothing is sent then).
        """
        self.send_packed(self.pack(message), fds, block=block)

    def pack(self, message: Any) -> Packed:
        """Pickle a message without sending it: it must be sent or discarded (a spill file may be open).

        A message that names descriptors as its `files` takes them along, as duplicates.
        """
        packed = Packed(*encode(message))
        if files := getattr(message, "files", ()):
            packed.take_along(files)
        return packed

    def send_packed(self, packed: Packed, fds: tuple[int, ...] = (), *, block: bool = False) -> None:
        """Send a packed message; the second half of `send`."""
        packed.take_along(fds)
        self.outbox.append((memoryview(HEAD.pack(len(packed.body), len(packed.files)) + packed.body), packed))
        while not self.pump() and block:
            select.select([], [self.sock], [])

    def pump(self) -> bool:
        """Send what is waiting. Returns True when nothing is left."""
        while self.outbox:
            data, packed = self.outbox[0]
            try:
                fds = [file.fileno() for file in packed.files]
                sent = socket.send_fds(self.sock, [data], fds) if fds else self.sock.send(data)
            except BlockingIOError:
                return False
            self.outbox[0] = (data[sent:], SENT)  # noted before the descriptors are closed: an interrupt may come
            packed.discard()
            if sent == len(data):
                self.outbox.popleft()
        return True

    def recv(self) -> tuple[Any, list[int]] | None:
        """Return the next message and its own descriptors; None when it is not whole yet.

        Raises EOFError at the end, and Undecodable, with the message taken.
        """
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
        """Do as `recv`, waiting up to `timeout` seconds (None: for ever) for the next whole message."""
        while (message := self.recv()) is None:
            if not select.select([self.sock], [], [], timeout)[0]:
                return None
        return message

    def decode(self, body: bytes) -> Any:
        """Return a message that is all in its body, wherever it came from. Raises Undecodable."""
        try:
            return decode(body, [])[0]
        except (Exception, SystemExit) as error:  # unpickling runs foreign code, and may lack the sender's modules
            raise Undecodable(error) from error

    def close(self) -> None:
        for _, packed in self.outbox:
            packed.discard()
        self.outbox.clear()
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
        except (Exception, SystemExit) as error:  # of foreign code; Ctrl-C leaves the message, to be read again
            self._consume(HEAD.size + length, count, count)
            raise Undecodable(error) from error
        self._consume(HEAD.size + length, count, body[0])
        return message

    def _consume(self, nbytes: int, count: int, own: int) -> None:
        """Remove a message and its descriptors; close the first `own` of them, which are its own."""
        fds = [self._fds.popleft() for _ in range(count)]
        del self._inbox[:nbytes]
        for fd in fds[:own]:
            os.close(fd)


def encode(message: Any) -> tuple[bytes, list[io.FileIO]]:
    """Return (body, its own files) of a message.

    Small arrays, and everything else if it is not much, are in the body (tag 0). Large arrays and all else go into a
    spill file (tag 1).
    """
    raws: list[memoryview] = []
    left = 0

    def kept(buffer: pickle.PickleBuffer) -> bool:
        nonlocal left
        raw = buffer.raw()
        if raw.nbytes <= left:
            left -= raw.nbytes
            return True
        raws.append(raw)
        return False

    def fresh() -> Callable[[pickle.PickleBuffer], bool]:
        nonlocal left
        raws.clear()
        left = SPILL
        return kept

    head = pickling.quickly(message, fresh)
    if not raws and len(head) <= 2 * SPILL:
        return b"\0" + head, []
    return b"\1", [spill([head, *raws], [len(head), *(raw.nbytes for raw in raws)])]


def decode(body: bytes, fds: list[int]) -> tuple[Any, list[int]]:
    """Return the message and the descriptors that came with it, without its own, which stay open."""
    if body[0] == 0:
        return pickle.loads(memoryview(body)[1:]), fds
    return unpack(mapped(fds[0])), fds[1:]


_mappings: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def mapped(file: int, *, private: bool = False) -> memoryview:
    """Return a spill file mapped into memory; the descriptor stays open.

    A copy where this process has `MOST_MAPPED` mappings already. `private`: writes to it are not seen by other
    processes.
    """
    size = os.fstat(file).st_size
    if len(_mappings) >= MOST_MAPPED:
        return memoryview(copied(file, size))
    memory = map_file(file, size, flags=mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
    _mappings.add(memory)
    return memoryview(memory)


def copied(file: int, size: int) -> mmap.mmap:
    """Return a file's content in memory of our own."""
    memory = mmap.mmap(-1, size)
    done = 0
    with memoryview(memory) as view:
        while done < size:
            done += os.preadv(file, [view[done:]], done)
    return memory


def unpack(view: memoryview) -> Any:
    """Return the message in a spill file; its arrays lie in the file's memory."""
    parts = parts_of(view)
    return pickle.loads(parts[0], buffers=parts[1:])


def parts_of(view: memoryview) -> list[memoryview]:
    """Return the parts that were spilt."""
    (count,) = SPILL_HEAD.unpack_from(view)
    sizes = struct.unpack_from(f"<{count}Q", view, SPILL_HEAD.size)
    parts, offset = [], _align(SPILL_HEAD.size * (count + 1))
    for nbytes in sizes:
        parts.append(view[offset : offset + nbytes])
        offset += _align(nbytes)
    return parts


def spill(parts: list[Any], sizes: list[int]) -> io.FileIO:
    """Return a file in memory that holds the parts."""
    head = struct.pack(f"<Q{len(sizes)}Q", len(sizes), *sizes)
    total = _align(len(head)) + sum(_align(n) for n in sizes)
    file = owned(anonymous_file, "r+")
    try:
        try:
            file.truncate(total)
        except OSError as error:
            raise OSError(error.errno, why(error)) from error
        offset = 0
        for part in (head, *parts):
            view = memoryview(part).cast("B")
            done = 0
            while done < len(view):
                done += os.pwrite(file.fileno(), view[done : done + 2**30], offset + done)
            offset += _align(len(view))
    except BaseException:
        file.close()
        raise
    return file


def _align(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _recvmsg(sock: socket.socket, nbytes: int = 65536, most: int = 16) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE(most * array.array("i").itemsize)  # socket.recv_fds leaves its flags out
    data, ancillary, flags, _ = sock.recvmsg(nbytes, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:  # the kernel dropped descriptors that it cannot number: they never come
        for fd in fds:
            os.close(fd)
        lost = OSError(errno.EMFILE, "Too many open files: a descriptor that came with a message was lost")
        raise too_many_files(lost) or lost
    return data, list(fds)
