"""A worker's part of a pool's memory."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.memory.arena import Arena, Field
from treadle.memory.ring import RowFields
from treadle.memory.rows import Rows
from treadle.spaces import Layout
from treadle.wire.bell import Bell
from treadle.wire.line import LineFields


@dataclass(frozen=True)
class Told:
    """The message that gives a worker process its part of the memory.

    With it goes the arena's descriptor.

    Attributes:
        rows: the rows of all slots; None: the pool has none.
        longest: ns for which the worker keeps trying before it sleeps; see `Rhythm`.
    """

    segments: list[tuple[int, int]]
    line: LineFields
    pool_bell: Field
    rows: tuple[RowFields, Layout, Layout] | None
    longest: int


@dataclass(frozen=True)
class Place:
    """A worker's part, in the caller's process.

    Attributes:
        bell: the worker's.
        rows: those of its slots, for a worker in this process; None for others, and where the pool has no rows.
        longest: ns for which the caller keeps trying before it sleeps.
        told: the message to a process; None for other workers. `fds` go along.
    """

    arena: Arena
    line: LineFields
    bell: Bell
    pool_bell: Bell
    rows: Rows | None
    longest: int = 0
    told: Told | None = None
    fds: tuple[int, ...] = ()
