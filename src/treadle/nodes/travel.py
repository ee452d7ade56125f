"""What travels between a caller and its nodes: messages, and all their arrays in one contiguous buffer.

A pickle of protocol 5 leaves the bytes of arrays out; here they are put behind one another, so that Ray moves a single
buffer whatever it holds, and whoever takes it copies once: what Ray hands out is read-only and lies in its object store
for as long as anything refers to it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from treadle import pickling
from treadle.pool.messages import ExitReport, Hello, Reply, picklable, without_failing

ALIGN = 64
Said = Reply | Hello | ExitReport  # by a worker, or of its end


class Message(NamedTuple):
    """One value. `head`: its pickle; `sizes`: of the buffers that go with it, each begins at a multiple of `ALIGN`."""

    head: bytes
    sizes: tuple[int, ...]


class Batch(NamedTuple):
    """Messages, and one buffer for all. `more`: is there more to come of what was asked for? `number`: of what its
    sender has told so far, as a small one overtakes a large one on its way."""

    messages: tuple[Message, ...]
    body: np.ndarray
    more: bool = False
    number: int = 0


class Writer:
    """Puts values one behind the other."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._body = bytearray()

    @property
    def nbytes(self) -> int:
        """Of what is there."""
        return len(self._body) + sum(len(message.head) for message in self._messages)

    def add(self, value: Any) -> None:
        """Raises whatever pickling raises; then nothing was added."""
        buffers: list[pickle.PickleBuffer] = []

        def fresh() -> Callable[[pickle.PickleBuffer], None]:
            buffers.clear()
            return buffers.append

        head = pickling.quickly(value, fresh)
        raws = [buffer.raw() for buffer in buffers]
        for raw in raws:
            self._body += raw
            self._body += bytes(-raw.nbytes % ALIGN)
        self._messages.append(Message(head, tuple(raw.nbytes for raw in raws)))

    def add_said(self, at: int, what: Said) -> None:
        """What a worker has said. What cannot be pickled becomes its slot's failure."""
        try:
            self.add((at, what))
        except Exception:  # noqa: BLE001 - pickling runs foreign code
            assert isinstance(what, Reply) and what.extras is not None  # noqa: PT018 - all else is of our own make
            self.add((at, Reply(what.id, without_failing(what.extras, "stream", picklable), what.last)))

    def batch(self, more: bool = False, number: int = 0) -> Batch:
        """All that was added."""
        return Batch(tuple(self._messages), np.frombuffer(self._body, np.uint8), more, number)


def read(batch: Batch) -> Iterator[Any]:
    """The values of a batch, whose arrays share one copy of its buffer and can be written to."""
    body, at = memoryview(np.array(batch.body).data), 0
    for head, sizes in batch.messages:
        buffers = []
        for size in sizes:
            buffers.append(body[at : at + size])
            at += size + -size % ALIGN
        yield pickle.loads(head, buffers=buffers)


def packed(value: Any) -> Batch:
    """One value. Raises whatever pickling raises."""
    writer = Writer()
    writer.add(value)
    return writer.batch()


__all__ = ["Batch", "Message", "Writer", "packed", "read"]
