"""Which modules a fork server imports for workers: installed packages alone, besides our own.

Workers import the modules that their pickles name: those of classes and functions by reference, and those in texts such
as ids and "module:attribute". The server imports installed modules, whose files lie in site-packages; an editable
install counts as the user's own. Each worker imports modules of the user's own, so that their code is never stale. But
the server imports the installed modules that they refer to, where the caller has loaded them.

This is a guess, and a wrong one does no harm. A module that no worker needs only takes time; one that was not found is
imported by each worker.
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
    """Return the modules that pickles name, each once."""
    parts = islice(chain.from_iterable(map(genops, pickles)), LOOKED_AT)
    texts = dict.fromkeys(said for _, said, _ in parts if isinstance(said, str))
    return list(dict.fromkeys(chain.from_iterable(map(_named_by, texts))))


def is_ours(name: str) -> bool:
    """Return True if a module belongs to this package."""
    return name.partition(".")[0] == "treadle"


def worth_preloading(names: Iterable[str]) -> list[str]:
    """Return the installed modules of those, and the installed modules that the user's own and ours refer to."""
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
    """Return the modules that were given to `set_forkserver_preload` of a multiprocessing context."""
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
    elif before.endswith(".py"):  # a file that a command has loaded
        path = os.path.abspath(before)
        yield from [name for name in list(sys.modules) if _namespace(name).get("__file__") == path]
    elif REFERENCE.fullmatch(text) is not None:
        yield before


def _namespace(name: str) -> dict[str, Any]:
    """Return the namespace of a loaded module.

    Its attributes are not read: a lazy module loads itself when one is, and some entries are not modules.
    """
    return getattr(sys.modules.get(name), "__dict__", {})


def _installed(top: str) -> bool:
    try:
        spec = sys.modules[top].__spec__ if top in sys.modules else find_spec(top)
        where = () if spec is None else (spec.origin, *(spec.submodule_search_locations or ()))
    except Exception:  # noqa: BLE001 - a foreign finder, or a module made here: the import itself reports the error
        return False
    return any(INSTALLED.search(str(each)) for each in where)


def _home(value: Any) -> str:
    """Return the module that a value of a namespace is, or comes from."""
    kind = type(value)  # not isinstance, which reads a proxy's __class__ and so runs foreign code
    if issubclass(kind, ModuleType):
        return str(value.__name__)
    return str(getattr(value if issubclass(kind, type | FunctionType) else kind, "__module__", None))
