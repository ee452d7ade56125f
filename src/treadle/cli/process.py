"""A command's changes to its process: stdout that holds a result alone, and the current folder on the import path.

Commands that name code find it there, as `python script.py` finds the modules beside its script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TextIO

from treadle.cli import failures

# these look for modules that are not installed, which another user's folder may hold
PROBING = ("pickle", "multiprocessing.connection", "numpy", "gymnasium", "h5py")


@contextmanager
def own_stdout(alone: bool) -> Iterator[TextIO]:
    """The stream for results. `alone`: all other output, that of workers included, goes to stderr meanwhile."""
    if not alone:
        yield sys.stdout
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w") as stream:
            yield stream
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def names_code(words: Sequence[str]) -> bool:
    """Return True if a command names code, which may lie in the current folder. Ids and "random" do not."""
    return any(":" in word or ".zip" in word for word in words)


def search_here() -> None:
    """Add the current folder to the end of the import path, so that a file there never hides a library. Call it after
    the command's own imports."""
    for name in PROBING:
        with suppress(ImportError):
            import_module(name)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


@contextmanager
def traced(path: Path | None) -> Iterator[None]:
    """Trace the block into `path` and print the path; None traces nothing."""
    from treadle.pool.tracing import tracing

    if path is None:
        yield
        return
    with tracing(path):
        yield
    failures.say(f"trace: {path}")


def load_files(words: Sequence[str]) -> None:
    """Load the files that words such as "file.py:attribute" name: their packages are then imported once for all
    workers. The workers load the files too, and report their errors."""
    from treadle.program.policies import load_object

    for word in words:
        for each in word.rpartition("=")[2].split(","):
            if ".py:" in each:
                with suppress(Exception, SystemExit):
                    load_object(each.strip())
