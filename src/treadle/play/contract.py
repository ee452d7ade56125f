"""The contract of `reset` and `step`: what an environment must return, and errors about other returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from treadle.errors import TreadleError, attributes_of

_PLAIN = (int, float, np.bool_, np.integer, np.floating)
_MOST = int(np.finfo(np.float64).max)


class BadStep(TreadleError, TypeError):
    """The environment's reset or step returned what they must not. `step`: which one, from 1; None: the present one."""

    step: int | None = None


def in_step(error: BaseException, step: int | None, episode: int | None = None) -> None:
    """Note at an error the step that raised it (from 1; 0: the reset; None: unknown), and the episode, for its report.

    An earlier note stands, as it was made nearer to the error. The own step of a BadStep is noted in place of `step`.
    `episode`: its number; None: unknown, and not noted.
    """
    if type(error) is BadStep and error.step is not None:
        step = error.step
    placed = attributes_of(error)
    placed.setdefault("treadle_step", step)
    if episode is not None:
        placed.setdefault("treadle_episode", episode)


def numbers(rewards: list[Any]) -> np.ndarray:
    """Return rewards as float64[len(rewards)]. Raises `BadStep` for a reward that is not a real number, or too large.

    Types are checked for a whole episode at once, which is cheap.
    """
    if not all(issubclass(kind, _PLAIN) for kind in set(map(type, rewards))):
        for step, reward in enumerate(rewards, 1):
            scalar = isinstance(reward, np.ndarray) and reward.shape == () and reward.dtype.kind in "biuf"
            if not scalar and not isinstance(reward, _PLAIN):
                raise BadStep(
                    f"step returned the reward {shown(reward)}; a reward is a real number: float(...), or a NumPy "
                    "scalar",
                    step=step,
                )
    try:
        return np.array(rewards, np.float64)
    except OverflowError:
        step = next(step for step, reward in enumerate(rewards, 1) if isinstance(reward, int) and abs(reward) > _MOST)
        raise BadStep("step returned a reward that is too large for a float64", step=step) from None


def flag(name: str, value: Any, step: int) -> bool:
    """Return terminated or truncated of a step as a bool. Raises `BadStep` unless it is a bool, 0 or 1.

    `name`: which one; `step`: the number of the step.
    """
    if value is True or value is False:
        return value
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if isinstance(value, np.bool_) or (isinstance(value, int | np.integer) and value in (0, 1)):
        return bool(value)
    raise BadStep(f"step returned {name} = {shown(value)}; it is True or False", step=step)


def first_observation(result: Any) -> tuple[Any, dict[str, Any]]:
    """Return the result of a reset as (observation, info). Raises `BadStep` for another form."""
    if isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], Mapping):
        return result[0], dict(result[1])
    raise BadStep(f"reset must return (observation, info), and info is a dict; it returned {_outline(result)}")


def stepped(result: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """Return the result of a step as its five values. Raises `BadStep` for another form."""
    if isinstance(result, tuple | list) and len(result) == 5 and isinstance(result[4], Mapping):
        return tuple(result)  # type: ignore[return-value]  # of five, as was just seen
    what = "step must return (observation, reward, terminated, truncated, info), and info is a dict; it returned "
    what += _outline(result)
    if isinstance(result, tuple | list) and len(result) == 4:
        what += "; (observation, reward, done, info) is the interface of gym before 0.26"
    raise BadStep(what)


def _outline(result: Any) -> str:
    """Return a text such as "4 values (ndarray, float, bool, dict)", or the type of a single value."""
    if not isinstance(result, tuple | list):
        return f"one {type(result).__name__}" + (f" of shape {result.shape}" if isinstance(result, np.ndarray) else "")
    return f"{len(result)} values ({', '.join(type(each).__name__ for each in result)})"


def shown(value: Any) -> str:
    """Return a value in a few words: its text and its type."""
    text = " ".join(repr(value).split())
    text = text if len(text) <= 60 else text[:57] + "..."
    if isinstance(value, np.ndarray):
        return f"{text} (an array of shape {value.shape}, {value.dtype})"
    return text if value is None else f"{text} (a {type(value).__name__})"
