"""The store: states that stay where they were made.

Rows of fixed size in memory that every worker maps. A handle on the caller's side names the row of a state, and when
the last handle of a row is gone, the row is free again. So a search tree may have a hundred thousand states of which
none ever crosses to the caller. What that is worth depends on their size (steps/s against plain states, 64 and 1,024
items a batch, 2 workers, 2026-11-22): 0.96 and 1.06 for 256 bytes, 3.5 and 5.3 for 64 KiB, 2.3 for 1 MiB.

Who writes a row? The worker that makes its state, before it answers; nobody knows the row's handle until then. Who
reads it? Any worker that is asked to begin there, while the caller holds the handle for the request.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from treadle.errors import FreedHandle, StoreFull
from treadle.pool.arena import Arena
from treadle.pool.buffers import ArenaBuffer, Region, Span
from treadle.pool.interrupts import Later
from treadle.states.state import EnvState

STORE_BYTES = 64 * 2**20
SPARE = 1.5  # a row is so many times as large as the first state
LEAST = 256
UNIT = 64
LENGTH = 8  # bytes


class StateRows:
    """A store as a worker (or the caller) sees it: `count` rows of `size` bytes, after as many lengths.

    Pickled, it says where the store lies; `opened` finds it there.

    A row's length tells what lies in it: above zero the bytes of an `EnvState` of the store's `kind`, below zero
    anything else, pickled.
    """

    def __init__(self, region: Region, count: int, size: int, kind: str, memory: Any = None) -> None:
        self._region, self._count, self._size, self._kind = region, count, size, kind
        self._rows: Any = None
        if memory is not None:
            self._lengths, self._rows = memory[: count * LENGTH].cast("q"), memory[count * LENGTH :]

    def opened(self, memory_of: Callable[[Region], Any]) -> StateRows:
        """The same store in this process."""
        if self._rows is not None:
            return self
        return StateRows(self._region, self._count, self._size, self._kind, memory_of(self._region))

    def read(self, row: int) -> Any:
        """The state in a row."""
        length, start = self._lengths[row], row * self._size
        if length > 0:
            return EnvState(self._kind, self._rows[start : start + length].tobytes())
        return pickle.loads(self._rows[start : start - length])

    def write(self, row: int, state: Any) -> None:
        """Put a state into a row. Raises StoreFull when it is larger than that."""
        raw = type(state) is EnvState and state.kind == self._kind and len(state.data) > 0
        data = state.data if raw else pickle.dumps(state, 5)
        size = len(data)
        if size > self._size:
            raise StoreFull(
                f"a state of {size} bytes does not fit a row of the store ({self._size} bytes): give state_bytes="
                f"{-(-size * 2 // UNIT) * UNIT}",
                rows=self._count,
                row_bytes=self._size,
            )
        start = row * self._size
        self._rows[start : start + size] = data
        self._lengths[row] = size if raw else -size

    def __reduce__(self) -> tuple[Any, ...]:
        return StateRows, (self._region, self._count, self._size, self._kind)


@dataclass(eq=False)
class Taken:
    """Rows for the states that a batch leads to, until they have handles.

    Attributes:
        writers: the batch's requests; None: they were not sent.
    """

    rows: list[int]
    writers: Span | None = None


class Store:
    """The caller's side: which rows are taken.

    Args:
        arena: to lay it in.
        first: a state, which says how large a row must be.
        store_bytes: memory for all rows together.
        state_bytes: of one row; None: half as much again as `first` takes.
    """

    def __init__(self, arena: Arena, first: Any, store_bytes: int, state_bytes: int | None) -> None:
        if state_bytes is None:
            state_bytes = max(LEAST, int(len(pickle.dumps(first, 5)) * SPARE))
        row = -(-state_bytes // UNIT) * UNIT
        count = max(1, store_bytes // row)
        buffer = ArenaBuffer(arena, count * (LENGTH + row))
        kind = first.kind if type(first) is EnvState else ""
        region = Region(buffer.segment, buffer.segments, 0, buffer.nbytes)
        self.states = StateRows(region, count, row, kind, buffer.memory)
        self.row_bytes, self.rows = row, count
        self._free = list(range(count - 1, -1, -1))
        self._taken: list[Taken] = []
        self.closed = False

    @property
    def free(self) -> int:
        """Rows that are not taken."""
        self._reclaim()
        return len(self._free)

    def take(self, count: int) -> Taken:
        """Rows for so many states. Raises StoreFull."""
        if count > self.free:
            raise StoreFull(
                f"the store of states has {len(self._free)} free rows of {self.rows} (each {self.row_bytes} bytes), "
                f"and {count} are needed: let go of handles, or make it larger (store_bytes=)",
                rows=self.rows,
                row_bytes=self.row_bytes,
            )
        with Later():
            cut = len(self._free) - count
            taken = Taken(self._free[cut : cut + count][::-1])
            self._taken.append(taken)
            del self._free[cut : cut + count]  # not up to the end: a handle may have gone meanwhile
        return taken

    def handles(self, taken: Taken) -> list[StateHandle]:
        """Handles of rows that were taken and written."""
        with Later():
            self._taken.remove(taken)
            return [StateHandle(self, row) for row in taken.rows]

    def _reclaim(self) -> None:
        """Have the rows of batches that failed or were cut short back, once nobody writes to them any more."""
        with Later():
            for taken in [each for each in self._taken if each.writers is None or each.writers.over]:
                self._taken.remove(taken)
                self.give_back(taken.rows)

    def give_back(self, rows: list[int]) -> None:
        """Rows that nobody needs any more."""
        self._free.extend(rows)


class StateHandle:
    """Names a state in the store of a `ParallelEnv`: give it where a state is taken.

    The row is free again when the last reference to the handle is gone, or after `free()`.
    """

    __slots__ = ("__weakref__", "_row", "_store")

    def __init__(self, store: Store, row: int) -> None:
        self._store, self._row = store, row

    def row_in(self, store: Store | None) -> int:
        """Its row. Raises FreedHandle when it was freed, or belongs to another store."""
        if self._row < 0:
            raise FreedHandle("this handle was freed: its state is gone")
        if self._store.closed:
            raise FreedHandle("the environment of this handle is closed: its states are gone")
        if store is not self._store:
            raise FreedHandle("this handle names a row of another environment's store")
        return self._row

    def fetch(self) -> Any:
        """The state itself, copied out of the store. Raises FreedHandle."""
        return self._store.states.read(self.row_in(self._store))

    def free(self) -> None:
        """Give the row back now. Idempotent; using the handle afterwards is an error."""
        row, self._row = self._row, -1
        if row >= 0:
            self._store.give_back([row])

    @property
    def freed(self) -> bool:
        """Was it freed?"""
        return self._row < 0

    def __del__(self) -> None:
        if getattr(self, "_row", -1) >= 0:
            self.free()

    def __repr__(self) -> str:
        return f"StateHandle({'freed' if self._row < 0 else f'row {self._row}'})"

    def __reduce__(self) -> Any:
        raise TypeError("a handle names a row of this process's store: send handle.fetch(), the state itself")


def fetched(state: Any) -> Any:
    """The state that a handle names; anything else is a state itself. Raises FreedHandle."""
    return state.fetch() if isinstance(state, StateHandle) else state
