"""The contents of an actor: a pool, and the relay of requests and answers between the caller and the pool's workers.

The pool starts, watches, kills and restarts its workers by itself; the actor lives on. Each worker stands for one of
the caller's. Requests are posted. `advance` returns the workers' answers, once they are enough for a message. The
caller keeps a few such calls under way, so it never gets more messages than it has asked for. The calls of `ASIDE` are
answered while `advance` works.

All nodes must have the same software: Python, Treadle, and the packages that the workers' programs import.
"""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import platform
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from treadle.errors import RemoteTraceback, StartupFailed, TaskRaised, UsageError
from treadle.nodes.travel import MessageBatch, Said, Writer, read
from treadle.pool.events import Done, Event, Lost
from treadle.pool.pool import Pool
from treadle.repro import versions
from treadle.wire.broadcast import Payload
from treadle.wire.channel import parts_of, spill
from treadle.wire.messages import CLOSING, ExitReport, Extras, Hello, Op, Raised, Reply
from treadle.worker.backends import register
from treadle.worker.life import RestartPolicy
from treadle.worker.worker import SerialWorker, Worker

ALWAYS = ("gymnasium", "numpy")
MISSING = "missing"


def software(modules: Iterable[str]) -> dict[str, str]:
    """Return name -> version of Python, Treadle, `ALWAYS` and the packages of these modules.

    A module without a version has the checksum of its file. The standard library comes with Python, and the caller's
    own script travels, so both are left out.
    """
    found = {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "treadle": versions("treadle").get("treadle", MISSING),
    }
    for name in (*ALWAYS, *modules):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("treadle", "__main__", "__mp_main__"):
            version = versions(top).get(top)
            found[name if version is None else top] = version or _checksum(name)
    return found


def differences(wanted: Mapping[str, str], *, here: str) -> list[str]:
    """Return the differences of this process's software from `wanted`, one text each. `here`: the node's address."""
    own = software(name for name in wanted if name not in ("Python", "treadle"))
    return [
        f"{name} is {own.get(name, MISSING)} on {here} and {value} in the caller"
        for name, value in wanted.items()
        if own.get(name, MISSING) != value
    ]


def _checksum(module: str) -> str:
    """Return a text with the checksum of a module's file, or that the module is missing or has no file."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return MISSING
    if not spec.has_location or spec.origin is None:
        return "a package without a file"
    with open(spec.origin, "rb") as file:
        return f"a file with the checksum {zlib.crc32(file.read()):08x}"


# what a message has at least, unless there is no more or it was waited for so long: at first, and at the most
ENOUGH_BYTES, ENOUGH_SECONDS = 64 << 10, 0.05
MORE_BYTES, MORE_SECONDS = 512 << 10, 0.5
RUN_SHARE, BATCH_SHARE = 1 / 4, 1 / 25  # of the time that a node has been at work
IDLE_SECONDS = 1.0  # that a call waits for something to do: what is asked next needs no other one
ASIDE = ("post", "tell", "looks", "end")
INSIDE = "inside"


def worth_sending(lasted: float, whole: bool) -> tuple[int, float]:
    """Return (bytes, seconds): the least size of a message and the longest wait for it. The node has been at work for
    `lasted` seconds.

    The last message may be smaller.

    A call takes more than a millisecond of several processes, whatever its size. The wait is a share of the time at
    work: a small one where the caller waits for a batch, whose missing part the node does not know. It is larger in a
    `whole` run, at whose end nothing waits.
    """
    seconds = min(MORE_SECONDS, lasted * (RUN_SHARE if whole else BATCH_SHARE))
    return (MORE_BYTES, seconds) if seconds > ENOUGH_SECONDS else (ENOUGH_BYTES, ENOUGH_SECONDS)


class Inside(SerialWorker):
    """A worker in the actor's own process, for programs that have a pool each."""

    local = False  # its answers are pickled, later


register(INSIDE, lambda: Inside)


@dataclass(frozen=True)
class Site:
    """The place of an actor.

    Attributes:
        address: of its node.
        cpus: number of CPUs for its pool.
    """

    address: str
    cpus: int


@dataclass(frozen=True)
class World:
    """The caller's process, as far as an actor needs it.

    Attributes:
        cwd: its current folder; the actor enters it if it exists there.
        path: its import path, which is added to the actor's.
        software: the result of `software`, with which the node's must agree.
    """

    cwd: str
    path: list[str]
    software: dict[str, str]

    def enter(self) -> None:
        if os.path.isdir(self.cwd):
            os.chdir(self.cwd)
        sys.path += [each for each in self.path if each not in sys.path]


class Host:
    """The object in an actor.

    Args:
        world, site: see `World` and `Site`.
        options: the pickled `PoolOptions` of its pool.
        slots: numbers in the caller's pool, one for each of its workers.
        programs: for each worker a pickled list of its one factory, as an array of bytes.

    An error of the constructor is not raised: each worker's first answer is a `Hello` with the failure.
    """

    def __init__(self, world: World, site: Site, options: bytes, slots: tuple[int, ...], *programs: Any) -> None:
        self._slots, self._deaths, self._closing = slots, [0] * len(slots), False
        self._numbers = count()  # of batches
        self._due = [0] * len(slots)  # the number of the next request to each worker
        self._ahead: dict[tuple[int, int], tuple[Any, ...]] = {}  # (worker, number) -> what has come before its turn
        self._requests: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._said: deque[tuple[int, Said, bool]] = deque()  # by which worker, what, and does somebody wait for it?
        self._since, self._whole = float("inf"), False  # when it was asked for what it is at; a whole run?
        self._files: dict[str, io.FileIO] = {}  # what went along with the latest request that took anything along
        self._pool: Any = None
        self._workers: list[Worker] = []
        world.enter()
        try:
            if others := differences(world.software, here=site.address):
                raise UsageError(f"nodes must have the same software as the caller: {'; '.join(others)}")
            factories = [partial(_arrived, pickle.loads(memoryview(each))[0], site) for each in programs]
            given = pickle.loads(options)
            self._whole = given.backend == INSIDE
            self._pool = Pool(factories, workers=len(slots), rows=False, options=given)
        except BaseException as error:  # noqa: BLE001 - whatever a constructor raises is told, with its slot
            failed = Hello(os.getpid(), failed=_failure(error, slots))
            self._said.extend((at, failed, True) for at in range(len(slots)))
            self._closing = True
            return
        self._calls, self._workers = self._pool.calls, self._pool.group.in_slot_order()
        self._said.extend((at, self._hello(worker), True) for at, worker in enumerate(self._workers))

    def _hello(self, worker: Worker) -> Hello:
        return Hello(worker.pid or os.getpid(), (self._pool.descriptions[worker.slots[0]],))

    def advance(self, values: int) -> Any:
        """Return the workers' answers once they are worth a message.

        They are pairs of worker and answer, in a batch that is cut into `values` values (`MessageBatch.cut`).
        """
        writer, since, due = Writer(), monotonic(), False
        while True:
            enough, patience = worth_sending(monotonic() - self._since, self._whole)
            while self._said and writer.nbytes < enough:
                at, what, awaited = self._said.popleft()
                writer.add_said(at, what)
                due = due or awaited
            left = since + patience - monotonic() if writer.nbytes else None
            if due or writer.nbytes >= enough or (left is not None and left <= 0) or not self._turn(left):
                more = bool(self._said) or (not self._closing and self._calls.expects)
                return writer.batch(more, next(self._numbers)).cut(values)

    def _turn(self, seconds: float | None) -> bool:
        """Pass on the posted requests and take the workers' events. Return False if nothing more is to come.

        `seconds`: the longest wait for an event; None: no limit.
        """
        if self._closing:
            return False
        wait = seconds is None and not self._calls.expects
        with suppress(Empty):
            while (posted := self._requests.get(wait, IDLE_SECONDS)) is not None:
                self._begin(*posted)
                wait = False
        if self._closing:  # its end was what was posted
            return False
        if not self._said:
            self._calls.poll(seconds, self._hear, lambda: not self._requests.empty())
        return bool(self._said) or self._calls.expects

    def _begin(
        self, at: int, deaths: int, message: MessageBatch, keys: tuple[str, ...], contents: tuple[Any, ...]
    ) -> None:
        """Give a worker a posted request. It is dropped if the worker has died since the caller knew."""
        if deaths != self._deaths[at]:
            return
        (id, op, head), worker = next(read(message)), self._workers[at]
        if op == Op.STREAM:  # each of a sampler's is of another batch, or of a part of one
            self._since = min(self._since, monotonic()) if self._whole else monotonic()
        if op == Op.CLOSE:
            self._calls.retire(worker, "the caller says so")
            self._ended(at, ExitReport())
            return
        self._calls.last_id = id - 1  # a request has one number, here and there
        try:
            payload = pickle.loads(head)
            orders: dict[int, Any] = dict.fromkeys(worker.slots, *payload.values())
            if isinstance(payload, Payload):
                payload.received(self._written(keys, contents))
                orders = Payload(orders, payload.broadcasts)
            self._calls.submit(worker, Op(op), orders, worker.slots, at)
        except Exception as error:  # noqa: BLE001 - it cannot be read, as a module is not here, say, or not be sent on
            raised = {self._slots[at]: Raised.of(error, Op(op).name.lower())}
            self._said.append((at, Reply(id, Extras({}, {}, {}, raised)), True))

    def _written(self, keys: tuple[str, ...], contents: tuple[Any, ...]) -> list[io.FileIO]:
        """Return memory files of the contents that go along: one of each, for all workers that are given it."""
        found = {}
        for key, content in zip(keys, contents, strict=True):
            parts = parts_of(memoryview(content))
            found[key] = self._files.get(key) or spill(parts, list(map(len, parts)))
        self._files = found
        return list(found.values())

    def _hear(self, event: Event) -> None:
        if isinstance(event, Done):
            at, extras = event.tag, event.reply.extras
            if extras is not None:
                extras = Extras(*(dict.fromkeys(self._slots[at : at + bool(part)], *part.values()) for part in extras))
            awaited = event.call.op is not Op.STREAM
            self._said.append((at, replace(event.reply, extras=extras), awaited))
        elif isinstance(event, Lost):
            at = event.worker.index
            self._ended(at, replace(event.worker.report, at=event.error.where))
            if event.verdict is RestartPolicy.RAISE and self._pool.policy is RestartPolicy.RESTART:
                # it is not started again, as its constructor raises, say; and the caller is not to wait for it
                failed = self._slots[at], _failure(event.error, self._slots)[1]
                self._said.append((at, Hello(os.getpid(), failed=failed), True))
        else:
            self._said.append((event.worker.index, self._hello(event.worker), True))

    def _ended(self, at: int, report: ExitReport) -> None:
        """Note a worker's end. Requests without an answer are lost, also those posted before the caller knows of it."""
        self._deaths[at] += 1
        self._said.append((at, report, True))

    def close(self) -> str:
        """Close the slots, and return the text that becomes the reason of the actor's end."""
        if self._pool is not None:
            self._pool.close()
        return "its slots are closed"

    # -- while it works ----------------------------------------------------------------------------------------------

    def post(
        self, at: int, number: int, deaths: int, message: MessageBatch, keys: tuple[str, ...], *contents: Any
    ) -> None:
        """Post a request to a worker.

        Args:
            at: the worker's index.
            number: of the request among those to this worker in this actor, from 0. Ray keeps no order where an actor
                has threads: the next request overtakes one whose references have yet to arrive.
            deaths: number of the worker's deaths that the caller knows of. A request from before a further death is
                lost.
            message: has (id, op, payload). With CLOSE, another process takes the worker's place.
            keys, contents: names and bytes of files that go along.
        """
        if self._closing:
            return
        self._ahead[at, number] = at, deaths, message, keys, contents
        while (posted := self._ahead.pop((at, self._due[at]), None)) is not None:
            self._due[at] += 1
            self._requests.put(posted)
        self._ring()

    def _ring(self) -> None:
        self._pool.memory.pool_bell.release()

    def tell(self, at: int, deaths: int, method: str, *args: Any) -> None:
        """Call `stop` or `kill` of a worker, see `Worker`. `deaths`: as for `post`."""
        if not self._closing and deaths == self._deaths[at]:
            getattr(self._workers[at], method)(*args)

    def looks(self) -> list[int]:
        """Return how often each worker's streams have looked."""
        return [worker.looks() for worker in self._workers] or [0] * len(self._slots)

    def end(self) -> None:
        """End the messages: `close` comes next."""
        self._closing = True
        if self._pool is not None:
            for worker in self._workers:
                worker.stop(CLOSING)
            self._requests.put(None)
            self._ring()


def _arrived(factory: Callable[[], Any], site: Site) -> Any:
    """Make a program; one that takes a site gets it."""
    program = factory()
    arrive = getattr(program, "arrive", None)
    if arrive is not None:
        arrive(site)
    return program


def _failure(error: BaseException, slots: tuple[int, ...]) -> tuple[int, Raised]:
    """Return (slot, failure) of a pool that could not be started."""
    first: BaseException = error.failures[0] if isinstance(error, StartupFailed) and error.failures else error
    cause = first.__cause__
    if not isinstance(first, TaskRaised) or cause is None or isinstance(cause, RemoteTraceback):
        return slots[0], Raised.of(first, "init")
    return slots[first.where.slot or 0], replace(Raised.of(cause, "init"), traceback=first.remote_traceback)
