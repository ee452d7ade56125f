"""Leases: batches handed out without a copy, and written again only when nobody holds them any more.

Fresh copies of image batches cost more than everything else on their way (page faults on new memory), and plain views
are overwritten under the reader. A lease is in between: the arrays handed out are fresh objects over a block of the
arena, and the block is free again when they have all been collected. Every view, slice, torch tensor or pickle buffer
made from such an array holds the array itself (numpy does not look through a base that is not an array), so a weak
reference to each is proof enough.

Small arrays (flags, rewards, the observations of small environments) are copied all the same: a copy costs less than a
lease. So whoever collects rewards in a list does not keep the images of the same batches from being written.

When the caller keeps more batches than there are blocks, it gets real copies, made from one spare block.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from treadle.pool.arena import Arena, Field

# bytes up to which a copy (0.15 us) costs less than an array over the block and a reference to it (0.3 us)
SMALL = 4096


class Leases:
    """Blocks 0..count-1 of one pool; the last is the spare that is only ever copied from.

    Args:
        fields: for each block the fields handed out, all blocks alike.
        views: hand out views of one and the same block, overwritten by the next step.
    """

    def __init__(self, arena: Arena, fields: list[list[Field]], *, views: bool = False) -> None:
        self._recipes = [[(f.shape, f.dtype, *arena.buffer(f)) for f in block] for block in fields]
        # how each array is made: a copy of one that is there, or a new one over the block, which is then leased
        self._large = [i for i, f in enumerate(fields[0]) if math.prod(f.shape) * f.dtype.itemsize > SMALL]
        new: Callable[..., np.ndarray] = np.ndarray
        self._makers: list[list[Callable[[], np.ndarray]]] = [
            [partial(new, *recipe) if i in self._large else new(*recipe).copy for i, recipe in enumerate(block)]
            for block in self._recipes
        ]
        self._spare = len(fields) - 1
        self._held: list[list[weakref.ref[np.ndarray]]] = [[] for _ in fields]
        self._shown: list[list[np.ndarray] | None] = [None] * len(fields)  # with `views`
        self._pinned: set[int] = set()
        self._views = views
        self.spared: int | None = None  # with `views`: a block that is not to be written next
        self.aimed: int | None = None  # the block that requests go to, whatever is free; see `reel.py`
        self.copies = 0  # batches that had to be copied because all blocks were held

    @property
    def spare(self) -> int:
        """The block that is only ever copied from."""
        return self._spare

    @property
    def views(self) -> bool:
        """Are batches views that nobody leases?"""
        return self._views

    def is_free(self, block: int) -> bool:
        """Does nobody hold the whole block, and is no late worker going to write to it?"""
        return block not in self._pinned and _let_go(self._held[block])

    def hold(self, block: int, refs: list[weakref.ref[np.ndarray]]) -> None:
        """These arrays lie in the block, too."""
        self._held[block] = [*self._held[block], *refs]

    def take(self) -> int:
        """The block for the next request: the lowest free one, so that a short ring stays in the cache."""
        if self.aimed is not None:
            return self.aimed
        if self._views:
            if not self._pinned and self.spared is None:
                return 0
            return next((b for b in range(self._spare) if b not in self._pinned and b != self.spared), self._spare)
        for block, refs in enumerate(self._held[: self._spare]):
            for ref in refs:
                if ref() is not None:
                    break
            else:
                if block not in self._pinned:
                    return block
        return self._spare

    def hand_out(self, block: int) -> list[np.ndarray]:
        """The block's arrays, the caller's to keep."""
        if block > self._spare:
            return self._hand_out_beyond(block)
        if self._views:  # nobody is asked who holds them, so the same arrays do every time
            if self._shown[block] is None:
                self._shown[block] = self.peek(block)
            return list(self._shown[block] or ())
        arrays = [make() for make in self._makers[block]]
        if block != self._spare:
            self._held[block] = [weakref.ref(arrays[i]) for i in self._large]
            return arrays
        self.copies += 1
        for i in self._large:
            arrays[i] = arrays[i].copy()
        return arrays

    def peek(self, block: int) -> list[np.ndarray]:
        """The block's arrays without a lease: read and let go before the next request."""
        return [np.ndarray(*recipe) for recipe in self._recipes[block]]

    def _hand_out_beyond(self, block: int) -> list[np.ndarray]:
        """The arrays of a block of a rollout."""
        raise IndexError(f"there is no block {block}")

    def pin(self, block: int) -> None:
        """A late worker may still write here: keep the block out of service."""
        self._pinned.add(block)

    def unpin(self, block: int) -> None:
        self._pinned.discard(block)


class PartLeases:
    """Leases of some rows of the same blocks, for slots that are stepped on their own: a block is free for these rows
    when nobody holds them. While there are parts nobody takes a whole block; `give_back` ends that.

    Args:
        whole: whose blocks.
        rows: which.
    """

    def __init__(self, whole: Leases, rows: slice) -> None:
        self._whole, self._rows = whole, rows
        self._held: list[list[weakref.ref[np.ndarray]]] = [[] for _ in range(whole.spare)]
        self.spared: int | None = None  # both as of `Leases`
        self.aimed: int | None = None

    def take(self) -> int:
        """As `Leases.take`."""
        if self.aimed is not None:
            return self.aimed
        whole = self._whole
        for block in range(whole.spare):
            if block != self.spared and whole.is_free(block) and _let_go(self._held[block]):
                return block
        return whole.spare

    def hand_out(self, block: int) -> list[np.ndarray]:
        """As `Leases.hand_out`. Large arrays are views of a block's rows, which need not lie side by side."""
        whole, rows = self._whole, self._rows
        if block > whole.spare:
            return [array[rows] for array in whole.hand_out(block)]
        arrays = whole.peek(block)
        if whole.views:
            return [array[rows] for array in arrays]
        if block == whole.spare:
            whole.copies += 1
            return [array[rows].copy() for array in arrays]
        found = [(array, array[rows]) for array in arrays]
        # a view of rows holds the array over all of them
        self._held[block] = [weakref.ref(array) for array, mine in found if mine.nbytes > SMALL]
        return [mine if mine.nbytes > SMALL else mine.copy() for _, mine in found]

    def peek(self, block: int) -> list[np.ndarray]:
        """As `Leases.peek`."""
        return [array[self._rows] for array in self._whole.peek(block)]

    def give_back(self) -> None:
        """Whole blocks are taken again: what is held of these rows is held of them."""
        for block, refs in enumerate(self._held):
            self._whole.hold(block, refs)


def _let_go(refs: list[weakref.ref[np.ndarray]]) -> bool:
    return all(ref() is None for ref in refs)


def fields_of(block: Any) -> list[Field]:
    """What is handed out of a `BlockFields`: observation leaves, rewards, the two end flags."""
    leaves = [field for field in block.observations if field is not None]
    return [*leaves, block.rewards, block.terminated, block.truncated]
