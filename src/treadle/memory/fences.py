"""Fences: what is written before one is seen before what is written after it, and what is read after one is no older.

An entry of a line is there when its number is, and all that belongs to it (words, boxes, rows in the arena) was written
before. Processors of the x86 family keep that order for everybody; others (ARM, POWER, RISC-V) may let others see a
number before the rest, or read the rest before the number. There a writer puts a fence before the number, and a reader
one behind it. Semaphores do not do that by themselves: one bell may be everybody's, it rings for other things than
entries too, some answers pass without a ring, and a reader who looks before it rings may find the number already.

Python has no word for it. Giving back a lock and then taking it again is one: no earlier access may pass the lock's
giving back, no later one its taking, and the two keep their order.

What both sides read without a fence, and why that is safe:

| word | who waits for it, and what if it is seen late or early |
|---|---|
| CREDIT | the worker, for at most 0.05 s at a time; late: it waits on. A fence of the caller's comes before it |
| STARVED | late: no ring, and the worker looks again after 0.05 s |
| STOP | grows only; late: one more look of a stream before it ends. A ring comes with it |
| BEAT | whether it changes is asked over seconds |
| BUSY_NS, ITEM | figures for people |
| `told` | the caller, for whom to look at; late: the ring comes after it; early: it is looked at once more |
| `done` | read when an answer is there (after its fence) or the worker is dead (the system knows, and tells after it) |
"""

from __future__ import annotations

import platform
from _thread import allocate_lock

KEEP_ORDER = frozenset({"x86_64", "amd64", "i386", "i486", "i586", "i686", "x86"})


def needed(machine: str) -> bool:
    """Does this kind of processor need fences? Pure; `machine` as `platform.machine()` says it."""
    return machine.lower() not in KEEP_ORDER


FENCED = needed(platform.machine())  # have the lines between processes fences? Asked when a pool is laid out


def fence() -> None:
    """What comes before it comes before what comes after it, for other processes too. In any thread."""
    lock = allocate_lock()  # a new one: nobody else may have it in hand, nor an interrupt have left it so
    lock.acquire()
    lock.release()
    lock.acquire()
