"""Copies of what environments hand out: they are the taker's own, whatever an environment does to its arrays later."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

from treadle import pickling
from treadle.wire.info_rows import NUMBERS
from treadle.wire.messages import shown

_FINAL = (type(None), bool, int, float, str, bytes, np.generic)


def portable(action: Any) -> Any:
    """The action itself when it is small and plain, else its repr."""
    if isinstance(action, _FINAL):
        return action
    if isinstance(action, np.ndarray) and action.nbytes <= 4096 and not action.dtype.hasobject:
        return action.copy()
    return shown(action)


def checked_info(info: Any) -> Any:
    """An info as the environment returned it, not empty. Raises TypeError for what is no dict, and ValueError for a
    dict that holds itself, which nobody could lay out in columns."""
    if type(info) is not dict and not isinstance(info, Mapping):
        raise TypeError(f"an info must be a dict, got {type(info).__name__}")
    for value in info.values():
        if isinstance(value, dict):
            _check_nested(info, set(), set())
            break
    return info


def _check_nested(info: Any, above: set[int], sound: set[int]) -> None:
    """`above`: dicts that hold this one; `sound`: those that are known to be so."""
    if id(info) in above:
        raise ValueError("an info must not hold itself")
    above.add(id(info))
    for value in info.values():
        if isinstance(value, dict) and id(value) not in sound:
            _check_nested(value, above, sound)
    above.remove(id(info))
    sound.add(id(info))


def snapshot(value: Any) -> Any:
    """A copy that later steps of the env cannot change: what pickling gives for free between processes."""
    try:
        return copied(value)
    except RecursionError:  # it holds itself
        return _deeply_copied(value)


def numbers_copied(infos: Mapping[int, Any]) -> dict[int, Any] | None:
    """Copies of infos that are dicts of numbers; None where one is more than that."""
    copies, are_numbers = {}, NUMBERS.issuperset
    for i, info in infos.items():
        if type(info) is not dict or not are_numbers(map(type, info.values())):
            return None
        copies[i] = info.copy()
    return copies


def copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: item if type(item) in _FINAL else copied(item) for key, item in value.items()}
    if isinstance(value, _FINAL):
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.copy()
    return _deeply_copied(value)


def _deeply_copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except (Exception, SystemExit):  # noqa: BLE001 - a foreign __deepcopy__; between processes it would be pickled
        return pickle.loads(pickling.dumps(value))
