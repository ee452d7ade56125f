"""Stepping a vector of tasks: at once, or begun now and waited for later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from treadle.errors import TreadleError, UsageError, WorkerError
from treadle.pool.batch import Batch
from treadle.task.core import RLStepResult
from treadle.vector.sampled_refusals import listed
from treadle.vector.sampled_results import Results, Slot
from treadle.vector.task_orders import NextTask, Stay
from treadle.vector.task_rows import Code
from treadle.vector.turns import one_at_a_time

if TYPE_CHECKING:
    from treadle.pool.slotwise import SlotwiseLockstep


class SampledSteps:
    """The part of `SampledTasks` that the module tells of."""

    _n: int
    _live: list[int]
    _resample: bool
    _results: Results
    _lockstep: SlotwiseLockstep
    _posted: list[int] | None  # the slots of a step that was begun and not yet waited for
    _arrived: deque[list[Any] | TreadleError]  # of steps that other calls had to finish first

    if TYPE_CHECKING:  # what `SampledTasks` brings

        def _check_open(self, name: str) -> None: ...
        def _begin(self, name: str) -> None: ...
        def _slot(self, index: int) -> int: ...
        def _run(self, request: Callable[..., Any], *args: Any) -> Any: ...
        def _observe(self, orders: dict[int, Any]) -> list[Any]: ...

    @one_at_a_time
    def step(self, actions: Sequence[Any]) -> list[RLStepResult]:
        """Step every unpaused slot.

        Args:
            actions: one for each, passed on as it is. With auto_resample_when_done=False, None for a slot whose task
                is done.

        Returns:
            one result a slot; see the class. Observations are the caller's to keep. A slot that waits for the others
            shows its terminal observation again, with reward 0.0, done and info["held"]; on the step where the last
            one is done all move on, and their results show the next tasks' first observations.

        Raises:
            UsageError: the number is wrong, or a slot cannot be stepped: its sampler is exhausted, its task done, or
                it moved on in a step that failed. Nothing was sent.
            TaskRaised (of the original's type as well), WorkerDied (an EOFError), WorkerTimeout (a TimeoutError): the
                others' results are in `partial`, None for those without. A slot that raised, or was late, takes
                `next_task_at` or `reset_all`; after a death there is nothing but close, unless on_failure says so.
        """
        self._begin("step")
        return self._advance(self._live, self._one_each(actions))

    @one_at_a_time
    def step_at(self, sampler_index: int, action: Any) -> list[RLStepResult]:
        """Step one slot; returns a list of its result."""
        self._begin("step_at")
        slot = self._slot(sampler_index)
        if action is None and self._results.states[slot] is Slot.HELD:
            raise UsageError(f"slot {slot}: its task is done and waits for the others. Nothing was sent")
        return self._advance([slot], [action])

    @one_at_a_time
    def async_step(self, actions: Sequence[Any]) -> None:
        """Begin a `step`; `wait_step` returns its results. What can be checked is checked now."""
        self._begin("async_step")
        self._run(self._lockstep.post_step, self._row_of(self._live, self._one_each(actions)))
        self._posted = list(self._live)

    @one_at_a_time
    def wait_step(self) -> list[RLStepResult]:
        """The results of the earliest `async_step` that was not waited for. Raises UsageError when there is none."""
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
        slots = self._posted
        try:
            batch = self._lockstep.wait()
        except WorkerError as error:
            self._posted = None
            self._keep_partial(error, slots)
            raise
        except TreadleError:
            self._posted = None
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
        row = self._row_of(slots, actions)
        try:
            batch = self._run(self._lockstep.step, row)
        except WorkerError as error:
            self._keep_partial(error, slots)
            raise
        return self._stepped(batch, slots)

    def _row_of(self, slots: list[int], actions: list[Any]) -> list[Any]:
        """What every slot is sent. Raises UsageError, with nothing sent, for slots that cannot be stepped."""
        books, stale = self._results, self._lockstep.stale
        books.lost |= stale
        if len(actions) == self._n and not books.special and not books.lost:
            return actions
        row: list[Any] = [Code.IDLE] * self._n
        for slot, action in zip(slots, actions):
            if slot in books.lost:
                raise UsageError(
                    f"slot {slot} moved on in a step that failed, or came too late, and nobody saw its result: "
                    "next_task_at or reset_all brings it back. Nothing was sent"
                )
            state = books.states[slot]
            if state is Slot.EMPTY:
                raise UsageError(f"{books.why_empty(slot)}. Nothing was sent")
            if state is Slot.HELD and action is not None:
                raise UsageError(f"slot {slot}: its task is done: give None for it. Nothing was sent")
            row[slot] = Code.HELD if state is Slot.HELD else action
        if stale:  # of slots that are not stepped: the pool steps all or none
            others = sorted(stale)
            books.of_stay(self._run(self._lockstep.reset, None, [Stay()] * len(others), others), others)
        return row

    def _stepped(self, batch: Batch, slots: list[int]) -> list[RLStepResult]:
        results: list[Any] = self._results.of_step(batch, slots)
        states = self._results.states
        if self._resample or any(states[slot] is not Slot.HELD for slot in self._live):
            return results
        return self._all_move_on(dict(zip(slots, results)))

    def _all_move_on(self, results: dict[int, RLStepResult]) -> list[RLStepResult]:
        """The last task that the others waited for is done: all slots that are not paused take their next one."""
        terminal = dict(self._results.terminal)
        try:
            firsts = self._observe(dict.fromkeys(self._live, NextTask()))
        except WorkerError as error:
            firsts = error.partial if error.partial is not None else [None] * len(self._live)
            error.partial = list(_moved(results, dict(zip(self._live, firsts)), terminal).values())
            raise
        return list(_moved(results, dict(zip(self._live, firsts)), terminal).values())

    def _keep_partial(self, error: WorkerError, slots: list[int]) -> None:
        if isinstance(error.partial, Batch):
            error.partial = self._results.of_step(error.partial, slots, self._lockstep.stale)


def _moved(
    results: dict[int, RLStepResult], firsts: dict[int, Any], terminal: dict[int, Any]
) -> dict[int, RLStepResult]:
    """Results of the step where all moved on: the next tasks' first observations in place of the terminal ones."""
    out = {}
    for slot, result in results.items():
        if slot not in firsts:
            out[slot] = result
            continue
        info = {**(result.info or {}), "final_observation": terminal.get(slot)}
        out[slot] = result._replace(observation=firsts[slot], info=info)
    return out


__all__ = ["SampledSteps"]
