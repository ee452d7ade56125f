"""Rollouts on their way to the caller: columns with time first, several rollouts one after the other.

Small rollouts travel together, because a message costs as much as some 20 steps of a small environment. Step types
are bytes here, and the spaces come along only when they are new to the caller.

Large ones are copied to where they are to lie in the result as they arrive (`ResultBuffers`), so that the memory they
came in is free for what comes next, and the result is there when the last of it is.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from treadle import trees
from treadle.memory.lent import Buffer
from treadle.play.reserve import reserved
from treadle.samplers.columns import cut_table, join_tables, joined
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.steps import codes_of, types_of

LEAST = 1 << 16  # bytes of a piece of an array from which on it is worth it
SPARE = 1 << 26  # bytes beyond what it needs that a result's memory may keep for later ones


class ResultBuffer(Buffer):
    """The memory of one result's array. `filled`: bytes in use; `touched`: bytes that have become memory."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = reserved(huge=True)
        self.filled = self.touched = 0
        self.dtype: Any = None
        self.row: tuple[int, ...] = ()

    def begin(self, array: np.ndarray) -> None:
        """It is to hold arrays like this one."""
        self.filled, self.dtype, self.row = 0, array.dtype, array.shape[1:]

    def add(self, array: np.ndarray) -> np.ndarray | None:
        """A copy behind what is there; None: it does not belong there, or there is no more room."""
        start = self.filled
        if array.dtype != self.dtype or array.shape[1:] != self.row or start + array.nbytes > len(self.memory):
            return None
        copy = np.ndarray(array.shape, array.dtype, self.memory, start)
        copy[...] = array
        self.filled += array.nbytes
        self.touched = max(self.touched, self.filled)
        return copy

    def whole(self, pieces: Sequence[np.ndarray]) -> np.ndarray | None:
        """The pieces as one array, if they are what was added from the beginning on; it is held from now on."""
        at = np.frombuffer(self.memory, np.uint8, 1).__array_interface__["data"][0]
        for piece in pieces:
            if piece.__array_interface__["data"][0] != at or piece.dtype != self.dtype or piece.shape[1:] != self.row:
                return None
            at += piece.nbytes
        array = self.lend(np.ndarray((sum(map(len, pieces)), *self.row), self.dtype, self.memory))
        self._trim(array.nbytes)
        return array

    def _trim(self, needed: int) -> None:
        """Give back what one large result has left behind."""
        keep = -(-2 * needed // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.touched - keep > SPARE and hasattr(mmap, "MADV_DONTNEED"):
            self.memory.madvise(mmap.MADV_DONTNEED, keep, -(-(self.touched - keep) // mmap.PAGESIZE) * mmap.PAGESIZE)
            self.touched = keep


class ResultBuffers:
    """Buffers of private memory. An array in one is an ordinary array, which its holder may keep for ever.

    How large a result gets nobody knows, so it lies in reserved address space that becomes memory when it is written. A
    learner asks for the next batch while it holds the last one, and drops that when the next is there. So two buffers
    take turns, and the pages of a large batch are new only twice. First touches of new memory cost more than copying
    into memory that is there: on virtual machines that hand free pages back to their host, twenty times as much.
    Samples of raw Pong (1.2 GB a batch) come 2.2 times as fast as without (2 workers, 2 cores, 2026-11-22).
    """

    def __init__(self) -> None:
        self._buffers: dict[Any, list[ResultBuffer]] = {}  # by what is laid there
        self._filling: dict[Any, ResultBuffer] = {}

    def begin(self) -> None:
        """A new result."""
        self._filling = {}

    def lay(self, key: Any, array: np.ndarray) -> np.ndarray:
        """The next piece of the result's array `key`: as it is if it is small, else a copy, where it belongs."""
        buffer = self._filling.get(key)
        if buffer is None:
            if array.nbytes < LEAST or array.dtype.hasobject:
                return array
            buffer = self._filling[key] = self._free(key)
            buffer.begin(array)
        copy = buffer.add(array)
        return np.copy(array) if copy is None else copy

    def joined(self, pieces: Sequence[np.ndarray]) -> np.ndarray | None:
        """Pieces that were laid, as one array; None if they were not, or are not all."""
        for buffer in self._filling.values():
            if buffer.free and (found := buffer.whole(pieces)) is not None:
                return found
        return None

    def _free(self, key: Any) -> ResultBuffer:
        """One that nobody holds; of those that are left one is kept for its turn, and no hoard."""
        known = self._buffers.get(key, [])
        free = [each for each in known if each.free]
        buffer = free.pop(0) if free else ResultBuffer()
        self._buffers[key] = [*(each for each in known if not each.free), buffer, *free[:1]]
        return buffer

    def clear(self) -> None:
        """Give back what nobody holds, and keep nothing from now on."""
        self._buffers, self._filling = {}, {}


@dataclass
class Trajectories:
    """R rollouts: N episodes, T steps.

    Attributes:
        env_spec: None: the same as in the worker's batch before.
        columns: what `EpisodeBatch` takes, but for env_spec and step_types.
        codes: uint8[T], see `steps.StepType`.
        rollouts: int64[R], episodes of each.
        indices: of the rollouts, where they have any, else empty.
        kind: the class of batches that the worker made.
    """

    env_spec: Any
    columns: dict[str, Any]
    codes: np.ndarray
    rollouts: np.ndarray
    indices: list[int] = field(default_factory=list)
    kind: type = EpisodeBatch

    @property
    def lengths(self) -> np.ndarray:
        """int64[N]: steps of each episode."""
        return self.columns["lengths"]

    @property
    def steps(self) -> np.ndarray:
        """int64[R]: steps of each rollout."""
        return np.add.reduceat(self.lengths, np.cumsum(self.rollouts) - self.rollouts)

    def __deepcopy__(self, memo: Any) -> Trajectories:
        return self  # made to be handed over: nobody else refers to it

    def settle(self, lay: Callable[[Any, np.ndarray], np.ndarray]) -> None:
        """Let its arrays lie where `lay` says, which is called with each one's path and the array."""
        for name, tree in self.columns.items():
            if isinstance(tree, np.ndarray):
                self.columns[name] = lay((name,), tree)
            elif tree:
                paths = iter(trees.paths(tree))
                self.columns[name] = trees.map(
                    lambda leaf, name=name, paths=paths: _laid(lay, (name, *next(paths)), leaf), tree
                )

    def strip(self) -> None:
        """Keep rewards and lengths alone."""
        self.columns = {name: self.columns[name] for name in ("rewards", "lengths")}

    def part(self, start: int, stop: int) -> Trajectories:
        """Rollouts start to stop-1; arrays are views."""
        if start == 0 and stop == len(self.rollouts):
            return self
        ends = np.concatenate([[0], np.cumsum(self.rollouts)])
        return self._cut(int(ends[start]), int(ends[stop]), self.rollouts[start:stop], self.indices[start:stop])

    def first_episodes(self, count: int) -> Trajectories:
        """The first `count` episodes, each as a rollout of its own; arrays are views."""
        return self._cut(0, count, np.ones(count, np.int64), self.indices[:count])

    def _cut(self, first: int, last: int, rollouts: np.ndarray, indices: list[int]) -> Trajectories:
        rows = np.concatenate([[0], np.cumsum(self.lengths)])
        begin, end = int(rows[first]), int(rows[last])
        columns = cut_table(self.columns, first, last, begin, end)
        return Trajectories(self.env_spec, columns, self.codes[begin:end], rollouts, indices, self.kind)


def _laid(lay: Callable[[Any, np.ndarray], np.ndarray], path: Any, leaf: Any) -> Any:
    return lay(path, leaf) if isinstance(leaf, np.ndarray) else leaf


def trajectories_of(batches: Sequence[EpisodeBatch]) -> Trajectories:
    """What workers' rollouts returned, one batch a rollout. Raises TypeError for what is no batch."""
    for batch in batches:
        if not isinstance(batch, EpisodeBatch):
            raise TypeError(f"a worker's rollout returns an EpisodeBatch; this one returned a {type(batch).__name__}")
    columns = join_tables([batch.table() for batch in batches])
    rollouts = np.array([len(batch.lengths) for batch in batches], np.int64)
    codes = codes_of(columns.pop("step_types"))
    return Trajectories(batches[0].env_spec, columns, codes, rollouts, kind=type(batches[0]))


def batch_of(pieces: Sequence[Trajectories], there: Callable[..., Any] | None = None) -> Any:
    """All of them as one batch, in one pass over the arrays. Raises what building the batch raises.

    `there`: see `columns.joined`.
    """
    columns, first = join_tables(list(map(attrgetter("columns"), pieces)), there), pieces[0]
    codes = joined(list(map(attrgetter("codes"), pieces)))
    return first.kind(env_spec=first.env_spec, step_types=types_of(codes), **columns)
