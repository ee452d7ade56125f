"""Pickling for another process: cloudpickle, with the main script by value under both of its names.

Lambdas, local functions and a script's own definitions travel by value, since other processes cannot import the script.
cloudpickle knows the script as `__main__`. In a process started by multiprocessing with spawn or forkserver (a torch
launcher, a sweep), the same script is `__mp_main__`. Other processes cannot import that either.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from enum import EnumType
from functools import partial
from multiprocessing.context import get_spawning_popen
from types import CodeType
from typing import Any

import cloudpickle

MAIN = b"_main__"  # the end of both names: a pickle that contains it may refer to the script by name


def _with_file(code: CodeType) -> Any:
    """Reduce a code object with the name of its file, which cloudpickle >= 3.1.3 replaces by a constant.

    So errors, stacks of workers that hang, and replays name the user's line.
    """
    kind, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return kind, tuple("".join(code.co_filename) if each == "<dynamic-code>" else each for each in args)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's pickler with the changes of this module, for subclasses; other code calls `dumps`."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _with_file})

    def __init__(self, file: io.BytesIO, protocol: int | None = None, buffer_callback: Any = None) -> None:
        main = sys.modules.get("__mp_main__")
        if getattr(main, "__name__", None) == "__mp_main__":  # else it is multiprocessing's other name for __main__
            # It stays registered: a reference to it by name is never useful, and unregistering would need a lock.
            cloudpickle.register_pickle_by_value(main)
        spawning = get_spawning_popen()
        if spawning is not None:  # see `treadle.wire.carried`; before `__init__`, which reads it
            self.dispatch_table = type(self).dispatch_table.new_child(_of_multiprocessing(spawning))
        super().__init__(file, protocol, buffer_callback)

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6:  # a class by value
            kind = type(obj)
            if kind.__setattr__ is not type.__setattr__ and not issubclass(kind, EnumType):
                *made, fill = reduced
                reduced = (*made, partial(_fill_guarded, fill))
        return reduced


class _Unguarded:
    """A class under construction whose metaclass forbids setting attributes (a frozen configuration, for example)."""

    def __init__(self, guarded: type) -> None:
        object.__setattr__(self, "guarded", guarded)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "guarded"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        type.__setattr__(object.__getattribute__(self, "guarded"), name, value)


def _fill_guarded(fill: Any, guarded: type, state: Any) -> None:
    """Fill a class that cloudpickle makes, by setting attributes although its metaclass forbids that."""
    fill(_Unguarded(guarded), state)


def _of_multiprocessing(spawning: Any) -> dict[type, Any]:
    """Return multiprocessing's reducers of its own objects for a process that it starts.

    Reducers that other packages have registered there (torch: tensors as handles of shared memory) are left out.
    """
    from multiprocessing import reduction

    theirs = reduction.ForkingPickler._extra_reducers.items()  # type: ignore[attr-defined]
    own = {  # reducers of the modules that define the types, without those of `reduction` itself (methods and so on)
        kind: reduce
        for kind, reduce in theirs
        if reduce.__module__.startswith("multiprocessing.") and reduce.__module__ != reduction.__name__
    }
    locks = sys.modules.get("multiprocessing.synchronize")
    if locks is not None:
        for kind in (locks.Lock, locks.RLock, locks.Semaphore, locks.BoundedSemaphore):
            own[kind] = partial(_reduce_lock, spawning)
    return own


def _reduce_lock(spawning: Any, lock: Any) -> Any:
    inner = lock._semlock
    if inner.name is not None:  # a lock of a spawn or forkserver context is found by its name
        return lock.__reduce_ex__(2)
    if spawning.start_method != "fork":
        raise TypeError(
            f"a multiprocessing {type(lock).__name__} of a fork context is known to forked processes only, and workers "
            f"are started by {spawning.start_method!r}. This Python's default may be a fork context. Make the object, "
            f"or the queue or value that it belongs to, by multiprocessing.get_context({spawning.start_method!r})"
        )
    return _inherited_lock, (type(lock), inner.handle, inner.kind, inner.maxvalue)


def _inherited_lock(kind: Any, *state: Any) -> Any:
    lock = kind.__new__(kind)
    lock.__setstate__((*state, None))
    lock._is_fork_ctx = True
    return lock


def dumps(value: Any, protocol: int | None = None, buffer_callback: Any = None) -> bytes:
    """Pickle as `cloudpickle.dumps` does. Raises what pickling raises."""
    with io.BytesIO() as file:
        Pickler(file, protocol, buffer_callback).dump(value)
        return file.getvalue()


def quickly(value: Any, fresh: Callable[[], Callable[[pickle.PickleBuffer], Any] | None]) -> bytes:
    """Pickle as `dumps` does with protocol 5, by `pickle` itself if possible, which takes a fraction of the time.

    `fresh` makes a buffer callback (or None) for each try; there may be two tries. Raises what pickling raises.
    """
    try:
        head = pickle.dumps(value, 5, buffer_callback=fresh())
        if MAIN not in head:  # else it may refer to the script by name, and is useless in another process
            return head
    except Exception:  # noqa: BLE001, S110 - lambdas and local classes: cloudpickle knows how, or raises the real reason
        pass
    return dumps(value, 5, fresh())


class _Known(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == "subimport":  # cloudpickle's, of a module that a class by value refers to
            return sys.modules.__getitem__
        if module == "posix":  # `os._exit` would end the process without an error
            raise pickle.UnpicklingError(f"os.{name} makes no object")
        first, *rest = name.split(".")
        found = vars(sys.modules[module])[first]
        for part in rest:
            found = getattr(found, part)
        return found


def known(data: bytes) -> Any:
    """Unpickle with modules that are already loaded, without imports. Raises what unpickling raises."""
    return _Known(io.BytesIO(data)).load()


__all__ = ["MAIN", "Pickler", "dumps", "known", "quickly"]
