"""The ring: memory [T, n] that steps are written to. A batch is a row of it, and a rollout is a whole ring.

A *block* is one row: for every observation leaf an array [n, *shape], rewards, the two end flags, and a `valid` flag.
`valid` is False on rows that are not transitions, such as a reset in NEXT_STEP mode. Blocks are numbered through all
rings of a pool, and a number is never used again. Observations have one row more: block t of a ring shows observation
t+1, so a rollout begins with the observation before its first step. Where slots move on within a step there is one more
row of every leaf, for the terminal observations of all blocks. A slot's is copied out before its next request.

The *standing* ring is that of batches. Its last block, the spare, is only copied from: it serves when the caller keeps
more batches than there are blocks. Other rings are those of rollouts. No message announces a ring to workers. The
caller writes its place into a table, which a worker reads when it gets a block that it does not know. The table has
room for the rings that were taken last. A ring that has left it is put there again when it is taken.

Small arrays (flags, rewards, the observations of small environments) are copied when a batch is handed out: a copy
costs less than lending. So a caller that collects rewards in a list does not keep the images of the same batches from
being overwritten. The other arrays are lent (`lent.py`), and so are all observations of a rollout.

Beside the rings there is a row of each of these (`RowFields`). Actions have one array a leaf for all blocks.
`done[slot]` holds the number of the latest request whose row is whole. It is written last, so after a death it shows
which slot was at work and which rows are good. `began`, `episode` and `seed` (-1: none) are written when a slot's
episode begins. From them the caller names the step and the episode in which a worker died. `began` counts the slot's
steps until then: the worker's steps of all its slots, and the slot's `own`, in which other slots were left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import call
from typing import Any, NamedTuple
from weakref import ReferenceType

import numpy as np

from treadle.errors import LayoutsDiffer
from treadle.memory.arena import Arena, Field, Plan, map_file
from treadle.memory.fences import fence
from treadle.memory.lent import Buffer, references
from treadle.spaces import Layout

# bytes up to which a copy (0.15 us) costs less than an array over the memory and a reference to it (0.3 us)
SMALL = 4096
TABLE = 64  # rings that are in the table at a time; a worker forgets the others
# of each slot: ns of the steps that were timed, their count, ns of all resets, ns of writing observations in timed
# steps
TIMES = ("stepped", "timed", "resetting", "moved")


def plan_leaves(plan: Plan, layout: Layout, *rows: int) -> tuple[Field | None, ...]:
    """Return the fields of an array [*rows, *shape] for every fixed leaf; None for a loose one."""
    return tuple(plan.add(leaf.dtype, (*rows, *(leaf.shape or ()))) if leaf.fixed else None for leaf in layout.leaves)


class RingFields(NamedTuple):
    """The places of a ring of T rows; None for a leaf without a fixed shape.

    Attributes:
        observations: [T + 1, n, *shape] a leaf.
        rewards, terminated, truncated, valid: [T, n].
        finals: [n, *shape] a leaf; () where slots do not move on within a step.
        actions: [T, n, *shape] a leaf, written by the caller; workers do not read them.
    """

    observations: tuple[Field | None, ...]
    rewards: Field
    terminated: Field
    truncated: Field
    valid: Field
    finals: tuple[Field | None, ...]
    actions: tuple[Field | None, ...]

    @classmethod
    def plan(cls, plan: Plan, steps: int, n: int, observations: Layout, actions: Layout, finals: bool) -> RingFields:
        """Return the places of a ring for `n` slots. Both sides plan alike."""
        seen = plan_leaves(plan, observations, steps + 1, n)
        rewards, *flags = (plan.add(code, (steps, n)) for code in "d???")
        terminated, truncated, valid = flags
        last = plan_leaves(plan, observations, n) if finals else ()
        return cls(seen, rewards, terminated, truncated, valid, last, plan_leaves(plan, actions, steps, n))


class RolloutArrays(NamedTuple):
    """A ring's arrays over its first T blocks; None for a leaf without a fixed shape.

    Attributes:
        observations: one array [T + 1, n, *shape] a leaf; row 0 is the observation before the first step.
        actions: one array [T, n, *shape] a leaf.
        rewards, terminated, truncated, valid: [T, n].
    """

    observations: list[np.ndarray | None]
    actions: list[np.ndarray | None]
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray


class Ring(Buffer):
    """Blocks `first` to `first + steps - 1`.

    Args:
        fields: their places in `memory`.
        least: bytes of an observation leaf up to which it is copied when a block is handed out.
        spare: True if the last block is only copied from.

    Attributes:
        first, steps: the number of its first block, and how many blocks it has.
        spare: the number of the block that is only copied from; -1: there is none.
        aimed: the block that `take` returns, whichever blocks are free; None: a free one.
        target: the ring of the blocks that were aimed at last; it hands them out.
        finals: the terminal observations of all blocks; an array a leaf, None for one without a fixed shape.
    """

    def __init__(
        self, fields: RingFields, memory: Any, first: int, steps: int, *, least: int = 0, spare: bool = False
    ) -> None:
        super().__init__()
        self.fields, self.first, self.steps, self._memory = fields, first, steps, memory
        self.spare = first + steps - 1 if spare else -1
        self._handed = [*(each for each in fields.observations if each is not None), *fields[1:4]]
        most = [*[least] * (len(self._handed) - 3), *[SMALL] * 3]
        self._large = [i for i, each in enumerate(self._handed) if _row_bytes(each) > most[i]]
        self._makers: list[Sequence[Callable[[], np.ndarray]]] = [()] * steps
        self._rows: list[Sequence[ReferenceType[np.ndarray]]] = [()] * steps  # the arrays of each block that were lent
        self.aimed: int | None = None
        self.target: Ring | None = None
        self.finals = [None if each is None else self._array(each) for each in fields.finals]

    def __contains__(self, block: object) -> bool:
        return isinstance(block, int) and 0 <= block - self.first < self.steps

    # -- a block -----------------------------------------------------------------------------------------------------

    def array(self, field: Field, block: int) -> np.ndarray:
        """Return a block's row of a field [T, n, ...]. Not lent."""
        return self._array(self._row(field, block))

    def observations(self, block: int) -> list[np.ndarray | None]:
        """Return an array [n, *shape] a leaf; None for one without a fixed shape. Not lent."""
        return [None if each is None else self.array(each, block) for each in self.fields.observations]

    def ends(self, block: int) -> list[np.ndarray]:
        """Return rewards, terminated, truncated, valid. Not lent."""
        return [self.array(each, block) for each in self.fields[1:5]]

    def peek(self, block: int) -> list[np.ndarray]:
        """Return the arrays that `row` hands out of a block, not lent: read and drop them before the next request."""
        return [self.array(each, block) for each in self._handed]

    # -- who has what ------------------------------------------------------------------------------------------------

    def take(self) -> int:
        """Return the block for the next request; the spare when no other is free.

        It is the lowest of which no array is held and to which no worker may still write. So a short ring stays in the
        cache.
        """
        if self.aimed is not None:
            return self.aimed
        for t, refs in enumerate(self._rows):
            for ref in refs:
                if ref() is not None:
                    break
            else:
                if not self.pins or self.first + t not in self.pins:
                    return self.first + t
        return self.spare

    def row(self, block: int) -> list[np.ndarray]:
        """Return a block's observation leaves, rewards and end flags: large ones lent, others copied."""
        t = block - self.first
        if t >= self.steps:
            assert self.target is not None
            return self.target.row(block)
        arrays = list(map(call, self._makers[t] or self._made(block)))
        if block != self.spare:
            self._rows[t] = list(references(map(arrays.__getitem__, self._large))) if self._large else ()
            return arrays
        for i in self._large:
            arrays[i] = arrays[i].copy()
        return arrays

    def whole(self, steps: int) -> RolloutArrays:
        """Return arrays over the ring's first `steps` blocks, lent together. The ring must be free."""
        f = self.fields

        def arrays(fields: Sequence[Field | None], rows: int) -> list[Any]:
            return [None if each is None else self._array(each.rows(rows)) for each in fields]

        found = RolloutArrays(arrays(f.observations, steps + 1), arrays(f.actions, steps), *arrays(f[1:5], steps))
        lent = (*found.observations, *found.actions, *found[2:])
        self.lent = list(references(each for each in lent if each is not None))
        self._rows = [()] * self.steps  # their referents are gone, and `take` would look through them every time
        return found

    @property
    def free(self) -> bool:
        """True if no array over it is held, and no worker may still write to it."""
        return super().free and not any(ref() is not None for refs in self._rows for ref in refs)

    def _made(self, block: int) -> Sequence[Callable[[], np.ndarray]]:
        """Return functions that make a block's arrays: a copy of an existing one, or a new one over the memory."""
        places = [self._row(each, block) for each in self._handed]
        new: Callable[..., np.ndarray] = np.ndarray  # without a call of Python code
        makers = self._makers[block - self.first] = [
            partial(new, each.shape, each.dtype, self._memory, each.offset)
            if i in self._large
            else self._array(each).copy
            for i, each in enumerate(places)
        ]
        return makers

    def _row(self, field: Field, block: int) -> Field:
        """Return the place of a block's row of a field [T, n, ...]; of a field with T + 1 rows it is the row after."""
        return field.row(block - self.first + (field.shape[0] > self.steps))

    def _array(self, field: Field) -> np.ndarray:
        return np.ndarray(field.shape, field.dtype, self._memory, field.offset)


def _row_bytes(field: Field) -> int:
    return field.dtype.itemsize * math.prod(field.shape[1:])


@dataclass(frozen=True)
class RowFields:
    """All rows of a pool beside its rings, planned by the caller and mapped by all processes.

    Attributes:
        actions: [n, *shape] a leaf; None for a loose leaf.
        done, began, own, episode, seed: int64[n], as in this module's docstring.
        times: int64[4, n], a row each of `TIMES`.
        table: int64[TABLE, 4]: first block, steps (0: no ring), place in the file and bytes of each ring; the standing
            one comes first.
        finals: True if there are rows for terminal observations.
    """

    actions: tuple[Field | None, ...]
    done: Field
    began: Field
    own: Field
    episode: Field
    seed: Field
    times: Field
    table: Field
    finals: bool

    @classmethod
    def plan(cls, plan: Plan, n: int, actions: Layout, finals: bool) -> RowFields:
        rows = plan_leaves(plan, actions, n)
        done, began, own, episode, seed = (plan.add("i8", (n,)) for _ in range(5))
        times = plan.add("i8", (len(TIMES), n))
        return cls(rows, done, began, own, episode, seed, times, plan.add("i8", (TABLE, 4)), finals)


class Rings:
    """The rings of a pool, in one process.

    Attributes:
        all: the rings that this process knows.
    """

    def __init__(self, arena: Arena, fields: RowFields, observations: Layout, actions: Layout) -> None:
        self.arena, self.fields, self.observations, self.actions = arena, fields, observations, actions
        self.all: list[Ring] = []
        self._table = arena.array(fields.table)
        self._latest: Ring | None = None
        self._next = self._turn = 0

    def of(self, block: int) -> Ring:
        """Return the ring that a block belongs to.

        Raises ClosedPool, IndexError for a block that no ring has, and OSError when the ring cannot be mapped here.
        """
        ring = self._latest
        if ring is None or not 0 <= block - ring.first < ring.steps:
            ring = next((each for each in self.all if block in each), None) or self._found(block)
            self._latest = ring
        return ring

    def _found(self, block: int) -> Ring:
        """Map the ring of a block that another process has opened, and forget rings that are not in the table."""
        if self._next:
            self.arena.array(self.fields.table)  # raises ClosedPool
            raise IndexError(f"no ring has block {block}")
        steps = self._table[:, 1].tolist()
        fence()  # once the number of steps is that of a ring, so are the other words
        rings = [(words[0], many, *words[2:]) for words, many in zip(self._table.tolist(), steps, strict=True) if many]
        known = {first for first, *_ in rings}
        self.all = [each for each in self.all if each.first in known]
        for first, many, offset, nbytes in rings:
            if first <= block < first + many:
                memory = map_file(self.arena.fd, nbytes, offset=offset)
                ring = Ring(self._planned(Plan(0), many), memory, first, many)
                self.all = [*self.all, ring]
                return ring
        raise IndexError(f"no ring has block {block}")

    def _planned(self, plan: Plan, steps: int) -> RingFields:
        n = self.fields.done.shape[0]
        return RingFields.plan(plan, steps, n, self.observations, self.actions, self.fields.finals)

    # -- in the caller's process -------------------------------------------------------------------------------------

    def open(self, steps: int, **about: Any) -> Ring:
        """Open a new ring of `steps` blocks; `about`: `least` and `spare` of `Ring`. Raises ArenaError."""
        plan = self.arena.plan()
        fields = self._planned(plan, steps)
        self.arena.grow(plan)
        first, self._next = self._next, self._next + steps
        ring = Ring(fields, self.arena.buffer(fields.rewards)[0], first, steps, **about)
        self.all = [*self.all, ring]
        self.announce(ring)
        return ring

    def announce(self, ring: Ring) -> None:
        """Put a ring into the table unless it is there, so that workers find it. Called before it is written to."""
        if ((self._table[:, 0] == ring.first) & (self._table[:, 1] == ring.steps)).any():
            return
        words = self._table[self._turn]
        words[1] = 0
        fence()
        words[0], words[2:] = ring.first, self.arena.segments[ring.fields.rewards.segment]
        fence()
        words[1] = ring.steps
        self._turn = self._turn % (TABLE - 1) + 1  # the standing ring stays where it is

    def drop(self, ring: Ring) -> None:
        """Give a ring's memory back; it must be free."""
        self.all = [each for each in self.all if each is not ring]
        self._latest = None
        self._table[self._table[:, 0] == ring.first, 1] = 0
        self.arena.drop(ring.fields.rewards.segment)

    def forget(self) -> None:
        """Forget all rings once the arena is closed; arrays that are still held keep their memory."""
        self.all, self._latest = [], None


class RowMemory:
    """The rows of all slots, in the caller's process.

    Args:
        arena: where they lie.
        descriptions: of the slots, with `observation_space`, `action_space`, `numpy_integers` and `finals`.
        blocks: batches of the standing ring, besides the spare.

    Raises LayoutsDiffer and ArenaError.

    Attributes:
        observations, actions: the layouts that all slots share.
        array: the function that returns the array of a field.
        fields: the places of the rows.
        done: int64[n], the number of the latest request that each slot has answered.
        rings: all rings of the pool.
        standing: the ring of batches, the first of `rings`.
    """

    def __init__(self, arena: Arena, descriptions: Sequence[Any], *, blocks: int) -> None:
        self.array = arena.array
        self.observations = _common_layout(descriptions, "observation_space")
        self.actions = _common_layout(descriptions, "action_space")
        self.actions.numpy_integers = all(about.numpy_integers for about in descriptions)
        plan = arena.plan()
        self.fields = RowFields.plan(plan, len(descriptions), self.actions, any(d.finals for d in descriptions))
        arena.grow(plan)
        self.done = arena.array(self.fields.done)
        self.rings = Rings(arena, self.fields, self.observations, self.actions)
        self.standing = self.rings.open(blocks + 1, least=SMALL, spare=True)

    def arrays(self, fields: Sequence[Field | None]) -> list[np.ndarray | None]:
        """Return an array a leaf; None for a leaf without a fixed shape."""
        return [None if field is None else self.array(field) for field in fields]


def _common_layout(descriptions: Sequence[Any], name: str) -> Layout:
    """Return the layout of all slots. Raises LayoutsDiffer if keys, shapes or dtypes differ; bounds may."""
    spaces = [getattr(d, name) for d in descriptions]
    first = Layout.of(spaces[0])
    seen = {id(spaces[0])}
    for slot, space in enumerate(spaces):
        if id(space) in seen or space == spaces[0]:
            continue
        seen.add(id(space))
        other = Layout.of(space)
        if [(leaf.path, leaf.dtype, leaf.shape) for leaf in other.leaves] != [
            (leaf.path, leaf.dtype, leaf.shape) for leaf in first.leaves
        ]:
            raise LayoutsDiffer(
                f"slot {slot} has the {name} {space}, slot 0 has {spaces[0]}: they must share one layout"
            )
    return first
