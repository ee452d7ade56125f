"""A flight: one request to several members that is on its way, and what has come of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from treadle.pool.member import Answered, Failed, Member
from treadle.pool.messages import Extras, Op

if TYPE_CHECKING:
    from treadle.pool.dispatch import Dispatch

LAST_CALL = 1.0  # seconds that the other workers get to answer once one has failed


@dataclass
class Flight:
    """Attributes:
    op, block, slots: what was asked, where rows go (-1: nowhere), of which slots.
    posted: somebody is going to wait for it; else it was interrupted, if it is still open.
    extras: what answers have said beyond their rows.
    """

    op: Op
    block: int
    slots: tuple[int, ...]
    posted: bool = False
    extras: list[Extras] = field(default_factory=list)
    _waiting: dict[int, tuple[Member, int]] = field(default_factory=dict)  # member's index -> (member, request)
    _given_up: list[Member] = field(default_factory=list)
    _failures: list[Failed] = field(default_factory=list)
    _last_call: float | None = None

    def expect(self, member: Member, id: int) -> None:
        self._waiting[member.index] = (member, id)

    def collect(self, pool: Dispatch, timeout: float | None = None) -> None:
        """Wait for one answer of each member.

        Raises TimeoutError after `timeout` seconds, with everything as it was: call again to go on. When a member
        fails the others get a last call; then the failure is raised, and what has not come is given up.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while self._waiting:
            until = self._last_call if self._last_call is not None else deadline
            events = pool.poll(None if until is None else max(0.0, until - monotonic()))
            for event in events:
                self._note(event)
            if events:
                continue
            if self._last_call is None and deadline is not None and monotonic() >= deadline:
                slots = [slot for member, _ in self._waiting.values() for slot in member.slots]
                raise TimeoutError(f"no answer from slots {slots} within {timeout:g} s; it is still awaited")
            break
        if self._failures:
            for member, _ in self._waiting.values():
                pool.give_up(member)
                self._given_up.append(member)
            self._waiting.clear()
            first, *others = (failed.error for failed in self._failures)
            for other in others:
                first.add_note(f"and: {str(other).splitlines()[0]}")
            raise first

    def _note(self, event: Any) -> None:
        waiting = self._waiting.get(event.member.index)
        if isinstance(event, Answered) and waiting is not None and event.reply.id == waiting[1]:
            del self._waiting[event.member.index]
            if event.reply.extras is not None:
                self.extras.append(event.reply.extras)
        elif isinstance(event, Failed):
            self._waiting.pop(event.member.index, None)
            self._failures.append(event)
            self._last_call = self._last_call or monotonic() + LAST_CALL

    def stale(self) -> set[int]:
        """Slots that may have moved without anybody seeing it."""
        gone = [member.slots for member in self._given_up]
        gone += [o.slots for f in self._failures for o in f.owed if o.request.op in (Op.STEP, Op.RESET)]
        return {slot for slots in gone for slot in slots}

    def cut_short(self) -> set[int]:
        """Slots of the caller's own whose request an interrupt has ended: nobody knows how far they came."""
        return {slot for member, _ in self._waiting.values() if member.inline for slot in member.slots}

    def results(self) -> dict[int, Any]:
        """slot -> result of a call, as far as they have come."""
        return {slot: value for each in self.extras for slot, value in each.infos.items()}
