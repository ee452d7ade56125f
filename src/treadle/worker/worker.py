"""A worker: what a backend must do to run slots, and what the pool knows of every worker, whatever runs it.

`Worker` is the protocol. Its abstract methods are what a backend brings (a process, a thread, a remote machine); the
rest, where a worker is in its life and what it still owes, is the same for all. `SerialWorker` at the end is the
reference: the caller's own thread runs the slots, so nothing travels, nothing waits, and nothing can die alone. A
backend is one class, made known by `backends.register`:

    class MyWorker(Worker): ...
    register("mine", lambda: MyWorker)
    Pool(factories, backend="mine")

A worker is started, says `hello` when its slots are built, and is given memory (`join`). From then on it is asked
(`post`) and answers in the order in which it was asked (`take`), until it is asked to close (`ask`) or ends by itself.
When it has `ended` it is buried (`bury`), and may be started again: the same object, a fresh process.
"""

from __future__ import annotations

import contextlib
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.errors import TooManyFiles, UsageError, Where, WorkerError, WorkerTimeout
from treadle.interrupts import Later
from treadle.memory.arena import too_many_files
from treadle.wire.line import Chosen, Line
from treadle.wire.messages import CLOSING, ExitReport, Hello, Raised, Reply, Request, WorkerSpec
from treadle.worker.life import ALIVE, TABLE, Event, State, after
from treadle.worker.serve import Server, caught

if TYPE_CHECKING:
    from treadle.worker.options import PoolOptions
    from treadle.worker.place import Place


class Owed(NamedTuple):
    """A request without its (last) answer yet. `limit`: seconds it may take once its turn comes; None: for ever."""

    request: Request
    slots: tuple[int, ...]
    limit: float | None


class Common:
    """What the workers of one pool have in common; a backend that shares more has a class of its own."""

    def __init__(self, options: PoolOptions) -> None:
        self.options = options

    def spec(self, index: int, slots: tuple[int, ...], factories: Sequence[Callable[[], Any]]) -> WorkerSpec:
        """What one of them is made of. Raises whatever pickling its factories raises."""
        return WorkerSpec(index, slots, b"")

    def prepare(self) -> None:
        """All specs are there; the first worker is started next. Raises StartupFailed."""

    def close(self) -> None:
        """All workers are buried."""


class Worker(ABC):
    """One worker. A backend overrides `start` and what follows it; see the module.

    Args:
        spec: which slots, and how to build them elsewhere.
        factories: the same for who is in the caller's process.
        common: what its `common` has made.

    Attributes:
        in_caller: does it run in the caller's process, where no process can be killed?
        inline: does the caller's own thread do its work, when answers are taken?
        starts_here: must `start` be called by the caller's own thread? Else it is called where no interrupt reaches it.
        shared: does its memory have to be shared between processes?
        slow: what is said of one that is not ready in time.
        pid: of its process; None where it has none of its own.
        node: the address of the machine that it runs on, where that is not this one.
        placed: is there a machine for it? On a cluster it may have to wait for one.
        about: what its slot has said of itself there; None: see the pool's descriptions.
        server: serves the requests of one that is `inline`; and there `looked` is called at every look of a stream, as
            nobody else runs meanwhile.
        line: how it is asked; None until it has joined, after its end, and where nothing travels.
        state: where it is in its life.
        owed: requests without an answer, in order.
        turn: when the first of `owed` came to its turn (monotonic).
        late: requests whose answers will be dropped.
        restarts: when it was started again after a death.
        retired: how often it was started again because it was worn out.
        began: when it was last started again (monotonic).
        retiring: when one that retires is killed if it has not ended (monotonic); None: it does not.
        restart_at: when it is to be started again.
        asides: requests since it started that were not steps of all its slots.
        stalled: what it was killed for, and has yet to be seen dead of.
        barren: its deaths in a row without an answer between them.
        failure: what it last failed of; a missed deadline, not the killing that followed.
        undecided: it is dead, and nobody has said yet what is to become of it.
        unreachable: a request could not be handed to it, so it was killed.
        extra: it was added to a pool at work, and has never been ready: nobody misses it.
    """

    in_caller = inline = starts_here = shared = False
    slow = "Where imports take the time: the fork server does those of WorkerOptions(preload=...) once for all."
    payload_timeout = 0.0  # seconds for the rest of an answer whose beginning is there
    pid: int | None = None
    node: str | None = None
    placed = True
    about: Any = None
    server: Any = None
    looked: Callable[[], None] | None = None

    def __init__(self, spec: WorkerSpec, factories: Sequence[Callable[[], Any]], common: Any) -> None:
        self.spec, self.factories, self.common = spec, factories, common
        self.index, self.slots = spec.index, spec.slots
        self.state = State.STARTING
        self.line: Line | None = None
        self.channel: Any = None
        self.report = ExitReport()
        self.owed: deque[Owed] = deque()
        self.turn = 0.0
        self.late: set[int] = set()
        self.restarts: list[float] = []
        self.restart_at: float | None = None
        self.retiring: float | None = None
        self.retired, self.began = 0, 0.0
        self.asides = self.barren = 0
        self.warned = self.overran = 0  # the last request that was told to take long; that was counted as overrunning
        self.stalled: WorkerError | None = None
        self.failure: WorkerError | None = None
        self.undecided = self.unreachable = self.extra = False
        self._beat: int | None = None  # of its stream, when it was last looked at

    @classmethod
    def common_of(cls, options: PoolOptions) -> Common:
        """What all workers of a pool have in common."""
        return Common(options)

    # -- what a backend does -----------------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Begin to build its slots, for the first time or again, and return at once, if it can. What raises leaves
        nothing behind."""

    @abstractmethod
    def hello(self) -> Hello | None:
        """Its first word, once it is there."""

    @abstractmethod
    def join(self, place: Place) -> None:
        """Its slots are built: give it its part of the memory. From now on it takes requests."""

    def take(self) -> Reply | None:
        """The next answer, None when there is none."""
        if self.line is None:
            return None
        if self.channel.outbox:
            with contextlib.suppress(OSError), Later():  # it is dying: its death is seen where deaths are looked for
                self.channel.pump()
        return self.line.take(self.payload_timeout)

    @abstractmethod
    def ended(self) -> bool:
        """Has it ended? Asks at once, and never waits."""

    @property
    def measured(self) -> bool:
        """Are deadlines only measured there, as it cannot be killed?"""
        return self.in_caller

    @abstractmethod
    def ask(self) -> None:
        """Ask it to close its slots and end; what they raise is in `last_words`."""

    def building(self) -> int | None:
        """The slot that it builds, or has built last, as far as it is known."""
        return None

    def pack(self, payload: Any) -> Any:
        """A payload as `post` takes it. Raises what pickling raises."""
        return payload if payload is None or type(payload) is Chosen else self.channel.pack(payload)

    def post(self, request: Request, packed: Any) -> None:
        """Hand it a request. Never waits."""
        assert self.line is not None
        try:
            self.line.post(request.id, request.op, request.block, packed)
        except (BrokenPipeError, ConnectionResetError):
            self.unreachable = True
            self.kill(signal.SIGKILL)  # dying, or alive with its descriptors closed: nothing reaches it any more

    def idle(self) -> bool:
        """Has every request been answered, and every answer been taken? Never of one that has streamed."""
        return self.line is not None and not self.unreachable and self.line.idle()

    def drain(self) -> None:
        """Drop an answer: nobody wants it, and its worker may wait to send it. Never of one without a line."""
        if self.line is not None:
            self.take()

    def stop(self, id: int) -> None:
        """Ask streams of requests up to `id` to end at their next look."""
        if self.line is not None:
            self.line.stop(id)

    def looks(self) -> int:
        """How often its streams have looked whether to stop; begins anew when it is started again."""
        return self.line.looks() if self.line is not None else 0

    def stack(self) -> str:
        """Its Python stack now; "" when nobody can tell."""
        return ""

    def held_up(self, now: float) -> float:
        """Seconds since this was last asked in which others kept it from going on: they do not count as its own."""
        return 0.0

    def last_words(self) -> dict[int, Raised]:
        """What its slots raised when they were closed."""
        raised: dict[int, Raised] = {}
        while self.line is not None and (reply := self.take()) is not None:
            if reply.id == CLOSING and reply.extras is not None:
                raised.update(reply.extras.raised)
        return raised

    def kill(self, number: int) -> None:  # noqa: B027 - nothing can be done in the caller's own thread
        """Send it a signal, where it can be killed."""

    def bury(self) -> ExitReport:
        """After its end: how it ended, and let go of all that it held."""
        return self.report

    def abandon(self) -> None:
        """End it at once, whatever became of its start: nobody wants it."""
        self.ask()

    def fds(self, *, closing: bool = False) -> list[int]:
        """What to poll while it starts, or while it is to end."""
        return []

    # -- its record --------------------------------------------------------------------------------------------------

    @property
    def shown(self) -> int | None:
        """Its number in errors; None for the caller's own share."""
        return None if self.inline else self.index

    def at(self, slot: int | None, *where: Any, **more: Any) -> Where:
        """A place in it; `where` and `more` are the other arguments of `Where`, from the phase on."""
        return Where(slot, self.shown, self.pid, *where, **{"node": self.node, **more})

    @property
    def changing(self) -> bool:
        """Is it on its way out (killed, or dead, and what follows is open), or on its way in again?"""
        killed = self.stalled is not None and self.state in ALIVE
        coming = self.restart_at is not None or self.state in (State.STARTING, State.RETIRING)
        return killed or self.undecided or coming

    def see(self, event: Event) -> None:
        self.undecided = event is Event.DIED or (self.undecided and event not in (Event.RESTART, Event.DROP))
        self.state = TABLE.get((self.state, event)) or after(self.state, event)

    def restarted(self) -> None:
        """It was started again."""
        self.restart_at, self.began = None, monotonic()
        if self.retiring is None:
            self.restarts.append(self.began)
        else:
            self.retiring, self.retired = None, self.retired + 1
        self.asides = 0
        self.failure = self.stalled = self._beat = None
        self.see(Event.RESTART)

    def failed(self, error: WorkerError) -> None:
        """Note a failure. Call it before the state is changed."""
        if self.state is not State.LATE or not isinstance(self.failure, WorkerTimeout):
            self.failure = error

    def packed(self, payload: Any) -> Any:
        """A payload as `send` takes it. Raises UsageError when it cannot travel, and TooManyFiles."""
        try:
            return self.pack(payload)
        except TooManyFiles:
            raise
        except Exception as error:  # pickling runs foreign code
            if (limited := too_many_files(error)) is not None:
                raise limited from error
            raise UsageError(f"the request cannot be sent to a worker: {type(error).__name__}: {error}") from error

    def send(self, request: Request, packed: Any, slots: tuple[int, ...], limit: float | None) -> None:
        """Post a request, and note that its answer is owed."""
        before = self.state
        self.owe(request, slots, limit)
        try:
            self.post(request, packed)
        except Exception:
            self.owed.pop()
            self.state = before
            raise

    def owe(self, request: Request, slots: tuple[int, ...], limit: float | None) -> None:
        if not self.owed:
            self.turn = monotonic()
        self.owed.append(Owed(request, slots, limit))
        self.see(Event.SEND)

    def got_on(self, now: float) -> bool:
        """Has its stream got on since it was last asked, or does it wait for the caller?"""
        before, self._beat = self._beat, self.line.beat() if self.line is not None else None
        if self._beat is None or self._beat != before:
            self.turn = now
            return True
        return False

    def forget(self) -> None:
        """An idle worker owes nothing: an interrupt fell between its last answer and the note of it, or came before the
        request was sent, perhaps before that was seen."""
        self.owed.clear()
        self.late.clear()
        if self.state is not State.IDLE:
            self.see(Event.LAST_REPLY)

    def settle(self, reply: Reply) -> bool:
        """Note a reply. False: it belongs to a request that was given up, and must be dropped."""
        self.turn = monotonic()
        self.barren = 0
        wanted = reply.id not in self.late
        if reply.last:
            self.late.discard(reply.id)
            # answers keep the order of requests, so what came before and has no answer was cut short by an interrupt
            while self.owed and self.owed[0].request.id <= reply.id:
                self.late.discard(self.owed.popleft().request.id)
            self.see(Event.REPLY if self.owed else Event.LAST_REPLY)
        return wanted


Order = tuple[Worker, Any, tuple[int, ...]]  # whom to send a request, its payload, about which slots


class SerialWorker(Worker):
    """Runs its requests when somebody takes the replies. A stream runs one reply further at each `take`."""

    in_caller = inline = starts_here = local = True

    def start(self) -> None:
        programs, self._hello = build_here(self.spec, lambda: self.factories, in_caller=True)
        self.server = Server(self.slots, programs, in_caller=True, local=self.local)
        if self.spec.trace is not None:
            self.server.record(self.spec.trace, self.index)
        self._requests: deque[Request] = deque()
        self._running: Iterator[Reply] | None = None
        self._stop = self._looks = 0
        self.looked = None
        self._raised: dict[int, Raised] = {}
        self._closed = False

    def hello(self) -> Hello | None:
        return self._hello

    def join(self, place: Place) -> None:
        if place.rows is not None:
            self.server.attach(place.rows)

    def pack(self, payload: Any) -> Any:
        """Nothing travels, but in `post`."""

    def post(self, request: Request, packed: Any) -> None:
        self._requests.append(request)

    def take(self) -> Reply | None:
        while True:
            if self._running is None:
                if not self._requests:
                    return None
                request = self._requests.popleft()
                self._running = self.server.handle(request, _Control(self, request.id))
            reply = next(self._running, None)
            if reply is not None:
                return reply
            self._running = None

    def idle(self) -> bool:
        return self._running is None and not self._requests

    def stop(self, id: int) -> None:
        self._stop = id

    def looks(self) -> int:
        return self._looks

    def ended(self) -> bool:
        return self._closed

    def ask(self) -> None:
        self._stop = CLOSING
        if self._running is not None:
            self._running.close()  # type: ignore[attr-defined]
            self._running = None
        self._requests.clear()
        if not self._closed:
            self._closed = True
            self._raised = self.server.close()

    def last_words(self) -> dict[int, Raised]:
        return self._raised


class _Control:
    """What a stream in the caller may ask. Nobody asks what it is making: it does not die alone."""

    def __init__(self, worker: SerialWorker, id: int) -> None:
        self._worker, self._id = worker, id

    def stopped(self) -> bool:
        worker = self._worker
        worker._looks += 1
        if worker.looked is not None:
            worker.looked()
        return worker._stop >= self._id

    def resets(self, episode: int) -> None:
        """See the class."""

    def plays(self, episode: int, steps: int) -> None:
        """As a look is."""
        self._worker._looks += 1

    begins = ends = lambda self: None


def build_here(
    spec: WorkerSpec,
    factories: Callable[[], Sequence[Callable[[], Any]]],
    *,
    in_caller: bool,
    begins: Callable[[int], object] = lambda slot: None,
) -> tuple[list[Any], Hello]:
    """Build a worker's programs in this process. `factories`: gets them, and may run foreign code (unpickling);
    `in_caller`: as of `Server`; `begins`: is told each slot."""
    catch = caught(in_caller)
    programs: list[Any] = []
    slot = spec.slots[0]
    try:
        for slot, factory in zip(spec.slots, factories(), strict=True):
            begins(slot)
            programs.append(factory())
        return programs, Hello(0, tuple(program.describe() for program in programs))
    except catch as error:  # reported as its slot's failure
        return programs, Hello(0, failed=(slot, Raised.of(error, "init", catch=catch)))
    except BaseException:  # an interrupt: nobody else knows of them
        Server(spec.slots, programs, in_caller=True, local=True).close()
        raise
