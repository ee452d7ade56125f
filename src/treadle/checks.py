"""Checks of arguments: each raises UsageError, which names the argument and tells what was given."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from treadle.errors import UsageError

MOST = 2**63 - 1  # of anything that is counted: what says "no limit" elsewhere, too
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def check_whole(least: int = 1, most: int = MOST, /, *, none: bool = True, **given: Any) -> None:
    """Raises UsageError for what is no whole number from `least` to `most`, nor None where that may be; by its name."""
    for name, value in given.items():
        if none and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            some = ", or None" if none else ""
            raise UsageError(f"{name} must be a whole number of at least {least}{some}, got {value!r}")
        if int(value) > most:
            raise UsageError(f"{name} can be {most} at most, got {value!r}")


def check_workers(workers: Any, *, none: bool = True) -> None:
    """Raises UsageError for what is no number of workers, nor None where that may be."""
    try:
        check_whole(none=none, workers=workers)
    except UsageError as error:
        hint = ": WorkerOptions(backend='serial') steps everything in the caller" if workers == 0 else ""
        raise UsageError(f"{error}{hint}") from None


def check_seed(seed: Any, name: str = "seed") -> None:
    """Raises UsageError for a negative number: environments would refuse it, in the middle of a reset of many."""
    if isinstance(seed, Integral) and seed < 0:
        raise UsageError(f"{name} must not be negative, got {seed}")


def several(name: str, given: Any, fits: Callable[[Any], bool], what: str) -> tuple[Any, ...]:
    """They as a tuple. Raises UsageError, by its name, for what is no several of what fits; `what`: these, in words."""
    each = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else None
    if each is None or not all(map(fits, each)):
        raise UsageError(f"{name} is a sequence of {what}, got {given!r}")
    return each


def path_of(name: str, given: Any) -> Path:
    """It as a path. Raises UsageError for what is none."""
    try:
        if given != "":  # which would be the current directory
            return Path(given)
    except TypeError:
        pass
    raise UsageError(f"{name} is a path, got {given!r}")


def check_seconds(name: str, seconds: Any, *, none: bool = False, zero: bool = False) -> None:
    """Raises UsageError for what is no time to wait."""
    if none and seconds is None:
        return
    if (
        not isinstance(seconds, Real)
        or isinstance(seconds, bool)
        or not (float(seconds) > 0 or (zero and seconds == 0))
    ):
        some = " or None" if none else ""
        raise UsageError(f"{name} must be {'at least' if zero else 'more than'} 0 seconds{some}, got {seconds!r}")


def as_bytes(given: Any) -> int:
    """Bytes: a whole number of them, or a text such as "2GB" (10^9) or "1.5 GiB" (2^30). Raises UsageError."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) *([kmgt]i?)?b?", given.strip().lower()) if isinstance(given, str) else None
    size = float(found[1]) * UNITS[found[2] or ""] if found else given
    if isinstance(size, bool | str) or not isinstance(size, int | float) or not size >= 1 or size != size // 1:
        raise UsageError(f"memory_limit is a number of bytes or a text such as '2GB' or '500 MiB', got {given!r}")
    return int(size)


def parameters_of(function: Any) -> list[inspect.Parameter] | None:
    """What a function, or a class, is called with; None where it does not say."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
