"""The full record of a step that ended an episode, and the knob that says what happens then.

While an episode runs, a step is Gymnasium's own tuple and nothing more is to be said. When it ends there is more: the
terminal observation must be kept although the row may already show the next episode. `settle` makes that record, for
environments and tasks alike.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple


class OnEnd(Enum):
    """What happens when an episode ends. The values are Gymnasium's AutoresetMode's."""

    SAME_STEP = "SameStep"  # the next episode's first observation comes with the ending step
    NEXT_STEP = "NextStep"  # the next step ignores its action and begins the next episode
    HOLD = "Disabled"  # nothing until it is reset


class StepResult(NamedTuple):
    """Attributes:
    observation: what the row shows: the terminal one, or (SAME_STEP) the next episode's first.
    reward: of the ending step.
    terminated, truncated: of the ending step.
    info: belongs to `observation`.
    final_observation, final_info: of the ended episode, where `observation` belongs to the next; else None.
    begins_next: will the slot's next step ignore its action and begin the next episode?
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
    """The record of a step that ended its episode; in SAME_STEP it calls `begin` for the next one."""
    if on_end is OnEnd.SAME_STEP:
        first, first_info = begin()
        return StepResult(first, reward, terminated, truncated, first_info, observation, info)
    return StepResult(observation, reward, terminated, truncated, info, begins_next=on_end is OnEnd.NEXT_STEP)
