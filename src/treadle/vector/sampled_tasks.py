"""Many streams of tasks, stepped at once: AllenAct's interface on the pool.

There is one implementation, `SampledTasks`, and two constructors (`sampled.py`): workers in processes (or threads), or
everything in the caller. Pausing is a view: `_live` lists the slots that are shown, in order; the others are told to
stand still.

A step is one batch: what the tasks return goes through the arena wherever it has a fixed shape. Only the step itself
can be begun and waited for later (`async_step`, `wait_step`). Any other call in between finishes it first, keeps its
result for `wait_step`, and returns what it was asked for itself.
"""

from __future__ import annotations

import logging
import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from time import monotonic
from typing import Any, Self

import numpy as np

from treadle.errors import ClosedPool, LayoutsDiffer, StartupFailed, TreadleError, UsageError, WorkerError
from treadle.pool.batch import Batch
from treadle.pool.carried import CannotTravel
from treadle.pool.pool import Pool
from treadle.pool.slotwise import Order, SlotwiseLockstep
from treadle.seeding import restart_seed
from treadle.task.core import TaskSampler
from treadle.task.sensors import SensorSuite
from treadle.vector import sampled_arguments as arguments
from treadle.vector.metrics_queue import MetricsQueue
from treadle.vector.sampled_commands import SampledCommands
from treadle.vector.sampled_refusals import NoSuchSlot, NotSupported, cannot_travel, listed, start_error
from treadle.vector.sampled_results import Results, Slot
from treadle.vector.sampled_snapshots import SampledSnapshots
from treadle.vector.sampled_steps import SampledSteps
from treadle.vector.task_orders import Ask, Fresh, NextTask, ResetSampler, Status
from treadle.vector.task_rows import action_writer
from treadle.vector.task_slot import SamplerRecipe, TaskSlot
from treadle.vector.tiling import show, tile
from treadle.vector.turns import Claim, one_at_a_time

log = logging.getLogger("treadle")


@dataclass(frozen=True)
class TaskVectorStats:
    """Attributes:
    steps: int64[n], steps taken in each slot.
    episodes: int64[n], tasks begun in each slot.
    restarts: int64[n], how often each slot's worker was started anew.
    busy: float64[n], the share of time that each slot's task was at work in a step (moving on to the next task
        included), since its program was built.
    elapsed: seconds since the vector was made.
    """

    steps: np.ndarray
    episodes: np.ndarray
    restarts: np.ndarray
    busy: np.ndarray
    elapsed: float


class SampledTasks(SampledSteps, SampledCommands, SampledSnapshots):
    """Task samplers, one a slot, stepped together. Made by `VectorSampledTasks` and `SingleProcessVectorSampledTasks`.

    Slots are counted from 0 in the order of the samplers' arguments; an *index* counts those that are not paused, so
    it is the same until the first `pause_at`. Errors name the slot. Use it from one thread at a time: calls
    that overlap are refused.

    Every step's info has `terminated` (the task's `reached_terminal_state()`) and `truncated` (its `is_truncated()`,
    which is that the limit of steps was reached without that), False while the task goes on. The task's own info is
    never changed; what it has under a name of the vector's is kept as "task_" + name. On the step that ends a task
    there is more:

    - "__AFTER_TASK_METRICS__": its metrics, if it has any; "__AFTER_TASK_CALLBACK__": what callback sensors showed;
    - "final_observation": its last observation, since `observation` is the next task's first (None: there is none).

    Attributes:
        observation_space: that all tasks have in common.
        action_spaces: one a slot.
        metrics_out_queue: as given, or a queue of this process that keeps the latest 10,000 metrics.
        should_log, max_processes, read_timeout: as given.
    """

    observation_space: Any
    action_spaces: list[Any]

    def __init__(
        self,
        make_sampler_fn: Callable[..., TaskSampler],
        args: list[dict[str, Any]],
        *,
        callbacks: SensorSuite[Any] | None,
        resample: bool,
        start: arguments.Starting | None,
        metrics_out_queue: Any,
        should_log: bool,
        max_processes: int | None,
        read_timeout: float | None,
        **options: Any,
    ) -> None:
        self._turns = Claim()
        arguments.check_make(make_sampler_fn)
        self.metrics_out_queue = MetricsQueue() if metrics_out_queue is None else metrics_out_queue
        self.should_log = should_log
        self.max_processes, self.read_timeout = max_processes, read_timeout
        self._start, self._resample, n = start, resample, len(args)
        workers = arguments.worker_count(max_processes, n)
        if should_log:
            for slot, each in enumerate(args):
                log.info("starting task sampler %d of %d (%d workers) with arguments %s", slot, n, workers, each)

        def slot_of(each: dict[str, Any]) -> Callable[[], TaskSlot]:
            recipe = SamplerRecipe.of(make_sampler_fn, each, None if start is None else start.method)
            return lambda: TaskSlot(recipe, callbacks, resample)

        try:
            self._pool = _start([slot_of(each) for each in args], workers=workers, step_timeout=read_timeout, **options)
        except CannotTravel as error:
            raise cannot_travel(error, args[error.slot], options.get("start_method")) from error.__cause__
        try:
            spaces = [about.metadata["observation_space"] for about in self._pool.descriptions]
            for slot, space in enumerate(spaces):
                if space is not spaces[0] and space != spaces[0]:
                    raise NotSupported(_unequal(slot, space, spaces[0]))
            self.observation_space = spaces[0]
            self.action_spaces = [about.metadata["action_space"] for about in self._pool.descriptions]
            self._lockstep = SlotwiseLockstep(self._pool, action_writer, self._fresh)
            self._lockstep.waive_reset()  # the first tasks are there already
            remember = options.get("on_failure", "raise") != "raise"
            self._results = Results(self._lockstep.observations, n, self.metrics_out_queue, remember=remember)
        except BaseException:
            self._pool.close(0.0)
            raise
        self._n, self._live = n, list(range(n))
        self._posted = None
        self._arrived = deque()
        self._unsure = False  # was a request interrupted, so that the slots know more than the books?
        self._began = monotonic()

    # -- about it ----------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Has it been closed?"""
        return self._pool.closed

    @property
    def num_unpaused_tasks(self) -> int:
        """How many slots are not paused."""
        return len(self._live)

    @property
    def mp_ctx(self) -> BaseContext | None:
        """The multiprocessing context that stands for how workers are started; None where there are no processes."""
        return None if self._start is None else self._start.context

    @one_at_a_time
    def stats(self) -> TaskVectorStats:
        """What it has done since it was made."""
        self._begin("stats")
        told = self._run(self._lockstep.call, Ask.STATUS)
        busy = np.array([0.0 if each is None else each.busy / max(1, each.age) for each in told])
        restarts = np.array(self._pool.restarts, np.int64)
        books = self._results
        return TaskVectorStats(books.steps.copy(), books.episodes.copy(), restarts, busy, monotonic() - self._began)

    # -- tasks -------------------------------------------------------------------------------------------------------

    @one_at_a_time
    def next_task(self, **kwargs: Any) -> list[Any]:
        """Move every unpaused slot on to its next task, whether the present one is done or not (then it has no
        metrics); `kwargs` are given to every sampler. Returns the first observations, None where there is no task."""
        self._begin("next_task")
        return self._observe({slot: NextTask(dict(kwargs)) for slot in self._live})

    @one_at_a_time
    def next_task_at(self, sampler_index: int) -> list[Any]:
        """The same for one slot; returns a list of its first observation."""
        self._begin("next_task_at")
        return self._observe({self._slot(sampler_index): NextTask()})

    @one_at_a_time
    def reset_all(self) -> None:
        """Reset every unpaused slot's sampler (its seed stays) and take its first task.

        Raises RuntimeError (a TaskRaised) for a sampler without a task after it.
        """
        self._begin("reset_all")
        self._observe(dict.fromkeys(self._live, ResetSampler()))

    @one_at_a_time
    def set_seeds(self, seeds: Sequence[int]) -> None:
        """Give every unpaused slot's sampler a seed, for the tasks to come."""
        self._begin("set_seeds")
        self._seed(dict(zip(self._live, self._each("set_seeds", listed("set_seeds", seeds, "seeds"), "seeds"))))

    def _seed(self, seeds: dict[int, Any]) -> None:
        try:
            self._ask({slot: (Ask.SEED, (seed,), {}) for slot, seed in seeds.items()}, task=False)
        finally:
            for slot, seed in seeds.items():
                self._results.histories[slot].seeded(seed)

    def _observe(self, orders: dict[int, Any]) -> list[Any]:
        """Follow orders that lead to new tasks; returns their first observations."""
        if not orders:
            return []
        slots, stale = list(orders), ()
        for slot, order in orders.items():
            if isinstance(order, ResetSampler):
                self._results.histories[slot].reset()
        try:
            batch = self._run(self._lockstep.reset, None, list(orders.values()), slots)
        except WorkerError as error:
            if isinstance(error.partial, Batch):
                stale = self._lockstep.stale  # type: ignore[assignment]  # any collection of slots
                error.partial = self._results.of_orders(error.partial, slots, stale)
            raise
        return self._results.of_orders(batch, slots)

    # -- pausing -----------------------------------------------------------------------------------------------------

    @one_at_a_time
    def pause_at(self, sampler_index: int) -> None:
        """Leave a slot out until `resume_all`: it keeps its task, and the indices above it move down by one."""
        self._begin("pause_at")
        self._live.remove(self._slot(sampler_index))

    @one_at_a_time
    def resume_all(self) -> None:
        """Bring all paused slots back, in the original order."""
        self._begin("resume_all")
        self._live = list(range(self._n))

    # -- pictures ----------------------------------------------------------------------------------------------------

    @one_at_a_time
    def render(self, mode: str = "human", *args: Any, **kwargs: Any) -> np.ndarray | list[np.ndarray] | None:
        """Pictures of all unpaused slots' tasks.

        Args:
            mode: "rgb_array": one tiled image, see `treadle.vector.tiling.tile`; "raw_rgb_list": a list of images;
                "human": the tiled image in a window (None is returned; needs OpenCV).
            args, kwargs: for every task's `render`, whose `mode` is "rgb" unless `kwargs` say otherwise.

        Raises:
            NotSupported (a NotImplementedError): any other mode.
        """
        if mode not in ("human", "rgb_array", "raw_rgb_list"):
            raise NotSupported(f"render mode must be 'human', 'rgb_array' or 'raw_rgb_list', got {mode!r}")
        pictures = self.command("render", [(args, kwargs)] * len(self._live))
        if mode == "raw_rgb_list":
            return pictures
        image = tile(pictures)
        if mode == "rgb_array":
            return image
        show(image)
        return None

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all samplers and end all workers, within `close_timeout` + 1 s. Twice is once."""
        self._posted = None
        self._arrived.clear()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _check_open(self, name: str) -> None:
        if self._pool.closed:
            raise ClosedPool(f"{name}: this vector of tasks is closed")

    def _begin(self, name: str) -> None:
        """Before anything new: finish the step that is under way, and learn what an interrupt has hidden."""
        self._check_open(name)
        if self._posted is not None:
            try:
                self._arrived.append(self._wait())
            except TreadleError as error:
                self._arrived.append(error)
        self._pool.check()
        if self._unsure:
            for slot, status in enumerate(self._lockstep.call(Ask.STATUS)):
                if isinstance(status, Status):
                    self._results.correct(slot, status)
            self._unsure = False

    def _slot(self, index: int) -> int:
        try:
            return self._live[operator.index(index)]
        except (IndexError, TypeError):
            paused = f" ({self._n - len(self._live)} of {self._n} are paused)" if len(self._live) < self._n else ""
            raise NoSuchSlot(f"there is no slot at index {index!r}: {len(self._live)} are unpaused{paused}") from None

    def _run(self, request: Callable[..., Any], *args: Any) -> Any:
        try:
            return request(*args)
        except Exception:
            raise
        except BaseException:  # Ctrl-C: the pool finishes the request later and drops what it brings
            self._unsure = True
            raise

    def _ask(self, orders: dict[int, Order], *, task: bool = True) -> list[Any]:
        """Ask slots for something of their own. `task`: of their present tasks, which they must have."""
        for slot in orders if task else ():
            if self._results.states[slot] is Slot.EMPTY:
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
        """For a program in a dead one's place; see `Fresh`."""
        history = self._results.histories[slot]
        incarnation = self._pool.restarts[slot]
        seed = None if history.seed is None else restart_seed(history.seed, slot, incarnation)
        return Fresh(history.copy(), seed, then)


def _unequal(slot: int, space: Any, first: Any) -> str:
    return (
        "It appears that the observation spaces of the samplers are not equal, which is not supported: slot "
        f"{slot} has {space}, slot 0 has {first}"
    )


def _start(factories: list[Callable[[], TaskSlot]], **options: Any) -> Pool:
    try:
        return Pool(factories, **options)
    except LayoutsDiffer as error:
        raise NotSupported(
            f"It appears that the observation spaces of the samplers are not equal, which is not supported: {error}"
        ) from error
    except StartupFailed as error:
        raise start_error(error) from error.__cause__


__all__ = ["SampledTasks", "TaskVectorStats"]
