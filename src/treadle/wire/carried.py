"""Objects of multiprocessing in the factories of a worker's programs: queues, pipes, values, locks, events.

They pickle only while multiprocessing starts a process of its own, which then inherits their descriptors. A `Carrier`
stands where that process would, and takes duplicates of the descriptors. These go along with every worker that is
started from the pickle, a restarted one too, and are found again there by their number.

Semaphores are found by name, except those of a fork context, which have no name any more. A forked worker has them in
its memory, and other workers cannot get them.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from functools import partial
from multiprocessing import context
from typing import Any, Self

from treadle import pickling
from treadle.errors import UsageError
from treadle.interrupts import owned

AT_ONCE = 12  # descriptors in one message


class CannotTravel(UsageError, TypeError):
    """A part of a slot's program cannot be sent to its worker.

    Attributes:
        slot: the slot.
        reason: why.
    """

    def __init__(self, slot: int, reason: str, what: str = "what it is made of") -> None:
        super().__init__(f"slot {slot}: {what} cannot be sent to a worker process: {reason}")
        self.slot, self.reason = slot, reason


class Carrier:
    """While it is entered, objects of multiprocessing can be pickled in this thread.

    Attributes:
        start_method: of the process that they are pickled for.
        files: descriptors that go along; to be closed once no further worker will be started.
    """

    def __init__(self, start_method: str | None) -> None:
        self.start_method, self.files = start_method, list[io.FileIO]()
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = context.get_spawning_popen()
        context.set_spawning_popen(self)  # type: ignore[arg-type]  # it has all that pickling uses
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        context.set_spawning_popen(self._before)
        if kind is not None:
            self.close()

    def duplicate_for_child(self, fd: int) -> int:
        """Take a descriptor along, and return its number here. Multiprocessing calls it."""
        self.files.append(owned(partial(os.dup, fd)))
        return len(self.files) - 1

    def DupFd(self, number: int) -> Arrived:
        """Return a descriptor that was taken along. Multiprocessing calls it."""
        return Arrived(number)

    def close(self) -> None:
        for file in self.files:
            file.close()


class Arrived:
    """A descriptor, found again in the worker."""

    held: tuple[int, ...] = ()  # in a worker: the descriptors that came along

    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        return self.held[self.number]


def pickled(factories: list[Any], slots: Sequence[int], start_method: str | None) -> tuple[bytes, Carrier]:
    """Return a worker's pickled factories, one a slot, and the descriptors that go along.

    Raises CannotTravel.
    """
    try:
        with Carrier(start_method) as carrier:
            return pickling.dumps(factories), carrier
    except Exception as error:
        for slot, factory in zip(slots, factories):
            if (reason := why_not(factory, start_method)) is not None:
                raise CannotTravel(slot, reason) from error
        raise


def why_not(value: Any, start_method: str | None) -> str | None:
    """Return why a value cannot be sent to a worker; None when it can be."""
    try:
        with contextlib.closing(Carrier(start_method)) as carrier, carrier:
            pickling.dumps(value)
    except Exception as error:  # noqa: BLE001 - pickling runs foreign code
        return f"{type(error).__name__}: {error}"
    return None
