"""Which modules a fork server imports for workers: installed packages alone, besides our own.

What the workers' pickles name is what they import: the modules of classes and functions by reference, and those that
texts name, such as ids and "module:attribute". An installed module (by where its file lies: in site-packages; an
editable install is the user's own) is the server's. A module of the user's own is imported by each worker, so that its
code is never stale; but the installed modules that it refers to, where the caller has loaded it, are the server's.

It is a guess, and a wrong one does no harm: a module that nobody needs takes time, one that was not found is imported
by each worker.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import chain, islice
from pickletools import genops
from types import FunctionType, ModuleType
from typing import Any

from gymnasium.envs.registration import registry

from treadle.packages import package_of

REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_][\w./-]*")  # module:attribute, module:Id-v0
INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
LOOKED_AT = 200_000  # parts of pickles: a tenth of a second
NEVER = frozenset({"__main__", "__mp_main__", "h5py"})


def named(pickles: Iterable[bytes]) -> list[str]:
    """The modules that pickles name, each once."""
    parts = islice(chain.from_iterable(map(genops, pickles)), LOOKED_AT)
    texts = dict.fromkeys(said for _, said, _ in parts if isinstance(said, str))
    return list(dict.fromkeys(chain.from_iterable(map(_named_by, texts))))


def is_ours(name: str) -> bool:
    """Is it a module of this package?"""
    return name.partition(".")[0] == "treadle"


def worth_preloading(names: Iterable[str]) -> list[str]:
    """The installed modules among those, and what modules of the user's own among them refer to; ours count as such."""
    found = []
    seen = dict.fromkeys(names)
    waiting = list(seen)
    for name in waiting:
        top = name.partition(".")[0]
        if top in NEVER or top in sys.stdlib_module_names:
            continue
        if is_ours(name) or _installed(top):
            found.append(name)
        else:
            homes = [home for home in map(_home, list(_namespace(name).values())) if home in sys.modules]
            new = [home for home in dict.fromkeys(homes) if home not in seen]
            seen |= dict.fromkeys(new)
            waiting += new
    return found


def named_by_multiprocessing() -> list[str]:
    """What the program has given to `set_forkserver_preload` of a multiprocessing context."""
    theirs = sys.modules.get("multiprocessing.forkserver")
    return list(getattr(getattr(theirs, "_forkserver", None), "_preload_modules", ()))


def _named_by(text: str) -> Iterator[str]:
    spec = registry.get(text.rpartition(":")[2])
    makers: list[Any] = [] if spec is None else [spec, *spec.additional_wrappers]
    for entry in [each.entry_point for each in makers]:
        yield entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "builtins")
    if (package := package_of(text)) is not None:
        yield package
    before = text.rpartition(":")[0]
    if text in sys.modules:
        yield text
    elif before.endswith(".py"):  # that a command has loaded
        path = os.path.abspath(before)
        yield from [name for name in list(sys.modules) if _namespace(name).get("__file__") == path]
    elif REFERENCE.fullmatch(text) is not None:
        yield before


def _namespace(name: str) -> dict[str, Any]:
    """Of a loaded module. Not by attributes: some modules load themselves when asked for one; some are no modules."""
    return getattr(sys.modules.get(name), "__dict__", {})


def _installed(top: str) -> bool:
    try:
        spec = sys.modules[top].__spec__ if top in sys.modules else find_spec(top)
        where = () if spec is None else (spec.origin, *(spec.submodule_search_locations or ()))
    except Exception:  # noqa: BLE001 - a foreign finder, or a module that was made here: imports tell what is wrong
        return False
    return any(INSTALLED.search(str(each)) for each in where)


def _home(value: Any) -> str:
    """The module that a value of a namespace is, or comes from."""
    kind = type(value)  # not isinstance, which asks a proxy for its __class__: others' code
    if issubclass(kind, ModuleType):
        return str(value.__name__)
    return str(getattr(value if issubclass(kind, type | FunctionType) else kind, "__module__", None))
