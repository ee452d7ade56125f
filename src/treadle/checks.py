"""Checks of arguments. Each raises UsageError, which names the argument, and its value or the probable name."""

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

MOST = 2**63 - 1  # the largest count; other modules use it for "no limit"
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
NEAR = 0.75  # difflib's ratio from which an environment's argument counts as a misspelt option of ours


def check_whole(least: int = 1, most: int = MOST, /, *, none: bool = True, **given: Any) -> None:
    """Raise UsageError, by its name, for a value that is not a whole number from `least` to `most`.

    `none`: True: None is allowed, too.
    """
    for name, value in given.items():
        if none and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            some = ", or None" if none else ""
            raise UsageError(f"{name} must be a whole number of at least {least}{some}, got {value!r}")
        if int(value) > most:
            raise UsageError(f"{name} can be {most} at most, got {value!r}")


def check_workers(workers: Any, *, none: bool = True) -> None:
    """Raise UsageError unless `workers` is a whole number of at least 1, or None with `none`."""
    try:
        check_whole(none=none, workers=workers)
    except UsageError as error:
        hint = ": WorkerOptions(backend='serial') steps everything in the caller" if workers == 0 else ""
        raise UsageError(f"{error}{hint}") from None


def check_seed(seed: Any, name: str = "seed") -> None:
    """Raise UsageError for a negative number, which environments would refuse in the middle of a reset of many."""
    if isinstance(seed, Integral) and seed < 0:
        raise UsageError(f"{name} must not be negative, got {seed}")


def several(name: str, given: Any, fits: Callable[[Any], bool], what: str) -> tuple[Any, ...]:
    """Return `given` as a tuple. Raises UsageError unless it is a sequence whose items all pass `fits`.

    `what`: the items in words, for the message.
    """
    each = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else None
    if each is None or not all(map(fits, each)):
        raise UsageError(f"{name} is a sequence of {what}, got {given!r}")
    return each


def path_of(name: str, given: Any) -> Path:
    """Return `given` as a path. Raises UsageError for "" and for objects that are not paths."""
    try:
        if given != "":  # which would be the current directory
            return Path(given)
    except TypeError:
        pass
    raise UsageError(f"{name} is a path, got {given!r}")


def check_seconds(name: str, seconds: Any, *, none: bool = False, zero: bool = False) -> None:
    """Raise UsageError unless `seconds` is a positive number, 0 with `zero`, or None with `none`."""
    if none and seconds is None:
        return
    number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    if not (number and (float(seconds) > 0 or (zero and seconds == 0))):
        some = " or None" if none else ""
        raise UsageError(f"{name} must be {'at least' if zero else 'more than'} 0 seconds{some}, got {seconds!r}")


def as_bytes(given: str) -> int:
    """Return the bytes of a text such as "2GB" (10^9) or "1.5 GiB" (2^30). Raises UsageError for any other text."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) *([kmgt]i?)?b?", given.strip().lower())
    size = float(found[1]) * UNITS[found[2] or ""] if found else 0.0
    if size < 1 or size != size // 1:
        raise UsageError(f"recycle_after is a number of episodes or a text such as '2GB' or '500 MiB', got {given!r}")
    return int(size)


def ends_of(recycle_after: Any) -> tuple[int | None, int | None]:
    """Return the episodes, and the bytes of private memory, after which a worker is replaced; None: no such end.

    recycle_after: a whole number of episodes, a text with a size, a tuple of both, or None. Raises UsageError.
    """
    given = recycle_after if isinstance(recycle_after, tuple) else (recycle_after,)
    sizes = [as_bytes(each) for each in given if isinstance(each, str)]
    counts = [each for each in given if not isinstance(each, str)]
    if len(sizes) > 1 or len(counts) > 1:
        raise UsageError(f"recycle_after takes one number of episodes and one size, got {recycle_after!r}")
    check_whole(recycle_after=counts[0] if counts else None)
    return counts[0] if counts else None, sizes[0] if sizes else None


def parameters_of(function: Any) -> list[inspect.Parameter] | None:
    """Return the parameters of a function or a class; None if its signature cannot be read."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


class NoSuchOption(UsageError, TypeError):
    """An unknown keyword argument; a TypeError, as Python's own error is."""


def check_names(face: Callable[..., Any], given: Iterable[str], taken: Collection[str] = ()) -> None:
    """Raise NoSuchOption for the first keyword argument of `face`, a function or a class, that is not `taken`.

    The error names `face` and the nearest name among its arguments.
    """
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
    """Raise NoSuchOption for a wrong keyword argument that would go to an environment's constructor, before it is made.

    Refused are names of earlier versions, fields of objects that `face` takes, and names that are almost one of `ours`.

    Args:
        face: the name of the function or class that the user called.
        make: makes the environment; names in its signature are not refused.
        given: the keyword arguments.
        ours: options of `face`.
        otherwise: the end of the message: another way to pass an argument to the constructor.
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
    """Return name -> the way to write it, for keyword arguments and for the fields of objects among them."""
    names = {each: f"{each}=" for each in taken}
    fields = gone.FIELDS.items()
    return names | {each: f"{keyword}={kind}({each}=...)" for each, (keyword, kind) in fields if keyword in names}


def _misplaced(face: str, name: str, written: Mapping[str, str]) -> str | None:
    """Return the error's text for a name of an earlier version or a field of an object; None: it is neither."""
    inside = f"{face}() takes {name} in an object: {written[name]}" if name in gone.FIELDS.keys() & written else None
    return gone.instead(f"{name}=") or inside


def _nearest(name: str, written: Mapping[str, str], near: float = 0.6) -> str:
    """Return the nearest name to one that is not `written`, in the way to write it; "" if none is near."""
    meant = gone.KNOWN.get(name, "")
    found = [meant] if meant in written else difflib.get_close_matches(name, written, 1, near)
    return written[found[0]] if found else ""


Face = TypeVar("Face", bound=Callable[..., Any])


def suggests(face: Face) -> Face:
    """Decorate a function or dataclass, so that its error for an unknown keyword argument names the nearest one.

    See `check_names`.
    """
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
    """Return the names of a function's arguments, or those of a class's constructor.

    If a constructor passes keyword arguments on, the arguments of its bases' constructors are included.
    """
    found: set[str] = set()
    for one in [vars(each).get("__init__") for each in face.__mro__] if isinstance(face, type) else [face]:
        given = inspect.signature(one).parameters.values() if inspect.isfunction(one) else ()
        found.update(each.name for each in given if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))
        if given and not any(each.kind is each.VAR_KEYWORD and each.name != "unknown" for each in given):
            break
    return found - {"self"}
