"""The program that runs a stream of tasks in a slot: a sampler and its present task.

A slot moves on within the step that ends a task: it takes the sampler's next task at once. The row holds the next
task's first observation, and the reward and the end of the old task. The old task's last observation goes into the
rows for terminal observations, its metrics into the info.

Values that a row cannot hold go by message in a `Note`. Most steps inside a task need no message: the observation fits
the row, the reward is a number and the info is empty.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from treadle.checks import parameters_of
from treadle.coroutines import Owner
from treadle.errors import UsageError
from treadle.program.base import Description, Program, StepResult
from treadle.program.ids import own_registrations, register_missing
from treadle.spaces import Layout
from treadle.tasks.core import SensorSuite, ends_of
from treadle.tasks.orders import NOTE, Fresh, NextTask, Note, ResetSampler, Status, Stay, TaskOp
from treadle.tasks.rows import Code, action_rows, blank, fitting, observation_rows

NO_FIRST_TASK = (
    "Newly created task sampler had `None` as it's first task. Every sampler must have at least one task; perhaps "
    "there are more samplers than tasks (in a test set, say). Use fewer samplers, or give each at least one task"
)
NO_TASK_AFTER_RESET = (
    "After resetting the task sampler it seems to have no new tasks: next_task() returned None. Its reset() "
    "must bring back all of its tasks"
)
NO_TASK = "the slot has no task: the sampler is exhausted. Pause the slot, or reset the sampler"
OVER = "this slot's task is done and the slot waits for the others: give None for it, or move on with next_task"
IDLE, HELD, MAILED = int(Code.IDLE), int(Code.HELD), int(Code.MAILED)  # plain: they are compared once a step
OWN_OBJECTS = frozenset({TaskOp.TASK_ATTR, TaskOp.TASK_CALL, TaskOp.SAMPLER_ATTR, TaskOp.SAMPLER_CALL})
NUMBERS = (int, float, np.number, np.bool_)


@dataclass(frozen=True)
class SamplerRecipe:
    """The arguments that build one slot's sampler in any process.

    Attributes:
        make: returns the sampler.
        args: its keyword arguments.
        start_method: of the multiprocessing context that `make` gets as `mp_ctx`, if it has this argument. None:
            `mp_ctx` is None, unless `args` has one.
        registrations: the caller's Gymnasium ids; see `program.ids`.
    """

    make: Callable[..., Any]
    args: dict[str, Any]
    start_method: str | None
    registrations: bytes | None

    @classmethod
    def of(cls, make: Callable[..., Any], args: dict[str, Any], start_method: str | None) -> SamplerRecipe:
        return cls(make, dict(args), start_method, own_registrations())

    def build(self) -> Any:
        """Build the sampler. Raises UsageError if `make` does not return a sampler, and what `make` raises."""
        register_missing(self.registrations)
        args = dict(self.args)
        if _takes(self.make, "mp_ctx"):
            if self.start_method is not None:
                args["mp_ctx"] = multiprocessing.get_context(self.start_method)
            else:
                args.setdefault("mp_ctx", None)
        sampler = self.make(**args)
        if not callable(getattr(sampler, "next_task", None)):
            raise UsageError(
                f"make_sampler_fn returned {type(sampler).__name__}, which is not a task sampler: it has no next_task()"
            )
        return sampler


def _takes(function: Any, name: str) -> bool:
    """Return True if the function takes this keyword, or if its signature cannot be read."""
    parameters = parameters_of(function)
    return parameters is None or any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


class TaskSlot(Program):
    """The program of one slot.

    Args:
        recipe: of the sampler.
        callbacks: sensors that are called when a task is done; None: no sensors.
        resample: True: move on to the next task when one is done. False: the slot waits until a request moves it on.

    Raises:
        RuntimeError: the sampler has no first task.
        The errors of building the sampler.
    """

    begun = True

    def __init__(self, recipe: SamplerRecipe, callbacks: SensorSuite[Any] | None, resample: bool) -> None:
        self._born, self._busy = perf_counter_ns(), 0
        self._handed = 0
        self._callbacks, self._resample = callbacks, resample
        with Owner.untimed():  # in threads, the time limit of tasks is only measured
            self.sampler = recipe.build()
        try:
            self.task = self._next()
            if self.task is None:
                raise RuntimeError(NO_FIRST_TASK)
            self._spaces = self.task.observation_space, self.task.action_space
            layout = Layout.of(observation_rows(self._spaces[0]))
            self._fits, self._blank = fitting(layout), blank(layout)
        except BaseException:
            self.close()
            raise
        self._over: Note | None = None  # of a task that is over while the slot waits
        self._terminal: Any = None  # its last observation
        self._note = Note()  # of the step that is ending its task

    def describe(self) -> Description:
        observation_space, action_space = self._spaces
        return Description(
            observation_rows(observation_space),
            action_rows(),
            finals=True,
            begun=self.begun,
            metadata={"observation_space": observation_space, "action_space": action_space},
        )

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, order: tuple[int, Any]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # type: ignore[override]
        """Take one step; `order` is a value of `action_rows`. See `Program`."""
        action, mailed = order
        if action == IDLE:
            return self._blank, 0.0, False, False, {}
        began = perf_counter_ns()
        try:
            if action <= MAILED:
                if action == HELD:
                    return self._stand()
                action = mailed
            task = self.task
            if task is None or self._over is not None:
                raise UsageError(NO_TASK if task is None else OVER)
            observation, reward, done, info = task.step(action)
            if done or info or not (isinstance(reward, NUMBERS) and self._fits(observation)) or task.is_done():
                return self._remarkable(task, observation, reward, bool(done), dict(info or {}))
            return observation, reward, False, False, {}  # the row holds all of it
        finally:
            self._busy += perf_counter_ns() - began

    def _remarkable(
        self, task: Any, observation: Any, reward: Any, done: bool, info: dict[str, Any]
    ) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the result of a step that may need a `Note` besides its row."""
        over, fits, note = bool(task.is_done()), self._fits(observation), Note()
        if not isinstance(reward, NUMBERS):
            note.reward, reward = reward, _mean(reward)
        ends = ends_of(task, over or done)
        if over and not self._resample:
            return self._hold(observation, reward, ends, info, note)
        if over:
            if not fits:
                note.final, observation = observation, self._blank
            self._note = note
            if any(ends):
                return observation, reward, *ends, info
            note.ends = ends  # neither terminated nor truncated, but the row must end
            return observation, reward, False, True, info
        note.done, note.ends = done, ends if any(ends) else None
        if not fits:
            note.observation, observation = observation, self._blank
        if not note.empty:
            info[NOTE] = note
        return observation, reward, False, False, info

    def ended(
        self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> StepResult:
        began = perf_counter_ns()
        note, self._note = self._note, Note()
        self._last_words(note)
        self.task = self._next()
        first = self._first(note)
        if not note.empty:
            info = {**info, NOTE: note}
        self._busy += perf_counter_ns() - began
        return StepResult(first, reward, terminated, truncated, info, observation, {})

    def _last_words(self, note: Note) -> None:
        """Add the metrics and the callback observations of a finished task to the note."""
        metrics = self.task.metrics()
        if metrics:
            note.metrics = metrics
        if self._callbacks is not None:
            note.callback = self._callbacks.get_observations(env=self.task.env, task=self.task)

    def _hold(
        self, observation: Any, reward: Any, ends: tuple[bool, bool], info: dict[str, Any], note: Note
    ) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the result of a step after which the slot waits. Its row does not end an episode."""
        note.ends, note.over, note.done = ends, True, True
        self._over = Note(ends=ends, over=True, held=True, done=True)
        self._terminal = observation
        if not self._fits(observation):
            note.observation, observation = observation, self._blank
        self._last_words(note)
        return observation, reward, False, False, {**info, NOTE: note}

    def _stand(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the terminal observation again, for a slot that waits."""
        if self._over is None:
            raise UsageError("this slot's task goes on, so the slot cannot wait")
        note, observation = self._over, self._terminal
        if not self._fits(observation):
            note, observation = Note(observation, ends=note.ends, over=True, held=True, done=True), self._blank
        return observation, 0.0, False, False, {NOTE: note}

    def _first(self, note: Note) -> Any:
        """Return the present task's first observation for the row; one that does not fit goes into the note."""
        self._over = self._terminal = None
        if self.task is None:
            note.observation = None
            return self._blank
        first = self.task.get_observations()
        if self._fits(first):
            return first
        note.observation = first
        return self._blank

    # -- new tasks ---------------------------------------------------------------------------------------------------

    def begin(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Follow an order (`orders.py`) and return the first observation of the task that it leads to."""
        if isinstance(options, Stay):
            return self._blank, {}
        note = Note()
        if isinstance(options, Fresh):
            note.restarted = True
            self._catch_up(options)
        else:
            self._follow(options)
        note.handed = self._handed
        return self._first(note), {NOTE: note}

    def _follow(self, order: NextTask | ResetSampler) -> None:
        if isinstance(order, NextTask):
            self.task = self._next(**order.kwargs)
            return
        self.sampler.reset()
        self._handed = 0
        self.task = self._next()
        if self.task is None:
            self._over = self._terminal = None
            raise RuntimeError(NO_TASK_AFTER_RESET)

    def _catch_up(self, fresh: Fresh) -> None:
        """Bring this sampler, which was just built and has handed out one task, to the dead one's place."""
        finite = math.isfinite(self.sampler.length)
        if finite and not isinstance(fresh.then, ResetSampler):
            events = fresh.history.events
            if events[0][0] == "next":
                events = [("next", events[0][1] - 1), *events[1:]]
            for what, number in events:
                if what == "next":
                    for _ in range(number):
                        self.task = self._next()
                elif what == "seed":
                    self.sampler.set_seed(number)
                else:
                    self.sampler.reset()
                    self._handed = 0
        elif finite and fresh.history.seed is not None:
            self.sampler.set_seed(fresh.history.seed)
        elif fresh.seed is not None:
            self.sampler.set_seed(fresh.seed)
        if isinstance(fresh.then, NextTask | ResetSampler):
            self._follow(fresh.then)
        elif finite or fresh.seed is not None:
            self.task = self._next()

    def _next(self, **kwargs: Any) -> Any:
        self._handed += 1  # before the call: a call that raises counts, too
        return self.sampler.next_task(**kwargs)

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation of `TaskOp`."""
        if name == TaskOp.STATUS:
            age = perf_counter_ns() - self._born
            return Status(self.task is not None, self._over is not None, self._handed, self._busy, age)
        if name == TaskOp.SEED:
            return self.sampler.set_seed(*args)
        if name == TaskOp.SAMPLER_ATTR:
            return getattr(self.sampler, *args)
        if name == TaskOp.SAMPLER_CALL:
            return getattr(self.sampler, args[0])(*args[1:])
        if self.task is None:
            raise UsageError(NO_TASK)
        if name == TaskOp.TASK_ATTR:
            return getattr(self.task, *args)
        if name == TaskOp.TASK_CALL:
            return getattr(self.task, args[0])(*args[1:])
        if name == TaskOp.RENDER:
            return self.task.render(*args, **kwargs)
        raise UsageError(f"{name!r} is not an operation of a slot of tasks")

    def hands_over(self, name: str, args: tuple[Any, ...]) -> bool:
        """Return True for results that are handed over without a copy, such as a simulator's handle.

        Changes of such an object reach the slot. Observations are copied: the caller may keep them.
        """
        return name in OWN_OBJECTS and args[:1] != ("get_observations",)

    def close(self) -> None:
        close = getattr(self.sampler, "close", None)
        if close is not None:
            close()


def _mean(reward: Any) -> float:
    """Return the row's value for a reward that is not a number."""
    try:
        return float(np.mean(np.asarray(reward, np.float64))) if reward is not None else 0.0
    except (TypeError, ValueError):
        return 0.0
