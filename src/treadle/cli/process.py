"""What a command does to its process: where output goes when only a result may be on stdout; and, for commands that
name code, the current folder on the import path, as `python script.py` has its script's, and what they load of it.
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

# they look for modules that are not there, which a folder of somebody else's may have
PROBING = ("pickle", "multiprocessing.connection", "numpy", "gymnasium", "h5py")


@contextmanager
def own_stdout(alone: bool) -> Iterator[TextIO]:
    """The stream for results. `alone`: what anybody else prints meanwhile, workers included, goes to stderr."""
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
    """Does a command name what may lie in the current folder? Ids and "random" do not."""
    return any(":" in word or ".zip" in word for word in words)


def search_here() -> None:
    """Have modules be found in the current folder, too: last, so that a file there never hides a library. Call it when
    the command's own imports are done."""
    for name in PROBING:
        with suppress(ImportError):
            import_module(name)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


@contextmanager
def traced(path: Path | None) -> Iterator[None]:
    """Trace what a command plays in the block, and say where that is; None: do not."""
    from treadle.pool.tracing import tracing

    if path is None:
        yield
        return
    with tracing(path):
        yield
    failures.say(f"trace: {path}")


def load_files(words: Sequence[str]) -> None:
    """Load what "file.py:attribute" names: then the packages that it refers to are imported once for all workers. These
    load it, too, and tell what is wrong with it."""
    from treadle.program.policies import load_object

    for word in words:
        for each in word.rpartition("=")[2].split(","):
            if ".py:" in each:
                with suppress(Exception, SystemExit):
                    load_object(each.strip())
