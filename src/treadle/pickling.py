"""Pickling for another process: cloudpickle, with the caller's main module by value wherever that module lives.

Lambdas, local functions and what a script defines itself travel by value, since no other process can import the script.
cloudpickle knows the script as `__main__`. In a process that multiprocessing has started (spawn, forkserver: a torch
launcher, a sweep) the same script has been imported as `__mp_main__`, which nobody else can import either.
"""

from __future__ import annotations

import io
import sys
from typing import Any

import cloudpickle

MAIN = b"_main__"  # the end of both names


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's, for subclasses; `dumps` is enough for anybody else."""

    def __init__(self, file: io.BytesIO, protocol: int | None = None, buffer_callback: Any = None) -> None:
        main = sys.modules.get("__mp_main__")
        if getattr(main, "__name__", None) == "__mp_main__":  # else it is multiprocessing's other name for __main__
            # It stays registered: nobody can want such a reference, and taking it back would need a lock.
            cloudpickle.register_pickle_by_value(main)
        super().__init__(file, protocol, buffer_callback)


def dumps(value: Any, protocol: int | None = None, buffer_callback: Any = None) -> bytes:
    """As `cloudpickle.dumps`. Raises whatever pickling raises."""
    with io.BytesIO() as file:
        Pickler(file, protocol, buffer_callback).dump(value)
        return file.getvalue()


def names_main(data: bytes) -> bool:
    """May what `pickle` itself has made refer to the caller's script by name, so that it is of use only here?"""
    return MAIN in data


__all__ = ["Pickler", "dumps", "names_main"]
