"""A flight: one request to several members that is on its way, and what has come of it so far.

Several may be under way at once, about different slots (`parts.py`), and a member may owe answers to more than one of
them. Whichever is waited for hears all events, and gives the others theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from treadle.errors import WorkerError
from treadle.pool.life import ALIVE, State
from treadle.pool.member import Answered, Failed, Member
from treadle.pool.messages import Extras, Op, Raised
from treadle.spaces import Mailed

if TYPE_CHECKING:
    from treadle.pool.batch import Batches, News
    from treadle.pool.dispatch import Dispatch, Order
    from treadle.pool.recover import Recovery

LAST_CALL = 1.0  # seconds that the other workers get to answer once one has failed


def orders_of(members: Sequence[Member], asked: dict[int, Any]) -> list[Order]:
    """What each member is sent when slots are asked (slot -> order)."""
    mine = [(member, {slot: asked[slot] for slot in member.slots if slot in asked}) for member in members]
    return [(member, orders, tuple(orders)) for member, orders in mine if orders]


def step_orders(members: Sequence[Member], mailed: Mailed | None) -> list[Order]:
    """What each member is sent for a step of all slots; `mailed`: n values of each action leaf that goes by message."""
    orders: list[Order] = []
    for member in members:
        lo, hi = member.slots[0], member.slots[-1] + 1
        orders.append((member, None if mailed is None else (None, share_of(mailed, lo, hi)), member.slots))
    return orders


def share_of(mailed: Mailed, lo: int, hi: int) -> Mailed:
    """What of a batch by message is about the slots lo to hi - 1."""
    return {leaf: values[lo:hi] for leaf, values in mailed.items()}


@dataclass
class Flight:
    """Attributes:
    op, block, slots: what was asked, where rows go (-1: nowhere), of which slots.
    sent: to all whom it goes to; until then an interrupt leaves some of them a step behind the others.
    posted: somebody is going to wait for it; else it was interrupted, if it is still open.
    extras: what answers have said beyond their rows.
    others: the flights that are under way beside it.
    batches: makes its batch; None: it has none.
    recovery: what goes on after a worker's death; None: a death is the end. The rest is its notes on this flight:
    begins: slot -> (seed, options) of the episodes that begin in it, made again by a fresh worker when one dies.
    unsent: those of `begins` that a fresh worker has yet to be asked for.
    cut: slots whose episode was cut, as this flight's batch tells.
    lost: slots whose worker died without owing anything of this flight.
    void: slots that were dropped in it and had no episode to be cut.
    told: errors of workers that died in a call.
    before: slot -> episodes it had begun when its next one was asked for.
    news: slot -> what its batch tells besides rows and infos.
    """

    op: Op
    block: int
    slots: tuple[int, ...]
    sent: bool = False
    posted: bool = False
    others: Callable[[], Iterable[Flight]] = tuple
    batches: Batches | None = None
    recovery: Recovery | None = None
    extras: list[Extras] = field(default_factory=list)
    begins: dict[int, Any] = field(default_factory=dict)
    unsent: set[int] = field(default_factory=set)
    cut: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    void: set[int] = field(default_factory=set)
    told: list[WorkerError] = field(default_factory=list)
    before: dict[int, int] = field(default_factory=dict)
    news: dict[int, News] = field(default_factory=dict)
    # (member's index, request) -> whose, about which slots; one request may have gone to several members
    _waiting: dict[tuple[int, int], tuple[Member, tuple[int, ...]]] = field(default_factory=dict)
    _given_up: list[Member] = field(default_factory=list)
    _failures: list[Failed] = field(default_factory=list)
    _cut_short: set[int] = field(default_factory=set)
    _spoiled: set[int] = field(default_factory=set)
    _last_call: float | None = None

    def launch(self, pool: Dispatch, orders: Sequence[Order], sent_as: Op | None = None) -> None:
        """Send it, all or nothing. Raises UsageError when one of the requests cannot be sent."""
        pool.send_all(sent_as or self.op, orders, self.block, expect=self.expect)
        self.sent = True

    def expect(self, member: Member, id: int, slots: Iterable[int] | None = None) -> None:
        """An answer is to come: about these slots, None: all of the member's."""
        self._waiting[member.index, id] = member, member.slots if slots is None else tuple(slots)

    def ring(self) -> None:
        """Ring for what is awaited: an interrupt may have come between a request and its ring."""
        for member, _ in self._waiting.values():
            if member.worker.line is not None:
                member.worker.line.bell.release()

    def forget(self, member: Member) -> set[int]:
        """No answer of the member's will come any more. Returns the slots that it owed one about."""
        mine = [key for key in self._waiting if key[0] == member.index]
        return {slot for key in mine for slot in self._waiting.pop(key)[1]}

    def fail(self, failed: Failed, slots: Iterable[int] = ()) -> None:
        """This failure, which these slots' rows are lost to, ends the flight: the others get a last call, from when it
        is waited for."""
        self._failures.append(failed)
        self._spoiled.update(slots)

    def advance(self) -> None:
        """Do what members' deaths ask for, where it goes on after them."""
        if self.recovery is not None:
            self.recovery.advance(self)

    def collect(self, pool: Dispatch, timeout: float | None = None) -> None:
        """Wait for one answer of each member, and (see `recovery`) for fresh workers in the place of dead ones.

        Raises TimeoutError after `timeout` seconds, with everything as it was: call again to go on. When a member
        fails for good the others get a last call; then the failure is raised, and what has not come is given up.
        """
        deadline = None if timeout is None else monotonic() + timeout
        recovery = self.recovery
        if not self._failures:
            self.advance()
        while self._waiting or (recovery is not None and not self._failures and recovery.unfinished):
            if self._failures and self._last_call is None:
                self._last_call = monotonic() + LAST_CALL
            until = self._last_call if self._last_call is not None else deadline
            left = None if until is None else max(0.0, until - monotonic())
            alone = not any(True for _ in self.others())
            # what is heard for another flight must not be lost to an interrupt: it may be long until it is waited for
            events = pool.poll(left, None if alone else self._note)
            for event in events if alone else ():
                self._note(event)
            if events:
                continue
            if self._last_call is None and deadline is not None and monotonic() >= deadline:
                slots = sorted(self.unsent.union(self.cut, *(owed for _, owed in self._waiting.values())))
                raise TimeoutError(f"no answer from slots {slots} within {timeout:g} s; it is still awaited")
            if self._last_call is not None:
                break
            if recovery is None or not recovery.await_killed():
                self._recollect()
        if self._failures:
            for member in {member.index: member for member, _ in self._waiting.values()}.values():
                pool.give_up(member)  # whatever it owes
                self._given_up.append(member)
                for each in self.others():
                    if given_up := each.forget(member):
                        each.fail(self._failures[0], () if each.op is Op.CALL else given_up)
            self._waiting.clear()
            first, *others = (failed.error for failed in self._failures)
            for other in others:
                first.add_note(f"and: {str(other).splitlines()[0]}")
            raise first

    def _note(self, event: Any) -> None:
        if isinstance(event, Answered):
            for each in (self, *self.others()):
                if each._answered(event):
                    break
        elif self.recovery is not None and not self._failures:
            self.recovery.advance(self)
        elif isinstance(event, Failed):
            for other in self.others():
                if other.forget(event.member):
                    other.fail(event)
            if self.forget(event.member) or event.member.state not in ALIVE:  # a death is told by whoever hears of it
                self.fail(event)

    def _answered(self, event: Answered) -> bool:
        """Note an answer, if it is to this."""
        key, extras = (event.member.index, event.reply.id), event.reply.extras
        if key not in self._waiting:
            return False
        # before it counts as noted: see `_recollect`, which may note it again; rows of infos must not be doubled
        if extras is not None and not any(each is extras for each in self.extras):
            self.extras.append(extras)
        del self._waiting[key]
        return True

    def _recollect(self) -> None:
        """Nobody owes anything any more, and yet something is awaited: an interrupt (Ctrl-C) fell between an event and
        the note of it, or into the caller's own share. What can still be had is noted, the rest has failed."""
        if self.recovery is not None:
            self.recovery.advance(self)  # a death that it was not told of
            if any(member.owed or member.state is State.STARTING for member, _ in self._waiting.values()):
                return
        for (_, id), (member, slots) in list(self._waiting.items()):
            if member.state not in ALIVE and member.failure is not None:
                self._note(Failed(member, member.failure, ()))
            elif (reply := member.recall(id)) is not None:
                self._note(Answered(member, reply))
            else:
                why = Raised.of(KeyboardInterrupt("an interrupt in the caller cut it short"), self.op.name.lower())
                self.extras.append(Extras({}, {}, {}, dict.fromkeys(slots, why)))
                self._cut_short.update(slots)
                self._waiting.pop((member.index, id), None)

    def raise_told(self) -> None:
        """Raise the error of a worker that died in a call, with the results of the others."""
        for error in self.told[:1]:
            error.partial = self.results()
            for other in self.told[1:]:
                error.add_note(f"and: {str(other).splitlines()[0]}")
            raise error

    def stale(self) -> set[int]:
        """Slots that may have moved without anybody seeing it."""
        gone = [member.slots for member in self._given_up]
        gone += [o.slots for f in self._failures for o in f.owed if o.request.op in (Op.STEP, Op.RESET)]
        dropped = set() if self.recovery is None else self.recovery.gone
        return self._spoiled.union(dropped, self.cut, self.unsent, self.void, self.moved_unseen(), *gone)

    def moved_unseen(self) -> set[int]:
        """Slots that must be reset when nobody sees the flight's batch, or when it has failed."""
        if self.op is Op.CALL:
            return set(self._cut_short)
        return {slot for each in self.extras for slot in each.raised} if self.sent else set(self.slots)

    def results(self) -> dict[int, Any]:
        """slot -> result of a call, as far as they have come."""
        return {slot: value for each in self.extras for slot, value in each.infos.items()}
