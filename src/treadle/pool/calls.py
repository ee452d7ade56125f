"""Calls: the pool's one book of requests under way.

Only this module takes answers from workers and waits for the pool's bell, but for the fast lane of `Lockstep.step`.
Only this module decides what follows a worker's death.

`submit` sends a worker a request under a tag. The tag means something to the schedule that submits, and nothing here.
`poll` reports what has become of tags: `Done`, `Lost`, or `Ready` for a worker that was started in another's place. A
worker that dies, or is killed because it is late, loses all tags that it had. The pool's policy alone, by the table in
`failure.py`, decides whether another worker is started, after how long, and when to give up. The owner of a lost tag
knows its consequence: an item or an index again, a cut row, an error.

A death is *observed* after the worker's last answers have been drained; the table of `life.py` gives its meaning.

Interrupts (Ctrl-C): requests are sent, and answers taken and noted, with Ctrl-C held back. So it comes in a wait and
leaves all calls open. It cuts the caller's own slots short, which run users' code: that call is `Done` with a failure,
and its slots must be reset. An asynchronous exception may also come between taking an answer and noting it. Then no
worker owes anything, and each call that is still open counts as cut short, too.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from time import monotonic
from typing import Any

import numpy as np

from treadle.errors import BrokenPool, ClosedPool, UsageError, WorkerError
from treadle.interrupts import Later
from treadle.pool import failure
from treadle.pool.events import Done, Event, InFlight, Lost, Notes, Ready
from treadle.pool.group import WorkerGroup
from treadle.pool.layout import MemoryLayout
from treadle.pool.processor import Wear
from treadle.wire.bell import SLICE, Waiting
from treadle.wire.messages import Extras, Op, Raised, Reply, Request
from treadle.worker import life
from treadle.worker.life import RestartPolicy, State
from treadle.worker.options import PoolOptions
from treadle.worker.worker import Order, Owed, Worker

log = logging.getLogger("treadle")

# with more workers than FEW, deaths and deadlines are looked for only every LOOK seconds, and LOOK_EACH more for each
# worker; to look at each of hundreds after every ring took half of a core at 2,000 answers a second
FEW, LOOK, LOOK_EACH = 8, 0.005, 5e-5
STILL_WAITING = 60.0  # seconds without an answer and without a limit, after which one warning is given


class Calls:
    """The book of requests under way.

    Args:
        group: the workers.
        memory: their memory.
        options: of the pool.

    Attributes:
        last_id: the number of the latest request.
        broken: the error that has ended the pool; None: it works.
        overruns: requests that took longer than step_timeout where it cannot be enforced.
        wear: which workers are worn out. It retires none by itself, as only a schedule knows where an episode ends.
        blame: called with worker and error before each death is decided about. It returns True if the item killed the
            worker; the death then counts neither against the worker nor against its successors.
        notes: records resets and failures; None: they are not recorded.
        again: the user's call that resets slots, with "{slots}" in the place of their list; "": no such call."""

    def __init__(self, group: WorkerGroup, memory: MemoryLayout, options: PoolOptions) -> None:
        self.group, self.memory, self.workers = group, memory, group.workers
        self.policy, self.max_restarts, self.step_timeout = options.policy, options.max_restarts, options.step_timeout
        self.wear, self.close_timeout = Wear(options), options.close_timeout
        self.broken: WorkerError | None = None
        self.blame: Callable[[Worker, WorkerError], bool] | None = None
        self.notes: Notes | None = None
        self.again = "reset(slots={slots})"
        self.last_id = self.overruns = 0
        self._looked = 0.0  # when deaths and deadlines were looked for
        self._remote, self._pid = not any(worker.inline for worker in self.workers), os.getpid()
        self._waiting = Waiting(memory.pool_bell, memory.longest[0])
        # answers of each worker that had been taken at its latest look; -1: look at it
        self._taken = np.zeros(len(memory.told), np.int64)
        self._taken[: len(group.workers)] = -1
        self._apart = [worker for worker in group.workers if worker.line is None]
        self._sending = [worker for worker in group.workers if worker.line is not None and not worker.in_caller]
        self._open: dict[tuple[int, int], InFlight] = {}  # (worker's index, request): the fast lane's has one number
        self._withheld: dict[int, int] = {}  # request that was given up -> the block that it may still write to

    def reset_of(self, slots: Iterable[int]) -> str:
        """Return the call that resets these slots, as an error names it to the user."""
        return self.again.replace("{slots}", str(sorted(slots)))

    def check(self) -> None:
        """Raise ClosedPool or BrokenPool if the pool can give no more answers, UsageError in a fork of its process."""
        if self._pid != os.getpid():
            raise UsageError("this pool belongs to the process that made it, not to a fork of it")
        if self.group.closed:
            raise ClosedPool("the pool is closed")
        if self.broken is not None:
            raise BrokenPool(f"the pool is broken by: {self.broken}", where=self.broken.where) from self.broken

    # -- the book ----------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """Return True if any answer is awaited."""
        return bool(self._open)

    def awaited(self, tag: Any) -> list[InFlight]:
        """Return the requests of a tag that have yet to be answered."""
        return [call for call in self._open.values() if call.tag is tag]

    def awaits(self, tag: Any) -> bool:
        """Return True if any answer of a tag is awaited."""
        return any(call.tag is tag for call in self._open.values())

    def submit(self, worker: Worker, op: Op, payload: Any, slots: Iterable[int], tag: Any, block: int = -1) -> None:
        """Send a request. Raises ClosedPool, BrokenPool or UsageError; never waits."""
        self.submit_all(op, [(worker, payload, tuple(slots))], tag, block)

    def submit_all(self, op: Op, orders: Sequence[Order], tag: Any, block: int = -1) -> None:
        """Send a request to each of several workers under one tag: to all, or to none if one cannot be sent."""
        with self.group.lock:
            self.check()
            packed: list[Any] = []
            try:
                for worker, payload, _ in orders:
                    _check_free(worker)
                    packed.append(worker.encoded(payload))
            except BaseException:
                for each in packed:
                    if each is not None:
                        each.discard()
                raise
            if op is Op.RESET and self.notes is not None:
                self.notes.reset(orders, during_step=getattr(tag, "op", None) is Op.STEP)
            with Later():
                for (worker, payload, slots), each in zip(orders, packed, strict=True):
                    if op is not Op.STEP or len(slots) < len(worker.slots):
                        worker.asides += 1
                    if op is Op.STREAM and worker.line is not None:
                        worker.line.one_to_one = False
                    self.last_id = id = self.last_id + 1
                    # noted before it is sent: an asynchronous exception between the two leaves an answer awaited that
                    # may never come, which `poll` finds out. In the other order an answer could come that no call
                    # awaits
                    self._open[worker.index, id] = InFlight(tag, worker, id, op, slots)
                    limit = None if op is Op.STREAM else self.step_timeout
                    try:
                        worker.send(Request(id, op, payload, block), each, slots, limit)
                    except Exception:
                        del self._open[worker.index, id]
                        raise

    def adopt(self, worker: Worker, id: int, op: Op, block: int, tag: Any) -> None:
        """Note a request of all the worker's slots, which the fast lane has posted, as under way under this tag."""
        worker.owe(Request(id, op, None, block), worker.slots, self.step_timeout)
        self._open[worker.index, id] = InFlight(tag, worker, id, op, worker.slots)

    def abandon(self, tag: Any) -> list[InFlight]:
        """Give no more time to the workers that owe this tag an answer. Their answers are dropped when they come, and
        their rows are out of service until then. Returns all requests that will have no answer, of any tag."""
        late = {call.worker.index: call.worker for call in self.awaited(tag)}
        for worker in late.values():
            self._give_up(worker)
        return [call for worker in late.values() for call in self._forget(worker)]

    def ring(self, tag: Any) -> None:
        """Ring the bells of workers that owe this tag an answer: an interrupt may have come before the ring."""
        for call in self.awaited(tag):
            if call.worker.line is not None:
                call.worker.line.bell.release()

    def extend(self, workers: Sequence[Worker]) -> None:
        """Start workers that were added; `poll` reports when each is ready. Raises OSError. One that does not become
        ready is dropped under every policy: no slot depends on it."""
        self._waiting = Waiting(self.memory.pool_bell, self.memory.longest[0])
        for worker in workers:
            self.group.start_extra(worker)
            self._sending.append(worker)

    def clear(self) -> list[Any]:
        """Forget all requests, and return their tags."""
        found = [call.tag for call in self._open.values()]
        self._open.clear()
        return found

    def stop(self) -> None:
        """Ask all streams under way to end at their next look; their answers until then are reported as always."""
        for worker in self.workers:
            if worker.owed:
                worker.stop(self.last_id)

    @property
    def changing(self) -> bool:
        """Return True if a worker is on its way out, or its successor on its way in."""
        return any(m.changing for m in self.workers)

    @property
    def growing(self) -> bool:
        """Return True if a worker that was added is still starting."""
        return any(m.extra and m.state is State.STARTING for m in self.workers)

    @property
    def expects(self) -> bool:
        """Return True if further events can come: a worker owes an answer, is being started, or is about to end."""
        return any(m.owed or m.changing for m in self.workers)

    # -- hearing from workers -----------------------------------------------------------------------------------------

    def poll(
        self, timeout: float | None, hear: Callable[[Event], None], until: Callable[[], bool] = lambda: False
    ) -> bool:
        """Pass events to `hear`, waiting up to `timeout` seconds for one (None: for ever). Returns True if one came.

        Returns False at once if no event can come, or once `until`, called after every ring, returns True. An event is
        passed on as it is taken: Ctrl-C comes before or after both, where no environments run in the caller. Raises as
        `submit`."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            with self.group.lock, Later() if self._remote else nullcontext():
                if self.group.closed:
                    self.check()
                now = monotonic()
                look = self._looked + LOOK + LOOK_EACH * len(self.workers)
                if all_of_it := len(self.workers) <= FEW or now >= look:
                    self._looked = now
                if self._take(hear, all_of_it) or (all_of_it and self._watch(hear)):
                    return True
            if not self.expects:
                return self._look_again(hear)
            left = SLICE if deadline is None else min(SLICE, deadline - monotonic())
            if left <= 0 or until():
                return False
            starting = [m for m in self.workers if m.state is State.STARTING] if all_of_it else []
            if starting and not starting[0].in_caller and not self._open:
                self.group.sleep_on(starting, min(left, 0.005))
                self.memory.pool_bell.acquire(False)
            else:  # while some answers are awaited and other workers start, those are looked at now and then
                soon = LOOK if starting else left
                self._waiting.ring(min(left, soon if all_of_it else max(look - now, 0.001)))

    def _of(self, worker: Worker) -> list[InFlight]:
        return [call for call in self._open.values() if call.worker is worker]

    def _forget(self, worker: Worker) -> list[InFlight]:
        """Forget the worker's calls: no answer of it will come any more. Returns them."""
        found = self._of(worker)
        for call in found:
            del self._open[worker.index, call.id]
        return found

    def _take(self, hear: Callable[[Event], None], lost: bool = True) -> bool:
        """Take the answers that are there. Returns True if there were any.

        lost: True: look at all workers, and find the answers that an interrupt has lost. False: look only at workers
        that have answered or have unsent requests, and at those without a count (the caller's own slots, nodes)."""
        heard, workers = False, self.workers
        if not lost:
            told = np.flatnonzero(self.memory.told != self._taken).tolist()
            sending = [worker for worker in self._sending if worker.channel.outbox]
            workers = [*(workers[index] for index in told), *sending, *self._apart]
        for worker in workers:
            if worker.owed and self._take_from(worker, hear, lost):
                heard = True
            if worker.line is not None:
                self._taken[worker.index] = worker.line.taken
        return heard

    def _take_from(self, worker: Worker, hear: Callable[[Event], None], lost: bool) -> bool:
        """Do `_take` for one worker, which owes something."""
        heard, owed, began = False, worker.owed[0], worker.turn
        while worker.owed and (reply := worker.take()) is not None:
            if owed.limit is not None and worker.measured and monotonic() - began > owed.limit:
                self._overran(worker, owed, monotonic() - began, owed.limit)
            if worker.settle(reply):
                heard = True
                key = worker.index, reply.id
                if (call := self._open.get(key)) is not None:
                    hear(Done(call, reply))
                    if reply.last:  # heard first: an interrupt between the two makes it heard once more
                        self._open.pop(key, None)
            elif reply.last:
                self._release(reply.id)
            if worker.inline:  # each take is a step: take one at a time, so that streams interleave
                break
        else:
            if lost and worker.owed and worker.idle():
                worker.forget()
        return heard

    def _look_again(self, hear: Callable[[Event], None]) -> bool:
        """End calls still open though no worker owes anything. Returns True if there were any. An interrupt fell
        between an answer and its note, or cut the caller's own share short."""
        found = list(self._open.values())
        for call in found:
            why = Raised.of(KeyboardInterrupt("an interrupt in the caller cut it short"), call.op.name.lower())
            hear(Done(call, Reply(call.id, Extras({}, {}, {}, dict.fromkeys(call.slots, why))), cut=True))
            self._open.pop((call.worker.index, call.id), None)
        return bool(found)

    # -- deaths and deadlines ----------------------------------------------------------------------------------------

    def _watch(self, hear: Callable[[Event], None]) -> bool:
        """See to deaths, missed deadlines and due restarts, when no reply is there. Returns True if any event came."""
        heard = False
        now = monotonic()
        for worker in self.workers:
            if worker.state in life.ALIVE and not worker.inline and worker.ended():
                if not self._take(hear):  # it may have answered before it died
                    self._bury(worker, hear)
                return True
            if worker.state is State.RETIRING:
                self._retired(worker, now)
            elif worker.owed and (late := self._overdue(worker, now)) is not None:
                hear(Lost(self._of(worker), worker, late, None))
                self._forget(worker)
                heard = True
            elif worker.state is State.STARTING:
                found = self.group.restarted(worker)
                if isinstance(found, WorkerError):
                    self._died(worker, found, hear)
                elif found:
                    with Later():
                        worker.join(self.memory.place(worker))
                    self._taken[worker.index] = -1
                    hear(Ready(worker))
                heard = heard or bool(found)
            elif worker.restart_at is not None and now >= worker.restart_at:
                self.group.restart(worker)
            elif worker.undecided and worker.failure is not None:  # an interrupt fell between its death and the verdict
                self._died(worker, worker.failure, hear)
                heard = True
        return heard

    def _overdue(self, worker: Worker, now: float) -> WorkerError | None:
        """Return the error of a late worker that may live on; kill one that is to be replaced; None: neither."""
        owed = worker.owed[0]
        streams = owed.request.op is Op.STREAM
        if streams and worker.got_on(now):
            return None
        limit = self.step_timeout if streams else owed.limit
        if limit is not None:
            worker.turn = min(now, worker.turn + worker.held_up(now))
        elapsed = now - worker.turn
        if limit is None:
            if elapsed > STILL_WAITING and worker.warned != owed.request.id:
                worker.warned = owed.request.id
                where, stack = self.memory.at_work(worker), worker.stack()
                log.warning("%s: no answer for %.0f s, and no step_timeout is set. Stack:\n%s", where, elapsed, stack)
            return None
        if elapsed <= limit:
            return None
        if worker.measured:
            self._overran(worker, owed, elapsed, limit)
            return None
        if streams or self.policy is not RestartPolicy.RAISE:
            if worker.stalled is None:
                stack = worker.stack()
                worker.stalled = failure.late(self.memory.at_work(worker), elapsed, limit, stack, killed=True)
                if not streams:  # an answer that comes all the same is dropped
                    self._give_up(worker)
                worker.kill(signal.SIGKILL)  # its death is the next event, and decides
            return None
        if owed.request.id in worker.late:
            if elapsed > limit + failure.grace(limit):
                log.warning("%s", failure.late(self.memory.at_work(worker), elapsed, limit, "", killed=True))
                worker.kill(signal.SIGKILL)  # its death is the next event
            return None
        where = self.memory.at_work(worker)
        error = failure.late(where, elapsed, limit, worker.stack(), again=self.reset_of(worker.slots))
        self.with_repro(error)
        worker.failed(error)
        self._give_up(worker)
        return error

    def with_repro(self, error: WorkerError, *, noted: bool = False) -> WorkerError:
        """Return the error with its repro, or with the reason why there is none. `noted`: see `History.failed`."""
        if self.notes is not None:
            self.notes.failed(error, noted=noted)
        return error

    def _give_up(self, worker: Worker) -> None:
        """Have all answers that a worker owes dropped when they come; their rows are out of service until then."""
        for each in worker.owed:
            request = each.request
            worker.late.add(request.id)
            if request.block >= 0 and self.memory.rows is not None:  # a late answer may still be written there
                self._withheld[request.id] = request.block
                self.memory.rows.rings.of(request.block).pins.add(request.block)
        if worker.owed:
            worker.see(life.Event.DEADLINE)

    def _release(self, id: int) -> None:
        block = self._withheld.pop(id, None)
        if block is not None and self.memory.rows is not None and block not in self._withheld.values():
            self.memory.rows.rings.of(block).pins.discard(block)

    def _overran(self, worker: Worker, owed: Owed, elapsed: float, limit: float) -> None:
        """Count an overrun, and warn of the first. A deadline is only measured in the caller, and in a thread that
        cannot be given up."""
        if worker.overran != owed.request.id:
            worker.overran = owed.request.id
            self.overruns += 1
            if self.overruns == 1:
                where = self.memory.at_work(worker, owed)
                log.warning(
                    "%s: %.1f s and more, the limit is %g s. In the caller's own process no deadline is enforced: "
                    "results come when they come (`overruns` counts on; this is said once)",
                    where,
                    elapsed,
                    limit,
                )

    def _bury(self, worker: Worker, hear: Callable[[Event], None]) -> None:
        error = self.group.died(worker, self.memory.at_work(worker), self.policy)
        if worker.stalled is not None:
            error = worker.stalled
        self.with_repro(error)
        worker.failed(error)
        for each in worker.owed:
            self._release(each.request.id)
        worker.owed.clear()
        worker.late.clear()
        worker.barren += 1
        worker.see(life.Event.DIED)
        if self.policy is RestartPolicy.RAISE:
            self.broken = self.broken or error
        self._died(worker, error, hear)

    def _died(self, worker: Worker, error: WorkerError, hear: Callable[[Event], None]) -> None:
        """Decide what becomes of a dead worker, and report it. This is decided nowhere else."""
        if self.blame is not None and self.blame(worker, error):
            worker.barren = 0
        lasting = failure.lasts(error, worker.report)
        others = any(each is not worker and each.state is not State.GONE for each in self.workers)
        verdict = failure.on_death(
            self.policy, worker.restarts, monotonic(), self.max_restarts, lasting=lasting, others=others,
            barren=worker.barren,
        )  # fmt: skip
        if verdict.act is RestartPolicy.RAISE and not lasting:
            if self.policy is RestartPolicy.DROP:
                error.add_note("no other worker is left")
            elif self.policy is RestartPolicy.RESTART:
                error.add_note(
                    f"no restart: WorkerOptions(max_restarts={self.max_restarts}) in ten minutes are used up"
                )
        if worker.extra:
            verdict = failure.Verdict(RestartPolicy.DROP)
        hear(Lost(self._of(worker), worker, error, verdict.act, verdict.delay))
        self._forget(worker)
        worker.undecided = False  # an interrupt before this has the death decided, and reported, once more
        if verdict.act is RestartPolicy.RESTART:
            self.restart(worker, verdict.delay)
        elif verdict.act is RestartPolicy.DROP:
            self.drop(worker)

    # -- workers that are worn out ------------------------------------------------------------------------------------

    def retire(self, worker: Worker, why: str) -> None:
        """End a worker that owes nothing, and start another in its place; `poll` does both, and reports it ready. This
        is not a failure: no restart is counted."""
        most = self.wear.most  # a limit on episodes that the user set is not a warning
        level = logging.INFO if most is not None and self.wear.played(worker) >= most else logging.WARNING
        log.log(level, "worker %d is recycled: %s", worker.index, why)
        with self.group.lock, Later():
            worker.see(life.Event.RETIRE)
            worker.retiring = monotonic() + self.close_timeout
            worker.ask()

    def _retired(self, worker: Worker, now: float) -> None:
        """Start another worker once a retiring one has ended; kill one that takes too long."""
        if worker.ended():
            for slot, raised in worker.last_words().items():
                log.warning("%s", failure.task_error(raised, worker.at(slot)))
            worker.bury()
            worker.see(life.Event.DIED)
            self.restart(worker)
        elif worker.retiring is not None and now > worker.retiring:
            worker.kill(signal.SIGKILL)

    def restart(self, worker: Worker, delay: float = 0.0) -> None:
        """Start a dead worker again after `delay` seconds; `poll` does it, and reports when the worker is ready."""
        worker.restart_at, worker.undecided = monotonic() + delay, False

    def drop(self, worker: Worker) -> None:
        """Give a dead worker up for good."""
        worker.see(life.Event.DROP)


def _check_free(worker: Worker) -> None:
    if worker.state not in life.ALIVE:
        raise UsageError(f"worker {worker.index} takes no requests: it is {worker.state.value}")
    line = worker.line
    if line is not None and len(worker.owed) >= line.depth - 2:
        raise UsageError(f"worker {worker.index} owes {len(worker.owed)} answers: take them first")
