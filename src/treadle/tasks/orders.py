"""The orders of a task vector to a slot besides steps, and the parts of a slot's answers that rows cannot hold.

Orders that lead to a new observation travel as reset options, so that the observation comes through the arena.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any


class NoteKey(Enum):
    """The key of a `Note` in a slot's info. The vector removes it again; it differs from every key of a task."""

    NOTE = "note"


NOTE: Any = NoteKey.NOTE


class Nothing(Enum):
    """Marks a value that is not given, where None is a valid value."""

    NOTHING = "nothing"


NOTHING: Any = Nothing.NOTHING


@dataclass(frozen=True)
class NextTask:
    """Move on to the sampler's next task."""

    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ResetSampler:
    """Reset the sampler and take its first task."""


@dataclass(frozen=True)
class Stay:
    """Change nothing: the order only makes the pool accept steps of the slot again."""


@dataclass(frozen=True)
class Fresh:
    """The program replaces a dead one: bring its sampler to the dead one's place, then follow `then`.

    Attributes:
        history: of the dead program's sampler.
        seed: for a stream without end, which cannot be replayed; None: the stream keeps the seed it was built with.
        then: the order to follow; None: take the next task.
    """

    history: History
    seed: int | None
    then: Any


@dataclass
class History:
    """The calls of a slot's sampler since it was built or last reset, which bring another sampler to the same place.

    Attributes:
        events: ("next", number of tasks), ("seed", seed) and ("reset", 0), in order.
    """

    events: list[tuple[str, int]] = field(default_factory=lambda: [("next", 1)])

    def handed(self, count: int = 1) -> None:
        """Record `count` calls for a next task; a count below 1 is ignored."""
        if count <= 0:
            return
        if self.events and self.events[-1][0] == "next":
            count += self.events.pop()[1]
        self.events.append(("next", count))

    def seeded(self, seed: int) -> None:
        """Record a seed."""
        self.events.append(("seed", seed))

    def reset(self) -> None:
        """Record a reset; the last seed stays."""
        self.events = [("seed", self.seed), ("reset", 0)] if self.seed is not None else [("reset", 0)]

    @property
    def tasks(self) -> int:
        """The number of calls for a next task."""
        return sum(count for what, count in self.events if what == "next")

    @property
    def seed(self) -> int | None:
        """The last seed; None: no seed was given."""
        return next((seed for what, seed in reversed(self.events) if what == "seed"), None)

    def copy(self) -> History:
        return History(list(self.events))


@dataclass
class Note:
    """The part of a result that a row of the arena cannot hold. NOTHING: the value is in the row.

    Attributes:
        observation: the observation; None: the sampler is exhausted.
        final: the terminal observation.
        reward: a reward that is not a number; the row has its mean.
        ends: (terminated, truncated), if they differ from the row's.
        done: True if the step is done, although its row does not end an episode.
        over: True if the task is over and the slot waits.
        held: True if the slot did nothing, because its task was over before.
        restarted: True if the observation is the first of a program that replaces a dead one.
        metrics: of the task that is done, if it has any.
        callback: observations of the callback sensors, if there are any.
        handed: after an order: the calls for a next task since the sampler was built or reset.
    """

    observation: Any = NOTHING
    final: Any = NOTHING
    reward: Any = NOTHING
    ends: tuple[bool, bool] | None = None
    done: bool = False
    over: bool = False
    held: bool = False
    restarted: bool = False
    metrics: Any = NOTHING
    callback: Any = NOTHING
    handed: int | None = None

    @property
    def empty(self) -> bool:
        """Return True if the note holds nothing."""
        values = self.observation, self.final, self.reward, self.metrics, self.callback
        flags = self.done, self.over, self.held, self.restarted
        return all(value is NOTHING for value in values) and self.ends is None and not any(flags)


class TaskOp(StrEnum):
    """Operations of a slot; see `TaskSlot.call`."""

    TASK_CALL = "call"
    SAMPLER_CALL = "call_sampler"
    TASK_ATTR = "attr"
    SAMPLER_ATTR = "sampler_attr"
    RENDER = "render"
    SEED = "seed"
    STATUS = "status"


@dataclass(frozen=True)
class Status:
    """The state of a slot.

    Attributes:
        has_task: False: the sampler is exhausted.
        over: True if the task is over and the slot waits.
        handed: calls for a next task since the sampler was built or reset.
        busy: nanoseconds spent in steps, including moving on to the next task.
        age: nanoseconds since the program was built.
    """

    has_task: bool
    over: bool
    handed: int
    busy: int
    age: int
