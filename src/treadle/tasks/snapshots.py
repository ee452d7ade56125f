"""States and snapshots of a vector of tasks: its slots' tasks and samplers, kept, given back, written to a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treadle.errors import StateError, UsageError, WorkerError
from treadle.pool import checkpoint
from treadle.states import snapshot_file
from treadle.tasks.orders import Ask
from treadle.tasks.results import SlotBooks
from treadle.tasks.state import TaskState
from treadle.tasks.vector import TaskVector
from treadle.vector.orders import states_by_slot
from treadle.vector.turns import one_at_a_time

if TYPE_CHECKING:
    pass

FORMAT = "treadle task vector snapshot 2"


@dataclass(frozen=True)
class SampledState:
    """The state of one slot of a vector of tasks, to be kept and given back.

    Attributes:
        inside: of its sampler and its present task.
        books: what the vector knows of it.
    """

    inside: TaskState
    books: SlotBooks


class SampledSnapshots(TaskVector):
    """The part of `SampledTasks` that keeps states."""

    @one_at_a_time
    def get_states(self) -> tuple[SampledState, ...]:
        """The complete state of every slot, paused ones included, in the order of the slots: its sampler and its task
        with their generators and counters, the environment that they share, and whether the task waits for others or
        there is none. They pickle, and any slot of a vector with the same samplers takes them.

        An environment is kept as `VectorEnv` keeps one where it is the attribute `env` of the task, or the sampler,
        and Gymnasium's; anything else is pickled. Callback sensors are not in it.

        Raises StateError (as TaskRaised) for what cannot be captured, UsageError for slots that were dropped, or that
        moved on in a step that nobody saw the result of.
        """
        self._begin("get_states")
        books = self._results
        unclear = sorted(books.gone | books.lost | self._lockstep.stale)
        if unclear:
            raise UsageError(
                f"slots {unclear} were dropped, or moved on in a step that failed: they have no state to be kept "
                "(next_task_at and reset_all bring back those that were not dropped)"
            )
        inside = self._run(self._lockstep.call, Ask.GET_STATE)
        _refuse_dropped({slot for slot, each in enumerate(inside) if each is None})
        return tuple(SampledState(each, books.of_slot(slot)) for slot, each in enumerate(inside))

    @one_at_a_time
    def set_states(self, states: Sequence[SampledState], slots: Sequence[int] | None = None) -> None:
        """Put every slot into a state, or some slots; what is paused stays so, and counters of steps go on. The slots
        get new samplers, and those that they had are not closed, since the environment goes on in the new ones.

        Args:
            states: one for each of them.
            slots: which, by number (a paused one counts too); None: all.

        Raises UsageError for a wrong number of states, or while results of `async_step` wait for `wait_step`;
        StateError for a state of another kind of slot (slots that could take theirs have it).
        """
        given = states_by_slot(states, slots, self._n, SampledState)
        self._begin("set_states")
        self._check_seen("set_states")
        _refuse_dropped(self._results.gone & given.keys())
        done: list[Any] = []
        try:
            done = self._ask({slot: (Ask.SET_STATE, (state.inside,), {}) for slot, state in given.items()}, task=False)
        except WorkerError as error:
            done = error.partial or []
            raise
        finally:
            self._have_taken({slot: given[slot] for slot, fine in zip(given, done) if fine})
        _refuse_dropped({slot for slot, fine in zip(given, done) if not fine})

    def _have_taken(self, states: dict[int, SampledState]) -> None:
        for slot, state in states.items():
            self._results.put_slot(slot, state.books)
        self._lockstep._stale -= states.keys()
        if self._lockstep.recovery is not None:
            self._lockstep.recovery.placed(states.keys())

    @one_at_a_time
    def snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file: the slots' states, which are paused, their counters of tasks and steps, and the
        last observations. The file is there whole, or not at all. Raises what `get_states` raises, and UsageError
        while results of `async_step` wait for `wait_step`."""
        states = self.get_states()
        self._check_seen("snapshot")
        kept = {
            "format": FORMAT,
            "states": states,
            "checkpoint": checkpoint.take(self._lockstep),
            "live": list(self._live),
            "steps": self._results.steps.copy(),
            "episodes": self._results.episodes.copy(),
            "space": self.observation_space,
        }
        snapshot_file.write(path, kept)

    @one_at_a_time
    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on where a snapshot was taken, here or in another process. The vector must have been made the same way;
        backend and number of workers are free.

        The file is a pickle: read only what you trust.

        Raises UsageError for a file that is no snapshot of a vector of tasks, or has another number of slots;
        StateError for one of other tasks. And what `set_states` raises.
        """
        kept = snapshot_file.read(path, FORMAT, "a vector of tasks")
        if len(kept["states"]) != self._n:
            raise UsageError(f"{os.fspath(path)} has {len(kept['states'])} slots, this vector has {self._n}")
        if kept["space"] != self.observation_space:
            raise StateError(
                f"{os.fspath(path)} is of tasks that show {kept['space']}, these show {self.observation_space}"
            )
        self.set_states(kept["states"])
        checkpoint.put(self._lockstep, kept["checkpoint"])
        self._live = list(kept["live"])
        self._results.steps[:] = kept["steps"]
        self._results.episodes[:] = kept["episodes"]

    def _check_seen(self, name: str) -> None:
        if self._arrived:
            raise UsageError(f"{name}: results of async_step wait for wait_step: take them first")


def _refuse_dropped(slots: set[int]) -> None:
    if slots:
        raise UsageError(f"slots {sorted(slots)} were dropped when their worker died: nothing brings them back")


__all__ = ["FORMAT", "SampledSnapshots", "SampledState"]
