"""The line between the caller and one worker: two rings of words in the arena, a bell, and a channel for payloads.

An entry of a ring is four words. The first is its number in the ring (1, 2, 3, ...) and is written last. So an entry is
there exactly when it bears the number that the reader expects. Processors that do not keep the order of writes need
fences around it (`fences.py`). A bell or a death leads both sides to a ring. They never act on half an entry, and keep
the order. Small payloads and answers lie in the entry's box, which saves the system calls of the channel. Larger ones
go by the channel: a payload before the entry that announces it, an answer after it.

Each side has a class of its own: `Line` is the caller's end, `WorkerLine` the worker's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.interrupts import Later
from treadle.memory.arena import Arena, Field, Plan, view
from treadle.memory.fences import fence
from treadle.wire.bell import CELL, Bell, Waiting
from treadle.wire.channel import Undecodable
from treadle.wire.info_rows import InfoRows, Schema, from_raw, raw_of
from treadle.wire.messages import Extras, Raised, Reply

BOX = 4096  # bytes of a payload or an answer that need not go by the channel
WITH_PAYLOAD = 256  # added to a request's op: its payload comes by the channel
CHOSEN = 2**16  # times `Chosen.which`: added to the op of a step of one slot
IN_BOX = 2**40  # times the bytes of its payload in the box: added to a request's op
FLAG_BOX, FLAG_CHANNEL, FLAG_MORE, FLAG_ENDED = 1, 2, 4, 8
FLAG_ROWS = 16  # the box holds `raw_of` infos, and not a pickle
WITH_EXTRAS = FLAG_BOX | FLAG_CHANNEL

CREDIT = 0  # word: answers that the caller has taken
BUSY_NS = 1  # word: nanoseconds that the worker has spent on requests
STARVED = 2  # word: 1 while a streaming worker waits for credit
STOP = 3  # word: streams of requests up to this id must end early
BEAT = 4  # word: counts up while a stream gets on, by one at each of its looks (at `stopped`)
ITEM = 5  # word: 1 + the item of a request with many that the program works on (`Program.share`); 0: none
EPISODE = 6  # word: 1 + the number of the latest episode that a stream has made alone; 0: none, or several at once
BEGAN = 7  # word: BEAT before that episode's first step; RESETS or OVER
WORDS = 8
RESETS, OVER = -1, -2


@dataclass(frozen=True)
class LineFields:
    """The places of a line's words.

    `orders`: the boxes of the requests; `box`: those of the answers. `told`: how many answers there are, in a row with
    those of all other lines. `fenced`: for both sides, see `fences.py`.
    """

    bell: Field
    requests: Field
    orders: Field
    answers: Field
    box: Field
    words: Field
    told: Field
    depth: int
    fenced: bool

    @classmethod
    def plan(cls, plan: Plan, slots: int, fenced: bool = False, told: Field | None = None) -> LineFields:
        """Plan room for two requests a slot and a few for the pool itself; at least 16 for streams to run ahead."""
        depth = max(16, 2 * slots + 4)  # a slot may get a policy's outputs, and be stepped
        entries, boxes = ("i8", (depth * 4,)), ("u1", (depth * BOX,))
        kinds = (("u1", (CELL,)), entries, boxes, entries, boxes, ("i8", (WORDS,)))
        bell, requests, orders, answers, box, words = (plan.add(*each) for each in kinds)
        return cls(bell, requests, orders, answers, box, words, told or plan.add("i8", (1,)), depth, fenced)


class Unsendable(Exception):
    """An answer cannot be packed; `error` is the reason."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__} while packing")
        self.error = error


class Chosen(tuple[list[int], None]):
    """The payload of a step of one slot, which travels in the words of the request, without a message.

    Attributes:
        which: the slot's number + 1.
    """

    which: int

    @classmethod
    def one(cls, slot: int) -> Chosen:
        chosen = cls(([slot], None))
        chosen.which = slot + 1
        return chosen

    def discard(self) -> None:
        """Do nothing, unlike `channel.Packed.discard`: no file was made for it."""


class LineEnd:
    """The parts of both ends: the rings and the boxes, the bells, and the channel beside them."""

    def __init__(self, arena: Arena, fields: LineFields, bell: Bell, pool_bell: Bell, channel: Any) -> None:
        self.fenced, self.depth = fields.fenced, fields.depth
        self.requests = view(arena.array(fields.requests))
        self.orders = view(arena.array(fields.orders))  # boxes of the requests' payloads
        self.answers = view(arena.array(fields.answers))
        self.box = view(arena.array(fields.box))
        self.words = view(arena.array(fields.words))
        self.told = view(arena.array(fields.told))
        self.bell, self.pool_bell, self.channel = bell, pool_bell, channel
        self._schemas: dict[int, Schema] = {}  # of infos, as they have travelled


class Line(LineEnd):
    """The caller's end.

    Args:
        slots: the worker's.
        longest: ns for which it keeps trying before it sleeps; see `Rhythm`.

    Attributes:
        one_to_one: True if every request has had one answer. Streams have many.
        posted: requests posted.
        taken: answers taken.
    """

    def __init__(
        self,
        arena: Arena,
        fields: LineFields,
        bell: Bell,
        pool_bell: Bell,
        channel: Any,
        slots: tuple[int, ...] = (),
        longest: int = 0,
    ) -> None:
        super().__init__(arena, fields, bell, pool_bell, channel)
        self.slots, self.one_to_one = slots, True
        self.await_answer = Waiting(pool_bell, longest).until
        self.posted = self.taken = 0
        self._kept: Reply | None = None  # an answer that Ctrl-C kept `take` from giving

    def clear(self) -> None:
        """Start over, for a new worker on the same words. Called before the worker maps them."""
        for words in (self.requests, self.answers, self.words, self.told):
            words[:] = view(np.zeros(len(words), np.int64))
        self.posted = self.taken = 0
        self._kept = None
        self._schemas = {}

    def post(self, id: int, op: int, block: int = -1, packed: Any = None) -> None:
        """Post a request to the worker and ring. `packed`: its payload, as the channel packs it. Never waits."""
        if type(packed) is Chosen:
            self.post_bare(id, op + packed.which * CHOSEN, block)
        elif packed is None:
            self.post_bare(id, op, block)
        elif packed.size <= BOX:
            start, size = self.posted % self.depth * BOX, len(packed.body)
            with Later():
                self.orders[start : start + size] = packed.body
                self.post_bare(id, op + size * IN_BOX, block)
        else:
            with Later():  # a payload without its request would be taken for that of the next one
                self.channel.send_packed(packed)
                self.post_bare(id, op + WITH_PAYLOAD, block)

    def post_bare(self, id: int, op: int, block: int) -> None:
        """Post a request without a payload."""
        at, number = self.posted % self.depth * 4, self.posted + 1
        words = self.requests
        words[at + 1] = id
        words[at + 2] = op
        words[at + 3] = block
        if self.fenced:
            fence()
        words[at] = self.posted = number  # no signal is handled between the two: it is posted or not, if not rung
        self.bell.release()

    def idle(self) -> bool:
        """Return True if every request is answered and every answer taken; always False for a line that streams."""
        return self.one_to_one and self.taken == self.posted

    def take(self, timeout: float) -> Reply | None:
        """Return the next answer, None when there is none. `timeout` bounds the wait for an announced payload."""
        if (kept := self._kept) is not None:
            self._kept = None
            return kept
        at = self.taken % self.depth * 4
        number, id, flags, nbytes = self.answers[at : at + 4]
        if number != self.taken + 1:
            return None
        if self.fenced:
            fence()
            number, id, flags, nbytes = self.answers[at : at + 4]
        if not flags & FLAG_CHANNEL:
            return self._take(number, id, flags, nbytes, timeout)
        with Later():
            self._kept = self._take(number, id, flags, nbytes, timeout)
        reply, self._kept = self._kept, None
        return reply

    def take_rows(self) -> Extras:
        """Return the extras of the next answer, which is known to be there and to hold nothing but rows."""
        at, number = self.taken % self.depth, self.taken + 1
        start = at * BOX
        infos, finals = from_raw(bytes(self.box[start : start + self.answers[at * 4 + 3]]), self._schemas)
        if self.fenced:
            fence()
        self.taken = self.words[CREDIT] = number
        return Extras(infos, {}, finals, {})

    def _take(self, number: int, id: int, flags: int, nbytes: int, timeout: float) -> Reply | None:
        extras = None
        try:
            if flags & FLAG_BOX:
                start = self.taken % self.depth * BOX
                data = bytes(self.box[start : start + nbytes])
                if flags & FLAG_ROWS:
                    infos, finals = from_raw(data, self._schemas)
                    extras = Extras(infos, {}, finals, {})
                else:
                    extras = self.channel.decode(data)
            elif flags & FLAG_CHANNEL:
                message = self.channel.recv_wait(timeout)
                if message is None:
                    return None
                extras = message[0]
        except (EOFError, ConnectionError):
            return None  # it died while sending: the answer will never be whole, and the death is seen elsewhere
        except Exception as error:  # noqa: BLE001 - cannot be unpickled, or its descriptors have no room here
            why = Raised.of(error.error if isinstance(error, Undecodable) else error, "unpickle")
            extras = Extras({}, {}, {}, dict.fromkeys(self.slots, why))
        if extras is not None and not flags & FLAG_ROWS:
            self._schemas.update(_schemas(extras))
        reply = Reply(id, extras, not flags & FLAG_MORE)
        self.taken = number
        if self.fenced:
            fence()  # the entry is read before it may be written again
        self.words[CREDIT] = number
        if self.words[STARVED]:
            self.bell.release()
        return reply

    def beat(self) -> int | None:
        """Return a number that changes while the worker's stream gets on; None while it waits for the caller."""
        return None if self.words[STARVED] else self.words[BEAT]

    def making(self) -> tuple[int | None, int | None]:
        """Return the episode that the worker's stream is making alone, and its present step, from 1.

        Episode None: none, or several. Step None: the episode is being reset.
        """
        episode, began, beat = self.words[EPISODE], self.words[BEGAN], self.words[BEAT]
        if not episode or began == OVER:
            return None, None
        return episode - 1, beat - began + 1 if began >= 0 else None

    def looks(self) -> int:
        """Return how often the worker's streams have looked whether to stop; small steps have one look each."""
        return self.words[BEAT]

    def stop(self, id: int) -> None:
        """Ask streams of requests up to `id` to end at their next look."""
        self.words[STOP] = max(id, self.words[STOP])
        self.bell.release()


class WorkerLine(LineEnd):
    """The worker's end; `longest`: ns for which it keeps trying before it sleeps, see `Rhythm`.

    Attributes:
        taken: requests taken.
        given: answers given.
    """

    def __init__(
        self, arena: Arena, fields: LineFields, bell: Bell, pool_bell: Bell, channel: Any, longest: int = 0
    ) -> None:
        super().__init__(arena, fields, bell, pool_bell, channel)
        self.await_request = Waiting(bell, longest).until
        self.taken = self.given = 0
        self._chosen: dict[int, Chosen] = {}  # those that were requested, by `which`

    def next(self) -> tuple[int, int, int, Any]:
        """Wait for the next request: (id, op, block, payload). Raises EOFError when the caller is gone."""
        entry = self.taken % self.depth
        at = entry * 4
        words = self.requests
        number = self.taken + 1
        if words[at] == number:
            self.bell.acquire(False)
        else:
            while not self.await_request(words, at, number, 3600.0):
                pass
        if self.fenced:
            fence()
        self.taken, id, op, block = words[at : at + 4]
        payload: Any = None
        try:
            if op >= IN_BOX:
                size, op = divmod(op, IN_BOX)
                payload = self.channel.decode(bytes(self.orders[entry * BOX : entry * BOX + size]))
            elif op >= CHOSEN:
                which, op = divmod(op, CHOSEN)
                payload = self._chosen.get(which) or self._chosen.setdefault(which, Chosen.one(which - 1))
            elif op & WITH_PAYLOAD:
                op -= WITH_PAYLOAD
                payload, fds = self.channel.recv_wait()
                if fds:
                    payload.arrived(fds)  # a `broadcast.Payload`
        except Undecodable as undecodable:  # the request fails, not the worker
            payload = undecodable
        return id, op, block, payload

    def stopped(self, id: int) -> bool:
        """Return True if the caller has asked the stream of request `id` to end. A call shows that it gets on."""
        words = self.words
        words[BEAT] += 1
        return words[STOP] >= id

    def resets(self, episode: int) -> None:
        """Note that the stream makes an episode, alone, and begins with its reset."""
        self.words[EPISODE], self.words[BEGAN] = episode + 1, RESETS

    def begins(self) -> None:
        """Note that the episode's first step is next. From now on `stopped` counts the steps."""
        self.words[BEGAN] = self.words[BEAT]

    def plays(self, episode: int, steps: int) -> None:
        """Note that the step after `steps` of this episode is next, of several that are made.

        A call shows that the stream gets on.
        """
        words = self.words
        words[BEAT] += 1
        words[EPISODE], words[BEGAN] = episode + 1, words[BEAT] - steps

    def ends(self) -> None:
        """Note that the episode, or the step of several episodes, is made."""
        self.words[BEGAN] = OVER

    @property
    def latest_episode(self) -> int | None:
        """The latest episode that the stream makes or has made; None: none, or several at once."""
        return self.words[EPISODE] - 1 if self.words[EPISODE] else None

    def credit(self, id: int) -> bool:
        """Wait until a stream may answer; two entries always stay free. Returns False if it was stopped meanwhile."""
        words = self.words
        while self.given - words[CREDIT] >= self.depth - 2:
            words[STARVED] = 1
            if self.stopped(id):
                break
            if self.given - words[CREDIT] >= self.depth - 2:
                self.bell.acquire(True, 0.05)
        # before STARVED is cleared: the time that it has waited does not count
        getting_on = not self.stopped(id)
        words[STARVED] = 0
        return getting_on

    def answer(self, id: int, extras: Extras | None, last: bool = True, ended: bool = False) -> None:
        """Answer request `id` and ring. Raises Unsendable, with nothing sent.

        `ended`: an episode ended in this step, so that the caller reads the flags.
        """
        flags = (0 if last else FLAG_MORE) | (FLAG_ENDED if ended else 0)
        boxed, packed = b"", None
        if extras is not None:
            raw = None if extras.loose or extras.raised else raw_of(extras.infos, extras.finals, self._schemas)
            if raw is not None and len(raw) <= BOX:
                boxed, flags = raw, flags | FLAG_BOX | FLAG_ROWS
            else:
                try:
                    packed = self.channel.pack(extras)
                except BaseException as error:  # pickling runs foreign code
                    raise Unsendable(error) from error
                if packed.size > BOX:
                    flags |= FLAG_CHANNEL
                else:
                    if _only_rows(extras):
                        # noted as sent, since nothing foreign and no descriptor goes along that could keep them from
                        # arriving
                        self._schemas.update(_schemas(extras))
                    boxed, packed, flags = packed.body, None, flags | FLAG_BOX
        if packed is not None and self.channel.in_process:
            self.channel.send_packed(packed)  # nothing to wait for: the message is there before the bell rings
            packed = None
        at = self.given % self.depth
        if boxed:
            self.box[at * BOX : at * BOX + len(boxed)] = boxed
        self.given += 1
        words, at = self.answers, at * 4
        words[at + 1] = id
        words[at + 2] = flags
        words[at + 3] = len(boxed)
        if self.fenced:
            fence()
        words[at] = self.given
        self.told[0] = self.given  # after the entry: a caller that sees this looks there
        self.pool_bell.release()
        if packed is not None:
            self.channel.send_packed(packed, block=True)


def _only_rows(extras: Extras) -> bool:
    """Return True if an answer has nothing but infos, and those as rows."""
    infos, loose, finals, raised = extras
    return not (loose or raised) and all(
        isinstance(rows, InfoRows) and not rows.rest for rows in (infos, finals) if rows
    )


def _schemas(extras: Extras) -> dict[int, Schema]:
    """Return the schemas of an answer, by number."""
    found: dict[int, Schema] = {}
    for rows in (extras.infos, extras.finals):
        if isinstance(rows, InfoRows):
            found.update((schema.number, schema) for schema, _, _ in rows.groups)
    return found
