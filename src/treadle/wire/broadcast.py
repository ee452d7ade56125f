"""Broadcasts: values for several workers are pickled once, into one memory file that all of them map.

A request's payload that holds broadcasts is a `Payload`; the descriptors of their files go along with it. Each receiver
maps the file privately. Arrays lie in the file's memory without a copy, and a worker's writes to its arrays are not
seen by others. Small values travel inside the request.
"""

from __future__ import annotations

import io
import os
import pickle
from functools import partial
from typing import Any

from treadle import pickling
from treadle.interrupts import owned
from treadle.wire.channel import SPILL, mapped, spill, unpack


class Broadcast:
    """One value. In the process that made it, `open` returns the very object.

    Args:
        value: anything cloudpickle takes.
        note: a small value that can be read without opening the broadcast.

    Attributes:
        elsewhere: where a backend whose workers share no memory with the caller has put its file.
    """

    def __init__(self, value: Any, note: Any = None) -> None:
        self._value, self.note = value, note
        self._here = True
        self._body: bytes | None = None
        self._view: memoryview | None = None
        self.file: io.FileIO | None = None
        self.number = -1
        self.elsewhere: Any = None

    def pack(self) -> None:
        """Pickle the value, once; later changes of the value do not matter. Raises whatever pickling raises."""
        if self._body is not None or self.file is not None:
            return
        buffers: list[Any] = []
        head = pickling.dumps(self._value, 5, buffer_callback=buffers.append)
        raws = [buffer.raw() for buffer in buffers]
        if len(head) + sum(map(len, raws)) <= SPILL:
            self._body = pickling.dumps(self._value, 5)
        else:
            self.file = spill([head, *raws], [len(head), *map(len, raws)])
        self._value = None
        self._here = False

    def open(self) -> Any:
        """Return the value."""
        if self._here:
            return self._value
        if self._view is not None:
            return unpack(self._view)
        if self.file is not None:  # where it was packed
            return unpack(mapped(self.file.fileno(), private=True))
        assert self._body is not None
        return pickle.loads(self._body)

    def arrived(self, fds: list[int]) -> None:
        """Take its file from the descriptors that came with the payload."""
        if self.number >= 0:
            self._view = mapped(fds[self.number], private=True)

    def __getstate__(self) -> dict[str, Any]:
        here = {"_value": None, "_here": False, "_view": None, "file": None, "elsewhere": None}
        return {**here, "_body": self._body, "note": self.note, "number": self.number}

    def __del__(self) -> None:
        file = getattr(self, "file", None)
        if file is not None:
            file.close()


class Payload(dict[int, Any]):
    """A request's payload, slot -> order, and the broadcasts that its orders hold.

    Attributes:
        files: descriptors that go along.
    """

    def __init__(self, orders: dict[int, Any], broadcasts: list[Broadcast]) -> None:
        """Pack the broadcasts."""
        super().__init__(orders)
        self.broadcasts = broadcasts
        self.files: tuple[int, ...] = ()
        for broadcast in broadcasts:
            broadcast.pack()
            broadcast.number = -1
            if broadcast.file is not None:
                file = broadcast.file.fileno()
                if file not in self.files:
                    self.files += (file,)
                broadcast.number = self.files.index(file)

    def received(self, files: list[io.FileIO]) -> None:
        """Take duplicates of the files, where the broadcasts go on to other workers."""
        for broadcast in self.broadcasts:
            if broadcast.number >= 0:
                broadcast.file = owned(partial(os.dup, files[broadcast.number].fileno()))

    def arrived(self, fds: list[int]) -> None:
        """Map each file that has arrived, and close its descriptor."""
        try:
            for broadcast in self.broadcasts:
                broadcast.arrived(fds)
        finally:
            for fd in fds:
                os.close(fd)
