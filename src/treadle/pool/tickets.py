"""Tickets: the numbers of what is to be made next, claimed by whichever worker is free.

All workers read one pipe; reads of eight bytes are atomic, so each ticket goes to exactly one of them, without a lock
that a dying worker could keep. The claimer writes its name into `owners` (in the arena), so that after a death the
caller knows what was lost. A ticket that was read but not yet signed for is found by elimination: the pipe keeps the
order, so what is in it now are the last ones issued.
"""

from __future__ import annotations

import array
import fcntl
import os
import queue
import select
import termios
from typing import Any

WINDOW = 8192  # tickets that may be outstanding at once; the pipe's 64 KiB hold just as many
END = -1


class _Owned:
    """Tickets whose claimers sign for them in `owners`."""

    owners: Any

    def sign(self, number: int, worker: int | None) -> None:
        """Note who has an outstanding ticket; None: nobody."""
        self.owners[number % WINDOW] = 0 if worker is None else worker + 1

    def owner(self, number: int) -> int | None:
        """Which worker has claimed an outstanding ticket; None: nobody has signed for it."""
        signed = int(self.owners[number % WINDOW])
        return None if signed == 0 else signed - 1


class PipeTickets(_Owned):
    """The caller's end (no `fd`), or a worker's."""

    def __init__(self, fd: int | None = None, owners: Any = None) -> None:
        self._write = -1
        if fd is None:
            self.read, self._write = os.pipe()
            os.set_blocking(self.read, False)
        else:
            self.read = fd
        self.owners = owners

    def issue(self, number: int) -> None:
        """Put a ticket in. `END` tells one claimer that there will be no more."""
        if number >= 0:
            self.sign(number, None)
        os.write(self._write, number.to_bytes(8, "little", signed=True))

    def claim(self, worker: int, wait: bool) -> int | None:
        while True:
            try:
                data = os.read(self.read, 8)
            except BlockingIOError:
                if not wait:
                    return None
                select.select([self.read], [], [])
                continue
            if not data:
                return END
            number = int.from_bytes(data, "little", signed=True)
            if number >= 0:
                self.sign(number, worker)
            return number

    def waiting(self) -> int:
        """How many tickets nobody has claimed yet."""
        count = array.array("i", [0])
        fcntl.ioctl(self.read, termios.FIONREAD, count)
        return count[0] // 8

    def end(self) -> None:
        """No more tickets for anybody: whoever waits for one wakes up."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def close(self) -> None:
        self.end()
        if self.read >= 0:
            os.close(self.read)
            self.read = -1


class LocalTickets(_Owned):
    """Tickets within one process."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.owners: Any = None

    def issue(self, number: int) -> None:
        if number >= 0:
            self.sign(number, None)
        self._queue.put(number)

    def claim(self, worker: int, wait: bool) -> int | None:
        try:
            number = self._queue.get(block=wait)
        except queue.Empty:
            return None
        if number == END:
            self._queue.put(END)  # for the others as well
        else:
            self.sign(number, worker)
        return number

    def waiting(self) -> int:
        return self._queue.qsize()

    def end(self) -> None:
        self._queue.put(END)

    def close(self) -> None:
        """Nothing is held."""
