"""The identity of an object: a digest of a function, class or object, by which a resumed run compares it.

A name is not enough: two lambdas have one name, and so have two networks of one class with different weights. The
digest is over the bytes that a worker would get (cloudpickle's). It leaves out the parts that differ between two runs
of one script. These are file and line of its code, cloudpickle's random marks of classes, and torch's addresses of
storages.
"""

from __future__ import annotations

import hashlib
import io
import platform
import re
from collections.abc import Mapping
from types import CodeType, FunctionType
from typing import Any

import cloudpickle
from gymnasium.envs.registration import EnvSpec

from treadle import pickling
from treadle.sample.named import Named

_MARK = re.compile(r"[0-9a-f]{32}")
_UNSTABLE = ("__firstlineno__", "__static_attributes__")


def digest_of(thing: Any) -> str | None:
    """32 hexadecimal digits; None for what is known by its text alone (a name, nothing).

    Raises:
        TypeError: when the object cannot be pickled, so that it cannot be compared.
    """
    if thing is None or isinstance(thing, str | Named):
        return None
    if isinstance(thing, EnvSpec):
        thing = vars(thing)
    out = io.BytesIO()
    try:
        _Canonical(out).dump(thing)
    except Exception as error:  # pickling runs foreign code, which raises what it likes
        raise TypeError(f"a {type(thing).__name__} cannot be compared: {error}") from error
    return hashlib.blake2b(out.getvalue(), digest_size=16).hexdigest()


def identities(**things: Any) -> dict[str, str | None]:
    """The digest of each; "" for what cannot be compared. Lists are taken member by member, under "name 0", ...

    "by" says which Python and cloudpickle made them: digests are comparable where that is the same.
    """
    by = f"python {platform.python_version()}, cloudpickle {cloudpickle.__version__}"
    found: dict[str, str | None] = {"by": by}
    for name, thing in things.items():
        members = {f"{name} {i}": each for i, each in enumerate(thing)} if isinstance(thing, list) else {name: thing}
        for key, member in members.items():
            try:
                found[key] = digest_of(member)
            except TypeError:
                found[key] = ""
    return found


def compared(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of objects whose `identities` differ, and of those that cannot be compared."""
    given = [name for name in now if name != "by" and (now[name] is not None or before.get(name) is not None)]
    if before.get("by") != now.get("by"):
        return [], given
    unknown = [name for name in given if "" in (before.get(name), now[name])]
    return [name for name in given if name not in unknown and before.get(name) != now[name]], unknown


class _Canonical(pickling.Pickler):
    """Writes what need not be read again. Instead of what varies it writes what it stands for."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            constants = tuple(sorted(map(repr, c)) if isinstance(c, frozenset) else c for c in obj.co_consts)
            names = obj.co_names, obj.co_varnames, obj.co_freevars, obj.co_cellvars
            counts = obj.co_argcount, obj.co_posonlyargcount, obj.co_kwonlyargcount, obj.co_flags
            return str, ("code", obj.co_code, constants, *names, *counts)
        if _is_tensor(obj):
            return str, ("tensor", str(obj.dtype), obj.detach().cpu().numpy())
        reduced = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and isinstance(reduced, tuple):
            code, space, *rest = reduced[1]
            space = {key: value for key, value in space.items() if key != "__file__"}
            return (reduced[0], (code, space, *rest), *reduced[2:])
        if isinstance(obj, type) and isinstance(reduced, tuple):
            made = tuple("" if isinstance(a, str) and _MARK.fullmatch(a) else a for a in reduced[1])
            state = reduced[2]
            if isinstance(state, tuple) and state and isinstance(state[0], dict):
                state = ({k: v for k, v in state[0].items() if k not in _UNSTABLE}, *state[1:])
            return (reduced[0], made, state, *reduced[3:])
        return reduced


def _is_tensor(obj: Any) -> bool:
    return type(obj).__module__.startswith("torch") and all(hasattr(obj, n) for n in ("detach", "cpu", "numpy"))
