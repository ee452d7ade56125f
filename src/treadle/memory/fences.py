"""Fences: they keep the order of writes, and that of reads, for other processors.

An entry of a line is there when its number is. All that belongs to it (words, boxes, rows in the arena) was written
before. Processors of the x86 family keep that order for all readers. Others (ARM, POWER, RISC-V) may let a reader see a
number before the rest, or read the rest before the number. There a writer puts a fence before the number, and a reader
one behind it. Semaphores do not replace fences. One bell may be shared by all workers, and it rings for other things
than entries, too. Some answers pass without a ring, and a reader that looks before it rings may find the number
already.

Python has no fence of its own. Giving back a lock and then taking it again is one. No earlier access may pass the
lock's giving back, no later one its taking, and the two keep their order.

Words that both sides read without a fence, and why that is safe:

| word | its reader, and the effect of a late or early look |
|---|---|
| CREDIT | the worker, for at most 0.05 s at a time; late: it waits on. A fence of the caller's comes before it |
| STARVED | late: no ring, and the worker looks again after 0.05 s |
| STOP | grows only; late: one more look of a stream before it ends. A ring comes with it |
| BEAT | the caller compares it over seconds |
| BUSY_NS, ITEM | figures for people |
| `told` | the caller, for whom to look at; late: the ring comes after it; early: it is looked at once more |
| `done` | read when an answer is there (after its fence) or the worker is dead (the system reports that later) |
"""

from __future__ import annotations

import platform
from _thread import allocate_lock

KEEP_ORDER = frozenset({"x86_64", "amd64", "i386", "i486", "i586", "i686", "x86"})


def needed(machine: str) -> bool:
    """Return True if this kind of processor needs fences. Pure; `machine` as in `platform.machine()`."""
    return machine.lower() not in KEEP_ORDER


FENCED = needed(platform.machine())  # True if the lines between processes have fences; read when a pool is laid out


def fence() -> None:
    """Order accesses: other processes, too, see those before the fence before those after it. For any thread."""
    lock = allocate_lock()  # a new one, which no thread holds and no interrupt has left locked
    lock.acquire()
    lock.release()
    lock.acquire()
