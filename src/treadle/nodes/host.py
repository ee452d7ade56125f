"""What runs in an actor: the pool's own dispatcher over the slots' programs, driven by calls.

A request is answered by as many calls as it takes: `advance` takes a request and goes on with the first that is not
done, until there is enough for a message. The caller keeps a few such calls under way, and so never more comes than it
has asked for. `stop`, `looks` and `stack` are answered while another call works.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

from treadle.errors import UsageError
from treadle.nodes.software import differences
from treadle.nodes.travel import Batch, Writer, packed, read
from treadle.pool.broadcast import Payload
from treadle.pool.messages import Extras, Hello, Op, Raised, Reply, Request, picklable, without_failing
from treadle.pool.serve import Server

# what a message has at least, unless there is no more. What is below 100 KB Ray sends with the answer itself; what is
# larger goes through the object stores of both nodes, which costs some milliseconds
ENOUGH_BYTES, ENOUGH_SECONDS = 64 << 10, 0.05
ASIDE = ("stop", "looks", "stack")


@dataclass(frozen=True)
class Site:
    """Where an actor is. `cpus`: for its pool."""

    address: str
    cpus: int


@dataclass(frozen=True)
class World:
    """What an actor needs to know of the caller's process.

    Attributes:
        cwd, path: its folder and import path; used as far as they are there.
        software: see `treadle.nodes.software`.
    """

    cwd: str
    path: list[str]
    software: dict[str, str]

    def enter(self) -> None:
        if os.path.isdir(self.cwd):
            os.chdir(self.cwd)
        sys.path += [each for each in self.path if each not in sys.path]


class Host:
    """Args:
    world, site: see there.
    slots: which.
    programs: a pickled list of factories, one a slot, as an array of bytes.
    """

    def __init__(self, world: World, site: Site, slots: tuple[int, ...], programs: Any) -> None:
        self._slots, self._stopped, self._looks = slots, 0, 0
        self._requests: deque[Request] = deque()
        self._replies: Iterator[Reply] | None = None
        self._thread = 0
        world.enter()
        made: list[Any] = []
        try:
            if others := differences(world.software, here=site.address):
                raise UsageError(f"nodes must have the same software as the caller: {'; '.join(others)}")
            for factory in pickle.loads(memoryview(programs)):
                made.append(factory())
                arrive = getattr(made[-1], "arrive", None)
                if arrive is not None:
                    arrive(site)
            self._hello = Hello(os.getpid(), tuple(program.describe() for program in made))
        except BaseException as error:  # noqa: BLE001 - whatever a constructor raises is told, with its slot
            self._hello = Hello(os.getpid(), failed=(slots[min(len(made), len(slots) - 1)], Raised.of(error, "init")))
        self._server = Server(slots, made)

    def hello(self) -> Batch:
        """Its first word."""
        return packed(self._hello)

    def advance(self, request: Batch | None, *broadcasts: Any) -> Batch:
        """Take a request (id, op, payload), if there is one; go on with what there is to do, and tell what came of it.
        Replies to earlier requests may be among what is told."""
        self._thread = threading.get_ident()
        if request is not None:
            self._requests.append(self._opened(request, broadcasts))
        writer, since = Writer(), monotonic()
        while self._next():
            for reply in self._running():
                _add(writer, reply)
                if writer.nbytes >= ENOUGH_BYTES or monotonic() - since >= ENOUGH_SECONDS:
                    return writer.batch(self._next())
            self._replies = None
        return writer.batch()

    def _next(self) -> bool:
        """Is there anything to do?"""
        return self._replies is not None or bool(self._requests)

    def _running(self) -> Iterator[Reply]:
        if self._replies is None:
            request = self._requests.popleft()
            self._replies = self._answers(request)
        return self._replies

    def _answers(self, request: Request) -> Iterator[Reply]:
        if isinstance(request.payload, Raised):  # it could not be read
            yield Reply(request.id, Extras({}, {}, {}, dict.fromkeys(self._slots, request.payload)))
            return
        yield from self._server.handle(request, _Control(self, request.id))

    def _opened(self, request: Batch, broadcasts: tuple[Any, ...]) -> Request:
        id, op, head = next(read(request))
        try:
            payload = None if head is None else pickle.loads(head)
            if isinstance(payload, Payload):
                payload.received([memoryview(bytearray(each)) for each in broadcasts])
        except Exception as error:  # noqa: BLE001 - of a module that is not here, say
            payload = Raised.of(error, Op(op).name.lower())
        return Request(id, Op(op), payload)

    def close(self) -> Batch:
        """Close the slots; returns what they raised."""
        self._requests.clear()
        if self._replies is not None:
            self._replies.close()  # type: ignore[attr-defined]
            self._replies = None
        return packed(self._server.close())

    # -- while it works ----------------------------------------------------------------------------------------------

    def stop(self, id: int) -> None:
        """Streams of requests up to this one end at their next look."""
        self._stopped = max(self._stopped, id)

    def looks(self) -> int:
        """How often its streams have looked."""
        return self._looks

    def stack(self) -> str:
        """Of the thread that works."""
        frame = sys._current_frames().get(self._thread)
        return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()


class _Control:
    """What a stream may ask between steps."""

    def __init__(self, host: Host, id: int) -> None:
        self._host, self._id = host, id

    def stopped(self) -> bool:
        self._host._looks += 1
        return self._host._stopped >= self._id

    def resets(self, episode: int) -> None:
        """Nobody here asks what it is making: what a dead node was making is all that it had."""

    begins = ends = lambda self: None


def _add(writer: Writer, reply: Reply) -> None:
    """What cannot be pickled becomes its slot's failure."""
    try:
        writer.add(reply)
    except Exception:  # noqa: BLE001 - pickling runs foreign code
        assert reply.extras is not None
        writer.add(Reply(reply.id, without_failing(reply.extras, "stream", picklable), reply.last))


__all__ = ["ASIDE", "Host", "Site", "World"]
