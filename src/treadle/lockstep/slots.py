"""A slot's life as a table: state -> event -> state. Pure; of lockstep and of partial batches.

```text
OVER, NEW --begun--> RUNNING --ended--> OVER (or RUNNING, where a slot moves on within the step)
RUNNING --died--> CUT --shown--> NEW, or WAITS where only a reset begins an episode
any that is not out of use --asked--> NEW | --unseen--> STALE
any that is not out of use --dropped--> LAST (an episode was cut) or VOID (none was) --shown--> GONE
```

A worker's death takes the environments of its slots along (`recover.py`). The slot's state shows what is still to come:
a row that shows the cut, an episode in a fresh environment, or a reset. Where an event's result depends on how a slot
goes on after an episode, the table has a state for each `Way`.

Most steps end no episode and are not noted, so OVER is right for one request only: see `SlotLife.catch_up`. A pair that
is not in the table is a bug in its caller, and raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, IntEnum


class Slot(IntEnum):
    RUNNING = 0
    OVER = 1  # its episode has ended, and the next one has not begun
    CUT = 2  # its worker died in an episode, and no row has shown that
    NEW = 3  # an episode is about to begin: it was asked for, or the next step begins it
    WAITS = 4  # its episode was cut, a row has shown that, and it waits for a reset
    STALE = 5  # it may have moved in a request whose result the caller did not see: it must be reset
    LAST = 6  # dropped in an episode, and no row has shown that
    VOID = 7  # dropped between two episodes, and no row has shown that
    GONE = 8  # dropped, and a row has shown that


class Seen(Enum):
    ASKED = "asked"  # a reset was sent
    BEGUN = "begun"  # the first observation of an episode is there
    ENDED = "ended"
    DIED = "died"  # its worker died, and another one takes its place
    DROPPED = "dropped"  # its worker died, and no other takes its place
    UNSEEN = "unseen"  # a request about it raised, was late or was interrupted
    SHOWN = "shown"  # the caller has a row of it


class Way(IntEnum):
    """How a slot goes on after an episode."""

    SAME = 0  # within the step
    NEXT = 1  # the next step begins another one
    HOLD = 2  # by a reset alone


_S, _E = Slot, Seen
_WAYS = (_S.NEW, _S.NEW, _S.WAITS)
_IN_USE = (_S.RUNNING, _S.OVER, _S.CUT, _S.NEW, _S.WAITS, _S.STALE)

TABLE: dict[tuple[Slot, Seen], tuple[Slot, Slot, Slot]] = {  # a state for each way
    **{(s, _E.ASKED): (_S.NEW,) * 3 for s in _IN_USE},
    **{(s, _E.UNSEEN): (_S.STALE,) * 3 for s in _IN_USE},
    **{(s, _E.DROPPED): (_S.LAST if s in (_S.RUNNING, _S.CUT) else _S.VOID,) * 3 for s in _IN_USE},
    **{(s, _E.DIED): (s,) * 3 for s in (_S.CUT, _S.NEW, _S.WAITS, _S.STALE)},
    **{(s, _E.SHOWN): (s,) * 3 for s in (_S.RUNNING, _S.OVER, _S.NEW, _S.WAITS, _S.STALE, _S.GONE)},
    (_S.OVER, _E.BEGUN): (_S.RUNNING,) * 3,
    (_S.NEW, _E.BEGUN): (_S.RUNNING,) * 3,
    (_S.RUNNING, _E.ENDED): (_S.RUNNING, _S.OVER, _S.OVER),
    (_S.RUNNING, _E.DIED): (_S.CUT,) * 3,
    (_S.OVER, _E.DIED): _WAYS,
    (_S.CUT, _E.SHOWN): _WAYS,
    (_S.LAST, _E.SHOWN): (_S.GONE,) * 3,
    (_S.VOID, _E.SHOWN): (_S.GONE,) * 3,
}
_NEVER = 255
_AFTER = {  # [3 * state + way]
    event: bytes(then for state in Slot for then in TABLE.get((state, event), (_NEVER,) * 3)) for event in Seen
}


class SlotLife:
    """The states of a pool's slots.

    Args:
        ways: how each goes on after an episode.

    Attributes:
        states: of each slot; a byte, of `Slot`.
        at: the request up to which OVER is right.
        plain: True if every slot is RUNNING or OVER, so that all can simply be stepped.
    """

    def __init__(self, ways: Sequence[Way]) -> None:
        self._ways, self.states = bytes(ways), bytearray(len(ways))
        self.at, self.plain = 0, True

    def see(self, event: Seen, slots: Iterable[int]) -> None:
        """Move these slots by an event. Raises RuntimeError for a pair that never happens; then no slot has moved."""
        states, ways, after = self.states, self._ways, _AFTER[event]
        then = [(slot, after[3 * states[slot] + ways[slot]]) for slot in slots]
        for slot, state in then:
            if state == _NEVER:
                raise RuntimeError(f"slot {slot}, which is {self.state(slot).name}, cannot see '{event.value}'")
        for slot, state in then:
            states[slot] = state
        if then and not (self.plain and event in (Seen.BEGUN, Seen.ENDED)):
            self.plain = max(states) <= Slot.OVER

    def catch_up(self, id: int) -> None:
        """Move slots that were OVER before request `id` to RUNNING: every end up to that request has been noted."""
        if self.at != id:
            self.see(Seen.BEGUN, self.of(Slot.OVER))
            self.at = id

    def state(self, slot: int) -> Slot:
        return Slot(self.states[slot])

    def of(self, *states: Slot, among: Iterable[int] | None = None) -> list[int]:
        """Return the slots in these states; `among`: of these, in their order."""
        if among is not None:
            return [slot for slot in among if self.states[slot] in states]
        found = []
        for state in states:
            at = self.states.find(state)
            while at >= 0:
                found.append(at)
                at = self.states.find(state, at + 1)
        return sorted(found)

    def unseen(self, slots: Iterable[int]) -> None:
        """Mark the slots that are in use as STALE: they may have moved in a request whose result is lost."""
        self.see(Seen.UNSEEN, self.of(*_IN_USE, among=slots))

    def placed(self, slots: Iterable[int]) -> None:
        """Begin an episode in these slots, which were put into states from elsewhere."""
        chosen = self.of(Slot.CUT, Slot.NEW, Slot.WAITS, Slot.STALE, among=slots)
        self.see(Seen.ASKED, chosen)
        self.see(Seen.BEGUN, chosen)

    @property
    def stale(self) -> set[int]:
        """Slots that moved on in a request that failed: only a reset brings them back."""
        return set(self.of(Slot.STALE))

    @property
    def nothing(self) -> set[int]:
        """Slots without a row in the partial batch of an error: stale ones, and dropped ones until a row shows it."""
        return set(self.of(Slot.STALE, Slot.LAST, Slot.VOID))

    @property
    def gone(self) -> frozenset[int]:
        """Slots that were dropped, where a row has shown it."""
        return frozenset() if self.plain else frozenset(self.of(Slot.GONE))

    def moves_on(self, slot: int) -> bool:
        """Return True if it moves on within the step that ends its episode."""
        return self._ways[slot] == Way.SAME

    def begins_next(self, slot: int) -> bool:
        """Return True if the step after an end begins its next episode."""
        return self._ways[slot] == Way.NEXT

    def begins(self, slot: int) -> bool:
        """Return True if the step that shows its row begins an episode."""
        return self.state(slot) is Slot.NEW or self.moves_on(slot)
