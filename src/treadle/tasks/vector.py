"""Vectors of task samplers: AllenAct's interface on the pool.

There is one implementation, `SampledTasks`, and two constructors (`vectors.py`): workers in processes (or threads), or
everything in the caller. `_live` lists the slots that are not paused, in order; paused slots do nothing.

A step is one batch: values of a fixed shape go through the arena. Only a step can be begun and waited for later
(`async_step`, `wait_step`). Any other call in between finishes that step first and keeps its result for `wait_step`.
"""

from __future__ import annotations

import logging
import operator
import queue
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from time import monotonic
from typing import Any

import numpy as np

from treadle.checks import check_seed
from treadle.errors import ClosedPool, LayoutsDiffer, StartupFailed, TreadleError, UsageError, WorkerError
from treadle.interrupts import Closes
from treadle.lockstep.batch import Batch
from treadle.lockstep.lockstep import Lockstep, Operation
from treadle.lockstep.measured import CALLS, DUE, Measured
from treadle.pool.pool import Pool
from treadle.repro import Repro
from treadle.seeding import restart_seed
from treadle.tasks import arguments
from treadle.tasks.arguments import NoSuchSlot, NotSupported, cannot_travel, listed, start_error
from treadle.tasks.core import RLStepResult, TaskSampler
from treadle.tasks.orders import Fresh, NextTask, ResetSampler, Status, Stay, TaskOp
from treadle.tasks.results import Results, Slot, TaskVectorStats
from treadle.tasks.rows import Code, action_writer
from treadle.tasks.slot import SamplerRecipe, TaskSlot
from treadle.vector.core import Claim, one_at_a_time
from treadle.verdict import Verdict, verdict
from treadle.wire.carried import CannotTravel

log = logging.getLogger("treadle")

UNEQUAL = "It appears that the observation spaces of the samplers are not equal, which is not supported: {}"
LATEST = 10_000  # the most metrics that are kept, as the queue may never be read


class MetricsQueue(queue.Queue[Any]):
    """A queue that keeps the latest `LATEST` metrics and drops older ones."""

    def __init__(self) -> None:
        super().__init__(LATEST)

    def put_nowait(self, item: Any) -> None:
        """Put an item; never raises `queue.Full`."""
        while True:
            try:
                return super().put_nowait(item)
            except queue.Full:
                try:
                    self.get_nowait()
                except queue.Empty:
                    continue  # a reader emptied the queue


def _repro_of(slot: int, make: Any, args: dict[str, Any], start: Any, callbacks: Any, resample: bool) -> Repro:
    """Return the tasks' part of the repro of a slot's failure; a replay plays from the first task on."""
    title = f"slot {slot} ({getattr(make, '__name__', make)})"
    about = {"face": "slot", "title": title, "slot": slot, "autoreset": "Disabled", "resample": resample, "begun": True}
    repro = Repro(about)
    named = {"make": make, "args": args, "start": None if start is None else start.method, "callbacks": callbacks}
    for name, thing in named.items():
        repro.put(name, thing)
    return repro


class TaskVector(Closes):
    """The base of `SampledTasks`, without calls, commands and pictures."""

    def __init__(
        self,
        make_sampler_fn: Callable[..., TaskSampler],
        args: Sequence[dict[str, Any]] | None,
        *,
        callbacks: Any,
        resample: bool,
        metrics_out_queue: Any,
        should_log: bool,
        start: arguments.Starting | None = None,
        max_processes: int | None = None,
        **options: Any,
    ) -> None:
        self._turns = Claim()
        args, callbacks, resample = arguments.sampler_args(args), arguments.callback_suite(callbacks), bool(resample)
        if not callable(make_sampler_fn):
            raise UsageError(f"make_sampler_fn must be callable, got {type(make_sampler_fn).__name__}")
        self.metrics_out_queue = MetricsQueue() if metrics_out_queue is None else metrics_out_queue
        self.should_log, self.max_processes, self.read_timeout = should_log, max_processes, options.get("step_timeout")
        self._start, self._resample, n = start, resample, len(args)
        workers = arguments.worker_count(max_processes, n)
        if should_log:
            for slot, each in enumerate(args):
                log.info("starting task sampler %d of %d (%d workers) with arguments %s", slot, n, workers, each)

        def slot_of(each: dict[str, Any]) -> Callable[[], TaskSlot]:
            recipe = SamplerRecipe.of(make_sampler_fn, each, None if start is None else start.method)
            return lambda: TaskSlot(recipe, callbacks, resample)

        try:
            self._pool = _start([slot_of(each) for each in args], workers=workers, **options)
        except CannotTravel as error:
            raise cannot_travel(error, args[error.slot], options.get("start_method")) from error.__cause__
        try:
            spaces = [about.metadata["observation_space"] for about in self._pool.descriptions]
            for slot, space in enumerate(spaces):
                if space is not spaces[0] and space != spaces[0]:
                    raise NotSupported(UNEQUAL.format(f"slot {slot} has {space}, slot 0 has {spaces[0]}"))
            self.observation_space = spaces[0]
            self.action_spaces = [about.metadata["action_space"] for about in self._pool.descriptions]
            self._lockstep = Lockstep(self._pool, action_writer)
            if self._lockstep.recovery is not None:
                self._lockstep.recovery.fresh_options = self._fresh
            if self._pool.options.recorder:

                def describe(slot: int) -> Repro:
                    return _repro_of(slot, make_sampler_fn, args[slot], start, callbacks, resample)

                self._lockstep.record(describe, full=False)
            self._pool.calls.again = "next_task_at or reset_all"
            remember = options.get("on_failure", "raise") != "raise"
            self._measured = Measured(self._lockstep)
            self._results = Results(self._lockstep.observations, n, self.metrics_out_queue, remember=remember)
        except BaseException:
            self._pool.close(0.0)
            raise
        self._n, self._live = n, list(range(n))
        self._posted: list[int] | None = None  # the slots of a step that was begun and not yet waited for
        self._arrived: deque[list[Any] | TreadleError] = deque()  # of steps that other calls had to finish first
        self._unsure = False  # True: a request was interrupted, so `_results` may be out of date
        self._began = monotonic()

    # -- stepping ----------------------------------------------------------------------------------------------------

    @one_at_a_time
    def step(self, actions: Sequence[Any]) -> list[RLStepResult]:
        """Step every unpaused slot.

        Args:
            actions: one action for each unpaused slot, passed on unchanged. With auto_resample_when_done=False, None
                for a slot whose task is done.

        Returns:
            One result a slot; see the class. The caller may keep observations. A slot that waits for the others returns
            its terminal observation again, with reward 0.0, done and info["held"]. On the step that ends the last task,
            all slots move on, and their results hold the next tasks' first observations.

        Raises:
            UsageError: the number of actions is wrong, or a slot cannot be stepped. Its sampler is exhausted, its task
                is done, or it moved on in a step that failed or was interrupted. Nothing was sent.
            TaskRaised (of the original's type as well), WorkerDied (an EOFError), WorkerTimeout (a TimeoutError): the
                other slots' results are in `partial`, None for slots without one. `next_task_at` or `reset_all` brings
                back a slot that raised or was late. After a death only close works, unless on_failure allows more.
        """
        self._begin("step")
        return self._advance(self._live, self._one_each(actions))

    @one_at_a_time
    def step_at(self, sampler_index: int, action: Any) -> list[RLStepResult]:
        """Step one slot and return a list with its result."""
        self._begin("step_at")
        slot = self._slot(sampler_index)
        if action is None and self._results.special.get(slot) is Slot.HELD:
            raise UsageError(f"slot {slot}: its task is done, and the slot waits for the others. Nothing was sent")
        return self._advance([slot], [action])

    @one_at_a_time
    def async_step(self, actions: Sequence[Any]) -> None:
        """Begin a `step`; `wait_step` returns its results. Arguments are checked at once."""
        self._begin("async_step")
        row, measured = self._row_of(self._live, self._one_each(actions)), self._measured
        with measured:
            if measured.marks[CALLS] >= measured.marks[DUE]:
                measured.before()
            self._run(self._lockstep.post_step, row)
            self._posted = list(self._live)

    @one_at_a_time
    def wait_step(self) -> list[RLStepResult]:
        """Return the results of the earliest `async_step` not yet waited for. Raises UsageError without such a step."""
        self._check_open("wait_step")
        if not self._arrived and self._posted is None:
            raise UsageError("wait_step() without an async_step() before it")
        if not self._arrived:
            return self._wait()
        result = self._arrived.popleft()
        if isinstance(result, TreadleError):
            raise result
        return result

    def _wait(self) -> list[RLStepResult]:
        assert self._posted is not None
        slots, measured = self._posted, self._measured
        with measured:
            try:
                batch = self._lockstep.wait()
                measured.after()
                measured.marks[CALLS] += 1
            except TreadleError as error:
                self._posted = None
                self._keep_partial(error, slots)
                raise
        self._posted = None
        return self._stepped(batch, slots)

    def _one_each(self, actions: Sequence[Any]) -> list[Any]:
        actions = listed("step", actions, "actions")
        if len(actions) != len(self._live):
            raise UsageError(f"{len(actions)} actions for {len(self._live)} unpaused slots. Nothing was sent")
        return actions

    def _advance(self, slots: list[int], actions: list[Any]) -> list[RLStepResult]:
        """Step these slots, each with its action."""
        row, measured = self._row_of(slots, actions), self._measured
        with measured:
            try:
                marks, step = measured.marks, self._lockstep.step
                batch = self._run(step if marks[CALLS] < marks[DUE] else partial(measured.look, step), row)
                marks[CALLS] += 1
            except WorkerError as error:
                self._keep_partial(error, slots)
                raise
        return self._stepped(batch, slots)

    def _row_of(self, slots: list[int], actions: list[Any]) -> list[Any]:
        """Return the order for every slot. Raises UsageError, with nothing sent, for slots that cannot be stepped."""
        books, stale = self._results, self._lockstep.life.stale
        books.lost |= stale
        if len(actions) == self._n and not books.special and not books.lost:
            return actions
        row: list[Any] = [Code.IDLE] * self._n
        for slot, action in zip(slots, actions):
            if slot in books.lost:
                raise UsageError(
                    f"slot {slot} moved on in a step that failed, was interrupted or came too late; its result was "
                    "lost. next_task_at or reset_all brings it back. Nothing was sent"
                )
            state = books.special.get(slot)
            if state is Slot.EMPTY:
                raise UsageError(f"{books.why_empty(slot)}. Nothing was sent")
            if state is Slot.HELD and action is not None:
                raise UsageError(f"slot {slot}: its task is done: give None for it. Nothing was sent")
            row[slot] = Code.HELD if state is Slot.HELD else action
        if stale:  # only slots that are not stepped: the pool steps all slots or none
            others = sorted(stale)
            books.of_stay(self._run(self._lockstep.reset, None, [Stay()] * len(others), others), others)
        return row

    def _stepped(self, batch: Batch, slots: list[int]) -> list[RLStepResult]:
        results: list[Any] = self._results.of_step(batch, slots)
        special = self._results.special
        if self._resample or any(special.get(slot) is not Slot.HELD for slot in self._live):
            return results
        return self._all_move_on(dict(zip(slots, results)))

    def _all_move_on(self, results: dict[int, RLStepResult]) -> list[RLStepResult]:
        """Move all slots that are not paused on to their next tasks, as the last task is done."""
        terminal = dict(self._results.terminal)
        try:
            firsts = self._observe(dict.fromkeys(self._live, NextTask()))
        except WorkerError as error:
            firsts = error.partial if error.partial is not None else [None] * len(self._live)
            error.partial = list(_moved(results, dict(zip(self._live, firsts)), terminal).values())
            raise
        return list(_moved(results, dict(zip(self._live, firsts)), terminal).values())

    def _keep_partial(self, error: TreadleError, slots: list[int]) -> None:
        if isinstance(error, WorkerError) and isinstance(error.partial, Batch):
            error.partial = self._results.of_step(error.partial, slots, self._lockstep.life.nothing)

    # -- properties --------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """True if the vector is closed."""
        return self._pool.closed

    @property
    def num_unpaused_tasks(self) -> int:
        """The number of slots that are not paused."""
        return len(self._live)

    @property
    def mp_ctx(self) -> BaseContext | None:
        """The multiprocessing context with the workers' start method; None without worker processes."""
        return None if self._start is None else self._start.context

    @one_at_a_time
    def stats(self) -> TaskVectorStats:
        """Return the counts and times since the vector was made."""
        self._begin("stats")
        told = self._run(self._lockstep.call, TaskOp.STATUS)
        busy = np.array([0.0 if each is None else each.busy / max(1, each.age) for each in told])
        restarts, books = np.array(self._pool.restarts, np.int64), self._results
        why = self._verdict()
        return TaskVectorStats(
            books.steps.copy(), books.episodes.copy(), restarts, busy, monotonic() - self._began, why
        )

    def _verdict(self) -> Verdict:
        return verdict(self._measured.judged(int(self._results.steps.sum()), True))

    # -- tasks -------------------------------------------------------------------------------------------------------

    @one_at_a_time
    def next_task(self, **kwargs: Any) -> list[Any]:
        """Move every unpaused slot on to its next task, done or not; an unfinished task has no metrics.

        `kwargs` are passed to every sampler. Returns the first observations, None for an exhausted sampler."""
        self._begin("next_task")
        return self._observe({slot: NextTask(dict(kwargs)) for slot in self._live})

    @one_at_a_time
    def next_task_at(self, sampler_index: int) -> list[Any]:
        """Move one slot on to its next task; returns a list with the first observation."""
        self._begin("next_task_at")
        return self._observe({self._slot(sampler_index): NextTask()})

    @one_at_a_time
    def reset_all(self) -> None:
        """Reset every unpaused slot's sampler (its seed stays) and take its first task.

        Raises RuntimeError (a TaskRaised) for a sampler without a task after its reset.
        """
        self._begin("reset_all")
        self._observe(dict.fromkeys(self._live, ResetSampler()))

    @one_at_a_time
    def set_seeds(self, seeds: Sequence[int]) -> None:
        """Give every unpaused slot's sampler a seed, for later tasks."""
        self._begin("set_seeds")
        self._seed(dict(zip(self._live, self._each("set_seeds", listed("set_seeds", seeds, "seeds"), "seeds"))))

    def _seed(self, seeds: dict[int, Any]) -> None:
        for slot, seed in seeds.items():
            check_seed(seed, f"the seed of slot {slot}")
        try:
            self._ask({slot: (TaskOp.SEED, (seed,), {}) for slot, seed in seeds.items()}, task=False)
        finally:
            for slot, seed in seeds.items():
                self._results.histories[slot].seeded(seed)

    def _observe(self, orders: dict[int, Any]) -> list[Any]:
        """Send orders that lead to new tasks, and return the tasks' first observations."""
        if not orders:
            return []
        slots = list(orders)
        for slot, order in orders.items():
            if isinstance(order, ResetSampler):
                self._results.histories[slot].reset()
        with self._measured.reset():
            try:
                batch = self._run(self._lockstep.reset, None, list(orders.values()), slots)
            except WorkerError as error:
                if isinstance(error.partial, Batch):
                    error.partial = self._results.of_orders(error.partial, slots, self._lockstep.life.nothing)
                raise
        return self._results.of_orders(batch, slots)

    # -- pausing -----------------------------------------------------------------------------------------------------

    @one_at_a_time
    def pause_at(self, sampler_index: int) -> None:
        """Pause a slot until `resume_all`. It keeps its task, and the indices above it move down by one."""
        self._begin("pause_at")
        self._live.remove(self._slot(sampler_index))

    @one_at_a_time
    def resume_all(self) -> None:
        """Bring all paused slots back, in the original order."""
        self._begin("resume_all")
        self._live = list(range(self._n))

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all samplers and end all workers, within 6 s. A second call does nothing."""
        self._posted = None
        self._arrived.clear()
        self._measured.tell(self._verdict)
        self._pool.close()

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _check_open(self, name: str) -> None:
        if self._pool.closed:
            raise ClosedPool(f"{name}: this vector of tasks is closed")

    def _begin(self, name: str) -> None:
        """Finish the step under way, and after an interrupt update the slots' states, before another request."""
        self._check_open(name)
        if self._posted is not None:
            try:
                self._arrived.append(self._wait())
            except TreadleError as error:
                self._arrived.append(error)
        self._pool.check()
        if self._unsure:
            for slot, status in enumerate(self._lockstep.call(TaskOp.STATUS)):
                if isinstance(status, Status):
                    self._results.correct(slot, status)
            self._unsure = False

    def _each(self, name: str, given: Any, what: str) -> Sequence[Any]:
        """Return one value for every unpaused slot; a string, or None, is for all."""
        n = len(self._live)
        if given is None or isinstance(given, str):
            return [given] * n
        values = listed(name, given, what)
        if len(values) != n:
            raise UsageError(f"{name}: {len(values)} {what} for {n} unpaused slots. Nothing was sent")
        return values

    def _slot(self, index: int) -> int:
        try:
            return self._live[operator.index(index)]
        except (IndexError, TypeError):
            paused = f" ({self._n - len(self._live)} of {self._n} are paused)" if len(self._live) < self._n else ""
            raise NoSuchSlot(f"no slot has the index {index!r}: {len(self._live)} are unpaused{paused}") from None

    def _run(self, request: Callable[..., Any], *args: Any) -> Any:
        try:
            return request(*args)
        except Exception:
            raise
        except BaseException:  # Ctrl-C: the pool finishes the request later and drops its result
            self._unsure = True
            raise

    def _ask(self, orders: dict[int, Operation], *, task: bool = True) -> list[Any]:
        """Run operations in slots and return their results. `task`: the operations need a present task."""
        for slot in orders if task else ():
            if self._results.special.get(slot) is Slot.EMPTY:
                raise UsageError(f"{self._results.why_empty(slot)}. Nothing was sent")
        if not orders:
            return []
        try:
            return self._run(self._lockstep.call_each, orders)
        except WorkerError as error:
            if isinstance(error.partial, dict):
                error.partial = [error.partial.get(slot) for slot in orders]
            raise

    def _fresh(self, slot: int, then: Any) -> Fresh:
        """Return the order for a program that replaces a dead one; see `Fresh`."""
        history = self._results.histories[slot]
        incarnation = self._pool.restarts[slot]
        seed = None if history.seed is None else restart_seed(history.seed, slot, incarnation)
        return Fresh(history.copy(), seed, then)


def _moved(
    results: dict[int, RLStepResult], firsts: dict[int, Any], terminal: dict[int, Any]
) -> dict[int, RLStepResult]:
    """Return the results of the step where all slots moved on, with the next tasks' first observations."""
    out = {}
    for slot, result in results.items():
        if slot not in firsts:
            out[slot] = result
            continue
        info = {**(result.info or {}), "final_observation": terminal.get(slot)}
        out[slot] = result._replace(observation=firsts[slot], info=info)
    return out


def _start(factories: list[Callable[[], TaskSlot]], **options: Any) -> Pool:
    try:
        return Pool(factories, **options)
    except LayoutsDiffer as error:
        raise NotSupported(UNEQUAL.format(error)) from error
    except StartupFailed as error:
        raise start_error(error) from error.__cause__
