"""A worker: what a backend must do to run slots, and what the pool knows of every worker, whatever runs it.

`Worker` is the protocol. A backend brings its abstract methods (a process, a thread, a remote machine). The rest is the
same for all: where a worker is in its life, and what it still owes. `SerialWorker` at the end is the reference: the
caller's own thread runs the slots, so nothing travels, nothing waits, and no worker can die alone. A backend is one
class, made known by `backends.register`:

    class MyWorker(Worker): ...
    register("mine", lambda: MyWorker)
    Pool(factories, backend="mine")

A worker is started, says `hello` when its slots are built, and gets memory (`join`). From then on it is sent requests
(`post`) and answers them in their order (`take`). It ends when it is asked to close (`ask`), or by itself. When it has
`ended` it is buried (`bury`), and may be started again: the same object, a fresh process.
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
    """The common part of a pool's workers; a backend that shares more has a class of its own."""

    def __init__(self, options: PoolOptions) -> None:
        self.options = options

    def spec(self, index: int, slots: tuple[int, ...], factories: Sequence[Callable[[], Any]]) -> WorkerSpec:
        """Return what one of the workers is made of. Raises whatever pickling its factories raises."""
        return WorkerSpec(index, slots, b"")

    def prepare(self) -> None:
        """Prepare what the workers share: all specs are there, and no worker is started yet. Raises StartupFailed."""

    def close(self) -> None:
        """Close what the workers share: all of them are buried."""


class Worker(ABC):
    """One worker. A backend overrides `start` and the methods after it; see the module.

    Args:
        spec: which slots, and how to build them in another process.
        factories: build the slots in the caller's process.
        common: made by `common_of`.

    Attributes:
        in_caller: True if it runs in the caller's process, where it cannot be killed.
        inline: True if the caller's own thread does its work, when answers are taken.
        starts_here: True if `start` must be called by the caller's own thread. Else a helper thread calls it, which no
            interrupt reaches.
        shared: True if its memory has to be shared between processes.
        slow: added to the error of a worker that is not ready in time.
        pid: of its process; None where it has none of its own.
        node: the address of the machine that it runs on, where that is not this one.
        placed: True if there is a machine for it. On a cluster it may have to wait for one.
        about: what its slot on another machine has said of itself; None: see the pool's descriptions.
        server: of a worker that is `inline`: serves its requests.
        looked: of a worker that is `inline`: called at every look of a stream, as the caller's thread does nothing else
            meanwhile.
        line: how it is sent requests; None until it has joined, after its end, and where nothing travels.
        state: where it is in its life.
        owed: requests without an answer, in order.
        turn: when the first of `owed` came to its turn (monotonic seconds).
        late: requests whose answers will be dropped.
        restarts: when it was started again after a death.
        retired: how often it was started again because it was worn out.
        began: when it was last started again (monotonic seconds).
        retiring: when a retiring worker is killed if it has not ended (monotonic seconds); None: it does not retire.
        restart_at: when it is to be started again.
        asides: requests since it started that were not steps of all its slots.
        stalled: the error for which it was killed, while its death has not been observed.
        barren: its deaths in a row without an answer between them.
        failure: its latest failure; a missed deadline, not the killing that followed.
        undecided: True if it is dead and it is not yet decided what becomes of it.
        unreachable: True if a request could not be sent to it, so it was killed.
        extra: True if it was added to a pool at work and has never been ready: no slot depends on it.
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
        self.warned = self.overran = 0  # the latest request that was warned about, and that overran
        self.stalled: WorkerError | None = None
        self.failure: WorkerError | None = None
        self.undecided = self.unreachable = self.extra = False
        self._beat: int | None = None  # of its stream, at the latest look

    @classmethod
    def common_of(cls, options: PoolOptions) -> Common:
        """Return what all workers of a pool have in common."""
        return Common(options)

    # -- what a backend does -----------------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Begin to build its slots, for the first time or again, and return at once, if it can.

        A start that raises leaves nothing behind.
        """

    @abstractmethod
    def hello(self) -> Hello | None:
        """Return its first message, once that is there; else None."""

    @abstractmethod
    def join(self, place: Place) -> None:
        """Give it its part of the memory, once its slots are built. From now on it takes requests."""

    def take(self) -> Reply | None:
        """Return the next answer; None when there is none."""
        if self.line is None:
            return None
        if self.channel.outbox:
            with contextlib.suppress(OSError), Later():  # it is dying: `ended` will find out
                self.channel.pump()
        return self.line.take(self.payload_timeout)

    @abstractmethod
    def ended(self) -> bool:
        """Return True if it has ended. Looks at once, and never waits."""

    @property
    def measured(self) -> bool:
        """True if deadlines are only measured, as it cannot be killed."""
        return self.in_caller

    @abstractmethod
    def ask(self) -> None:
        """Ask it to close its slots and end. `last_words` has what they raise."""

    def building(self) -> int | None:
        """Return the slot that it builds, or has built last; None: unknown."""
        return None

    def pack(self, payload: Any) -> Any:
        """Return a payload in the form that `post` takes. Raises what pickling raises."""
        return payload if payload is None or type(payload) is Chosen else self.channel.pack(payload)

    def post(self, request: Request, packed: Any) -> None:
        """Send it a request. Never waits."""
        assert self.line is not None
        try:
            self.line.post(request.id, request.op, request.block, packed)
        except (BrokenPipeError, ConnectionResetError):
            self.unreachable = True
            self.kill(signal.SIGKILL)  # dying, or alive with its descriptors closed: no message reaches it any more

    def idle(self) -> bool:
        """Return True if every request is answered and every answer taken; always False once it has streamed."""
        return self.line is not None and not self.unreachable and self.line.idle()

    def drain(self) -> None:
        """Take an answer and drop it: its worker may wait to send it. Does nothing without a line."""
        if self.line is not None:
            self.take()

    def stop(self, id: int) -> None:
        """Ask streams of requests up to `id` to end at their next look."""
        if self.line is not None:
            self.line.stop(id)

    def looks(self) -> int:
        """Return how often its streams have looked whether to stop; counts anew when it is started again."""
        return self.line.looks() if self.line is not None else 0

    def stack(self) -> str:
        """Return its Python stack now; "": unknown."""
        return ""

    def held_up(self, now: float) -> float:
        """Return the seconds since the last call in which others held it up: they do not count as its own."""
        return 0.0

    def last_words(self) -> dict[int, Raised]:
        """Return what its slots raised when they were closed."""
        raised: dict[int, Raised] = {}
        while self.line is not None and (reply := self.take()) is not None:
            if reply.id == CLOSING and reply.extras is not None:
                raised.update(reply.extras.raised)
        return raised

    def kill(self, number: int) -> None:  # noqa: B027 - nothing can be done in the caller's own thread
        """Send it a signal, where it can be killed."""

    def bury(self) -> ExitReport:
        """Release all that it held, after its end; return how it ended."""
        return self.report

    def abandon(self) -> None:
        """End it at once, whatever became of its start: it is not needed."""
        self.ask()

    def fds(self, *, closing: bool = False) -> list[int]:
        """Return the descriptors to poll while it starts, or while it is to end."""
        return []

    # -- its record --------------------------------------------------------------------------------------------------

    @property
    def shown(self) -> int | None:
        """Its number in errors; None for the caller's own share."""
        return None if self.inline else self.index

    def at(self, slot: int | None, *where: Any, **more: Any) -> Where:
        """Return a place in it. `where` and `more` are the other arguments of `Where`, from the phase on."""
        return Where(slot, self.shown, self.pid, *where, **{"node": self.node, **more})

    @property
    def changing(self) -> bool:
        """True if it is on its way out (killed, or dead and not decided about), or on its way in again."""
        killed = self.stalled is not None and self.state in ALIVE
        coming = self.restart_at is not None or self.state in (State.STARTING, State.RETIRING)
        return killed or self.undecided or coming

    def see(self, event: Event) -> None:
        self.undecided = event is Event.DIED or (self.undecided and event not in (Event.RESTART, Event.DROP))
        self.state = TABLE.get((self.state, event)) or after(self.state, event)

    def restarted(self) -> None:
        """Note that it was started again."""
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

    def encoded(self, payload: Any) -> Any:
        """Return a payload in the form that `send` takes. Raises UsageError when it cannot travel, and TooManyFiles."""
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
        """Return True if its stream has got on since the last call, or waits for the caller."""
        before, self._beat = self._beat, self.line.beat() if self.line is not None else None
        if self._beat is None or self._beat != before:
            self.turn = now
            return True
        return False

    def forget(self) -> None:
        """Note that an idle worker owes nothing.

        An interrupt fell between its last answer and the note of it, or came before the request was sent, perhaps
        before that was seen.
        """
        self.owed.clear()
        self.late.clear()
        if self.state is not State.IDLE:
            self.see(Event.LAST_REPLY)

    def settle(self, reply: Reply) -> bool:
        """Note a reply. Returns False if it belongs to a request that was given up, and must be dropped."""
        self.turn = monotonic()
        self.barren = 0
        wanted = reply.id not in self.late
        if reply.last:
            self.late.discard(reply.id)
            # answers keep the order of requests: an interrupt has cut earlier requests short that have no answer
            while self.owed and self.owed[0].request.id <= reply.id:
                self.late.discard(self.owed.popleft().request.id)
            self.see(Event.REPLY if self.owed else Event.LAST_REPLY)
        return wanted


Order = tuple[Worker, Any, tuple[int, ...]]  # the worker to send a request to, its payload, its slots


class SerialWorker(Worker):
    """Runs its requests when the caller takes the replies. A stream runs one reply further at each `take`."""

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
        """Return None: nothing travels, and `post` keeps the request itself."""

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
    """The questions that a stream in the caller may ask. Its items are not noted, as it does not die alone."""

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
        """Count a look."""
        self._worker._looks += 1

    begins = ends = lambda self: None


def build_here(
    spec: WorkerSpec,
    factories: Callable[[], Sequence[Callable[[], Any]]],
    *,
    in_caller: bool,
    begins: Callable[[int], object] = lambda slot: None,
) -> tuple[list[Any], Hello]:
    """Build a worker's programs in this process.

    Args:
        factories: returns them, and may run foreign code (unpickling).
        in_caller: as for `Server`.
        begins: called with each slot before it is built.
    """
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
    except BaseException:  # an interrupt: only this function has them
        Server(spec.slots, programs, in_caller=True, local=True).close()
        raise
