"""Workers that are worn out: environments that take ever more memory, simulators that fail after many episodes.

A worker's memory is its private memory: RssAnon of Linux, which it has written and shares with no file and no other
process. The pool's own shared memory does not count. A worker that is over the limit, or has played its number of
episodes, is *retired* between two episodes. It is asked to close its environments and end, and another is started in
its place. That is not a failure: no restart is counted, and nothing is lost. Memory is read between episodes alone, so
a worker that has a limit gets at most one round of episodes in advance.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from treadle.checks import as_bytes
from treadle.errors import UsageError
from treadle.memory.arena import text_of
from treadle.worker.life import ALIVE

if TYPE_CHECKING:
    from treadle.worker.options import PoolOptions
    from treadle.worker.worker import Worker

MANY = 1 << 62
STATM = "/proc/{}/statm"


def shown(size: float) -> str:
    """Return a number of bytes as text for people."""
    for name, unit in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} bytes"


def private_memory(pid: int) -> int | None:
    """Return the bytes that a process shares with no file and no other process (RssAnon).

    None: the process is gone, or this is not Linux.
    """
    words = text_of(STATM.format(pid)).split()
    return (int(words[1]) - int(words[2])) * mmap.PAGESIZE if words else None


class Wear:
    """Decides which workers are worn out.

    Args:
        options: of the pool.

    Attributes:
        most: episodes that a worker plays; None: any number.
        limit: bytes of private memory; None: any number.
        able: True if a worker can be worn out at all.
        played: returns how many episodes a worker has begun since it started; the schedule sets it.
    """

    def __init__(self, options: PoolOptions) -> None:
        after = options.recycle_after
        self.most = None if isinstance(after, str) else after
        self.limit = as_bytes(after) if isinstance(after, str) else None
        self.able = self.limit is not None or self.most is not None
        self.played: Callable[[Worker], int] = lambda worker: 0

    def begin(self, workers: Sequence[Worker]) -> None:
        """Check workers that have just been built.

        Raises UsageError if one has more memory than the limit already: so would each of its successors.
        """
        for worker in workers:
            if self.limit is not None and (used := self._used(worker)) > self.limit:
                raise UsageError(
                    f"recycle_after of {shown(self.limit)} is less than worker {worker.index} has "
                    f"before it plays: {shown(used)} of private memory"
                )

    def worn(self, worker: Worker) -> str:
        """Return in words why a worker is to be retired; "": it is not."""
        if self.limit is not None and (used := self._used(worker)) > self.limit:
            return f"it has {shown(used)} of private memory (recycle_after {shown(self.limit)})"
        if self.most is not None and self.played(worker) >= self.most:
            return f"it has played {self.played(worker):,} episodes (recycle_after={self.most})"
        return ""

    def left(self, worker: Worker, ahead: int, at_once: int) -> int:
        """Return how many more episodes a worker may be given.

        Args:
            ahead: episodes that it was given and has yet to begin or end.
            at_once: episodes that it plays at the same time.
        """
        most = MANY if self.most is None else max(0, self.most - self.played(worker) - ahead)
        room = MANY if self.limit is None else max(0, 2 * at_once - ahead)
        return 0 if self.worn(worker) else min(most, room)

    def _used(self, worker: Worker) -> int:
        """Return the bytes of a worker's private memory; 0 where it has no process."""
        return 0 if worker.pid is None or worker.state not in ALIVE else private_memory(worker.pid) or 0
