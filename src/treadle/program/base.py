"""A slot's program. The pool's server drives it and knows nothing of environments or tasks beyond this.

While an episode runs, a step is Gymnasium's own tuple. At its end the terminal observation must be kept, while the row
may already show the next episode. `settle` makes that record, for environments and tasks alike.

Treadle's own infos of a step are kept apart from the program's until the caller gets both, so the two are never
confused. Then they share one dict: Treadle's stand under the documented names, and a program's info under one of these
names is moved (`own_names`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import gymnasium as gym


@dataclass(frozen=True)
class Description:
    """A slot's description of itself when it is built.

    Attributes:
        observation_space, action_space: None for programs that are only streamed or called.
        finals: True if the slot moves on within the step that ends an episode, so that rows for terminal observations
            are needed.
        begins_next: True if the step after an episode's end begins the next episode, unless the slot has moved on
            already. False: the slot waits for a reset.
        begun: True if the first episode begins when the program is built; the program's own `begun` is then True, too.
        metadata: picklable values for the face.
        numpy_integers: True if Discrete actions should be NumPy's integers. They are if all slots of a pool want it.
    """

    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    finals: bool = False
    begins_next: bool = True
    begun: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    numpy_integers: bool = False


class StreamControl(Protocol):
    """Calls that a streaming program makes between steps."""

    def stopped(self) -> bool:
        """Return True if the stream should end at once."""

    def resets(self, episode: int) -> None:
        """Note that only this episode is made from now on, its reset first, so that a death can be placed."""

    def begins(self) -> None:
        """Note that the first step is next. From now on `stopped` is asked once between two steps, and counts them."""

    def plays(self, episode: int, steps: int) -> None:
        """Note that step `steps` + 1 of this episode is next, where several episodes are made at once."""

    def ends(self) -> None:
        """Note that the episode, or the step of `plays`, is made."""


def _no_steps(action: Any) -> Any:
    raise TypeError("this program does not step")


class Program:
    """Base of programs. A subclass overrides the methods that its faces use.

    `step` may be an instance attribute that is rebound while running (an env's own bound method, say). The server reads
    it again after `begin` and after every episode's end, and calls it in its tightest loop.
    """

    step: Callable[[Any], tuple[Any, Any, Any, Any, dict[str, Any]]] = staticmethod(_no_steps)
    begun = False  # has its first episode begun with its being built?
    begins_next_now: bool | None = None
    """Whether the next step begins an episode, after a call that has changed the state. The server sets it to None."""

    def share(self, arena: Any, words: Any) -> None:
        """Take the pool's memory, once, if the worker is a process: requests may then refer to it.

        `words` belong to the worker. A program with many items for one request writes 1 + the number of the present
        item to `words[wire.line.ITEM]`. So the error of the worker's death names the item.
        """

    def describe(self) -> Description:
        return Description()

    def begin(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, and return its first observation and info. Raises TypeError unless a subclass can."""
        raise TypeError(f"{type(self).__name__} cannot be reset")

    def ended(self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]) -> Any:
        """Return the `StepResult` of a step that ended its episode. Raises TypeError unless a subclass can."""
        raise TypeError(f"{type(self).__name__} has no episodes")

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a named operation and return its picklable result."""
        return getattr(self, name)(*args, **kwargs)

    def hands_over(self, name: str, args: tuple[Any, ...]) -> bool:
        """Return True if, in the caller's own process, the caller gets this result itself and not a copy."""
        return False

    def stream(self, order: Any, control: StreamControl) -> Iterator[Any]:
        """Yield picklable results until the order is done or `control.stopped()`.

        A returned result that is not None travels with the end of the stream. Raises TypeError unless a subclass can.
        """
        raise TypeError(f"{type(self).__name__} cannot stream")

    def record(self, recorder: Any, lane: int) -> None:
        """Have the program's calls timed, besides steps, as a trace begins (`worker.recorder.Recorder.swap`)."""
        recorder.swap(lane, "reset", self, "begin")

    def close(self) -> None:
        """Release what the slot holds. Called once."""


class OnEnd(Enum):
    """The slot's behaviour when an episode ends. The values are Gymnasium's AutoresetMode's."""

    SAME_STEP = "SameStep"  # the next episode's first observation comes with the ending step
    NEXT_STEP = "NextStep"  # the next step ignores its action and begins the next episode
    HOLD = "Disabled"  # nothing until it is reset


class StepResult(NamedTuple):
    """The record of a step that ends an episode.

    Attributes:
        observation: for the row: the terminal one, or (SAME_STEP) the next episode's first.
        reward: of the ending step.
        terminated, truncated: of the ending step.
        info: belongs to `observation`.
        final_observation, final_info: of the ended episode, if `observation` belongs to the next one; else None.
        begins_next: True if the slot's next step ignores its action and begins the next episode.
    """

    observation: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    final_observation: Any = None
    final_info: dict[str, Any] | None = None
    begins_next: bool = False


def settle(
    on_end: OnEnd,
    begin: Callable[[], tuple[Any, dict[str, Any]]],
    observation: Any,
    reward: Any,
    terminated: bool,
    truncated: bool,
    info: dict[str, Any],
) -> StepResult:
    """Return the record of a step that ended its episode; in SAME_STEP, `begin` is called for the next one."""
    if on_end is OnEnd.SAME_STEP:
        first, first_info = begin()
        return StepResult(first, reward, terminated, truncated, first_info, observation, info)
    return StepResult(observation, reward, terminated, truncated, info, begins_next=on_end is OnEnd.NEXT_STEP)


def own_names(info: Mapping[str, Any], own: frozenset[str], whose: str) -> dict[str, Any]:
    """Return a copy of a program's info without Treadle's `own` names: a value under NAME moves to `whose`_NAME."""
    out = dict(info)
    if not own.isdisjoint(out):
        for name in own.intersection(out):
            kept = kept_as(name, whose, out)
            out[kept] = out.pop(name)
    return out


def kept_as(name: str, whose: str, taken: Mapping[str, Any]) -> str:
    """Return the name under which a program's value is kept: `name`, with `whose`_ before it until it is free."""
    while name in taken:
        name = f"{whose}_{name}"
    return name
