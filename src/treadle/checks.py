"""Checks of arguments: each raises UsageError, which names the argument and tells what was given, or what was meant."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from treadle import gone
from treadle.errors import UsageError

MOST = 2**63 - 1  # of anything that is counted: what says "no limit" elsewhere, too
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
NEAR = 0.75  # how alike a name of ours and one of an environment's are that is meant for it: difflib's ratio


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


def as_bytes(given: str) -> int:
    """Bytes of a text such as "2GB" (10^9) or "1.5 GiB" (2^30). Raises UsageError."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) *([kmgt]i?)?b?", given.strip().lower())
    size = float(found[1]) * UNITS[found[2] or ""] if found else 0.0
    if size < 1 or size != size // 1:
        raise UsageError(f"recycle_after is a number of episodes or a text such as '2GB' or '500 MiB', got {given!r}")
    return int(size)


def parameters_of(function: Any) -> list[inspect.Parameter] | None:
    """What a function, or a class, is called with; None where it does not say."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


class NoSuchOption(UsageError, TypeError):
    """An option that there is none of, as Python's own error for an unknown argument."""


def check_names(face: Callable[..., Any], given: Iterable[str], taken: Collection[str] = ()) -> None:
    """Raises NoSuchOption for a keyword argument that `face`, a function or a class, hands on and that is not `taken`
    there. The error names the face, and of all that it takes the nearest name."""
    for name in given:
        if name not in taken:
            written = _written((*taken, *arguments_of(face)))
            earlier = (gone.instead(f"{each.__name__}({name}=)") for each in getattr(face, "__mro__", (face,)))
            if text := next(filter(None, earlier), None) or _misplaced(face.__name__, name, written):
                raise NoSuchOption(text)
            hint = f"; did you mean {near}?" if (near := _nearest(name, written)) else ""
            objects = {kind: keyword for keyword, kind in gone.FIELDS.values()}
            if face.__name__ in objects and name in gone.BESIDE:
                hint = f": it stands beside {objects[face.__name__]}=, not in it"
            elif not hint and name in gone.OF_SOME:
                hint = f": it is an argument of {gone.OF_SOME[name]}"
            raise NoSuchOption(f"{face.__name__}() got an unexpected keyword argument {name!r}{hint}")


def check_not_ours(face: str, make: Any, given: Iterable[str], ours: Collection[str], otherwise: str) -> None:
    """Raises NoSuchOption for a keyword argument that would go to an environment's constructor, before one is built.
    Refused are those that are gone, fields of objects that `face` takes, and names that are nearly one of `ours`.

    `make`: what makes the environment; names of its signature are left to it. `otherwise`: which way one of the
    constructor's own goes there all the same.
    """
    written = _written(ours)
    theirs = {each.name for each in parameters_of(make) or ()}
    for name in given:
        if name not in theirs:
            text = _misplaced(face, name, written)
            if not text and (near := _nearest(name, written, NEAR)):
                text = f"{face}() got an unexpected keyword argument {name!r}; did you mean {near}?"
            if text:
                raise NoSuchOption(text + otherwise)


def _written(taken: Iterable[str]) -> dict[str, str]:
    """How each of these keyword arguments is written, and each field of an object among them."""
    names = {each: f"{each}=" for each in taken}
    return names | {each: how for each in gone.FIELDS if (how := gone.field_of(each, names))}


def _misplaced(face: str, name: str, written: Mapping[str, str]) -> str | None:
    """The sentence that refuses a name that is gone or a field of an object; None: it is neither."""
    inside = f"{face}() takes {name} in an object: {written[name]}" if name in gone.FIELDS.keys() & written else None
    return gone.instead(f"{name}=") or inside


def _nearest(name: str, written: Mapping[str, str], near: float = 0.6) -> str:
    """What may be meant by a name that is not `written`, as it is written; "" where nothing is."""
    meant = gone.KNOWN.get(name, "")
    found = [meant] if meant in written else difflib.get_close_matches(name, written, 1, near)
    return written[found[0]] if found else ""


Face = TypeVar("Face", bound=Callable[..., Any])


def suggests(face: Face) -> Face:
    """The function or dataclass, whose error of an unknown keyword argument names the nearest: see `check_names`."""
    made = face.__init__ if isinstance(face, type) else face  # type: ignore[misc]
    taken = arguments_of(face)

    @functools.wraps(made)
    def call(*args: Any, **given: Any) -> Any:
        check_names(face, given, taken)
        return made(*args, **given)

    if not isinstance(face, type):
        return call  # type: ignore[return-value]
    face.__init__ = call  # type: ignore[misc]
    return face


def arguments_of(face: Callable[..., Any]) -> set[str]:
    """The names of the arguments of a function; or of a class, those of its bases' constructors included that its own
    hands on."""
    found: set[str] = set()
    for one in [vars(each).get("__init__") for each in face.__mro__] if isinstance(face, type) else [face]:
        given = inspect.signature(one).parameters.values() if inspect.isfunction(one) else ()
        found.update(each.name for each in given if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))
        if given and not any(each.kind is each.VAR_KEYWORD and each.name != "unknown" for each in given):
            break
    return found - {"self"}
