"""Orders of a task vector to a slot besides steps, and a slot's answers besides rows.

Orders that lead to a new observation travel as reset options, so that the observation comes through the arena.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any


class NoteKey(Enum):
    """Under which a slot's info has its `Note`, which the vector takes out again. No task's key equals it."""

    NOTE = "note"


NOTE: Any = NoteKey.NOTE


class Nothing(Enum):
    """In place of a value that is not given, where None would be one."""

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
    """Change nothing: only the pool is to know that the slot may be stepped."""


@dataclass(frozen=True)
class Fresh:
    """This program stands in a dead one's place: go to where that one was, then follow `then`.

    Attributes:
        history: what the dead one's sampler had been through.
        seed: for a stream without end, which cannot be replayed: None: it goes on with what it was built with.
        then: what is asked for; None: the next task.
    """

    history: History
    seed: int | None
    then: Any


@dataclass
class History:
    """What a slot's sampler has been through since it was built, or reset last: enough to bring another one there.

    Attributes:
        events: ("next", how many tasks), ("seed", seed) and ("reset", 0), in order.
    """

    events: list[tuple[str, int]] = field(default_factory=lambda: [("next", 1)])

    def handed(self, count: int = 1) -> None:
        """It was asked for tasks; for none, where the count is not above 0."""
        if count <= 0:
            return
        if self.events and self.events[-1][0] == "next":
            count += self.events.pop()[1]
        self.events.append(("next", count))

    def seeded(self, seed: int) -> None:
        """It was given a seed."""
        self.events.append(("seed", seed))

    def reset(self) -> None:
        """It was reset; the last seed stays."""
        self.events = [("seed", self.seed), ("reset", 0)] if self.seed is not None else [("reset", 0)]

    @property
    def tasks(self) -> int:
        """How many tasks it was asked for."""
        return sum(count for what, count in self.events if what == "next")

    @property
    def seed(self) -> int | None:
        """The last seed that it was given."""
        return next((seed for what, seed in reversed(self.events) if what == "seed"), None)

    def copy(self) -> History:
        return History(list(self.events))


@dataclass
class Note:
    """The part of a result that a row of the arena cannot carry. NOTHING: the row says it.

    Attributes:
        observation: the observation itself; None: there is no task any more.
        final: the terminal observation itself.
        reward: the reward itself, where it is no number: the row has the mean.
        ends: (terminated, truncated), where they are not what the row says.
        done: is the step done, though its row ends nothing?
        over: is the task over, and is nothing moving on by itself?
        held: was nothing done, because the task was over before?
        restarted: does a fresh program show its first observation?
        metrics: of the task that is done, if it has any.
        callback: what callback sensors showed then, if there are any.
        handed: after an order: how many tasks the sampler was asked for since it was built, or reset.
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
        """Return True if it holds nothing."""
        values = self.observation, self.final, self.reward, self.metrics, self.callback
        flags = self.done, self.over, self.held, self.restarted
        return all(value is NOTHING for value in values) and self.ends is None and not any(flags)


class Ask(StrEnum):
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
    """Attributes:
    has_task: False: the sampler is exhausted.
    over: is the task over, and waits?
    handed: tasks that the sampler was asked for since it was built, or reset.
    busy: nanoseconds spent in steps, in moving on included.
    age: nanoseconds since the program was built.
    """

    has_task: bool
    over: bool
    handed: int
    busy: int
    age: int
