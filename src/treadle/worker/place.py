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
    """What a worker process is told of its part. With it go descriptors: the arena's, then those of two pipe bells (4)
    if there are no `arena_bells`.

    Attributes:
        rows: what all slots' rows are; None: there are none.
        longest: ns of waits that it tries in; see `Rhythm`.
    """

    segments: list[tuple[int, int]]
    line: LineFields
    pool_bell: Field
    arena_bells: bool
    rows: tuple[RowFields, Layout, Layout] | None
    longest: int


@dataclass(frozen=True)
class Place:
    """A worker's part, in the caller's process.

    Attributes:
        bell: the worker's.
        rows: those of its slots, for a worker in this process; None for others, and where there are no rows.
        longest: ns of waits that the caller tries in.
        told: what a process is told, None for a worker that is none; `fds` go along.
    """

    arena: Arena
    line: LineFields
    bell: Bell
    pool_bell: Bell
    rows: Rows | None
    longest: int = 0
    told: Told | None = None
    fds: tuple[int, ...] = ()
