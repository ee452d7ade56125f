"""Which modules workers are going to import: found while what they are made of is pickled.

A pickle names the module of every class, function and object that travels by reference, wherever it lies: in a partial,
in a closure, among the globals of a function that travels by value. So whoever pickles for workers sees them all, and
no face has to tell which constructors, policies, agents, samplers or wrappers it was given. What is named by text is
looked for where such names stand, in attributes, arguments and the constants of functions by value: ids of Gymnasium's
registry, "module:attribute" and "file.py:attribute" (of a file, what it imports itself). Statements of import in
functions by value count too, for such a function makes an environment more often than not.

It is a guess, and a wrong one does no harm: a module that nobody needs takes time, one that was not found is imported
by each worker.
"""

from __future__ import annotations

import ast
import dis
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from gymnasium.envs.registration import EnvSpec, registry

from treadle import pickling
from treadle.packages import package_of

REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_][\w./-]*")  # module:attribute, module:Id-v0
IN_FILE = re.compile(r"(.+\.py):[A-Za-z_][\w.]*")
LONGEST = 300  # characters of a text that names something
DEPTH = 4  # of containers in which texts are looked for
OWN = "treadle"
NOWHERE = frozenset({"__main__", "__mp_main__"})


def dumps(value: Any) -> tuple[bytes, tuple[str, ...]]:
    """`value` pickled for a worker, and the modules that are going to be imported there, in that order.

    Raises whatever pickling raises.
    """
    with io.BytesIO() as file:
        finder = _Finder(file)
        finder.dump(value)
        return file.getvalue(), tuple(finder.found)


@dataclass(frozen=True)
class Modules:
    """What a fork server is to import, in that order: our own modules, which are always the same, and users'."""

    ours: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


def worth_preloading(names: Iterable[str], *, asked: bool = False) -> Modules:
    """Those of the names that are, each once. The caller's script is left out, and unless the user has `asked` for them
    the standard library, and what cannot be imported anywhere else, such as modules that were made here."""
    own: dict[str, None] = {}
    others: dict[str, None] = {}
    for name in names:
        top = name.partition(".")[0]
        if top == OWN:
            own[name] = None
        elif name not in NOWHERE and (asked or (top not in sys.stdlib_module_names and _importable(name, top))):
            others[name] = None
    return Modules(tuple(own), tuple(others))


def named_by_multiprocessing() -> list[str]:
    """What the program has given to `set_forkserver_preload` of a multiprocessing context."""
    theirs = sys.modules.get("multiprocessing.forkserver")
    return list(getattr(getattr(theirs, "_forkserver", None), "_preload_modules", ()))


def _importable(name: str, top: str) -> bool:
    here = sys.modules.get(name)
    if here is not None and getattr(here, "__spec__", None) is None:
        return False
    for finder in sys.meta_path:
        try:
            if finder.find_spec(top, None) is not None:
                return True
        except Exception:  # noqa: BLE001, S112 - a foreign finder: the import itself will tell what is wrong with it
            continue
    return False


class _Finder(pickling.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.found: dict[str, None] = {}

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, ModuleType):
            self._add(obj.__name__)
        elif isinstance(obj, type | FunctionType | BuiltinFunctionType):
            if reduced is NotImplemented:
                self._add(getattr(obj, "__module__", None))
            elif isinstance(obj, FunctionType):
                self._look_into(obj)
        elif isinstance(obj, EnvSpec):
            self._specified(obj)
        elif isinstance(obj, partial):
            self._named([obj.args, obj.keywords])
        elif (attributes := getattr(obj, "__dict__", None)) is not None:
            self._named(attributes)
            imports = attributes.get("imports")  # of our own recipes: to be imported first
            if isinstance(imports, tuple):
                self._add(*(name for name in imports if isinstance(name, str)))
        return reduced

    def _add(self, *names: Any) -> None:
        self.found.update(dict.fromkeys(name for name in names if isinstance(name, str)))

    def _look_into(self, function: FunctionType) -> None:
        cells = [_content(cell) for cell in function.__closure__ or ()]
        self._named([cells, function.__defaults__, function.__kwdefaults__])
        *_, scope, name = ("", *function.__qualname__.split("."))
        if scope in ("", "<locals>") or name == "__init__":  # other methods may never be called
            self._add(*_imports_of(function.__code__))
            self._named(function.__code__.co_consts)

    def _named(self, where: Any) -> None:
        for text in _texts(where, DEPTH):
            spec = registry.get(text.rpartition(":")[2])
            if spec is not None:
                self._specified(spec)
            elif (package := package_of(text)) is not None:
                self._add(package)
            if (match := REFERENCE.fullmatch(text)) is not None:
                self._add(match[1])
            elif (match := IN_FILE.fullmatch(text)) is not None and os.path.isfile(match[1]):
                path = os.path.abspath(match[1])
                self._add(*_imports_of_file(path, os.stat(path).st_mtime_ns))

    def _specified(self, spec: EnvSpec) -> None:
        for entry in (spec.entry_point, *(each.entry_point for each in spec.additional_wrappers)):
            if isinstance(entry, str):
                self._add(entry.partition(":")[0])
            elif entry is not None:
                try:
                    self._add(*dumps(entry)[1])
                except Exception:  # noqa: BLE001 - then it does not travel, and is looked up in its module
                    self._add(getattr(entry, "__module__", None))


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) <= LONGEST:
            yield value
    elif depth and isinstance(value, dict):
        yield from _texts(list(value.values()), depth)
    elif depth and isinstance(value, list | tuple) and len(value) <= LONGEST:
        for each in value:
            yield from _texts(each, depth - 1)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _imports_of(code: CodeType) -> list[str]:
    """What a function imports when it is called."""
    steps = list(dis.get_instructions(code))
    found = []
    for at, step in enumerate(steps):
        if step.opname == "IMPORT_NAME" and at >= 2 and steps[at - 2].argval == 0:  # the level: 0 is absolute
            found.append(step.argval)
    return found


@lru_cache(maxsize=32)  # one recipe a worker names it
def _imports_of_file(path: str, _changed: int) -> Sequence[str]:
    """What a file imports first of all. It is loaded by each worker, from its path."""
    try:
        with open(path, "rb") as file:
            body = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):  # told by the worker that loads it
        return ()
    found: list[str] = []
    for statement in body:
        if isinstance(statement, ast.Import):
            found += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            found.append(statement.module)
    return found
