"""The current folder on the import path, as `python script.py` has its script's, and what commands load of it: only for
commands that name code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

# they look for modules that are not there, which a folder of somebody else's may have
PROBING = ("pickle", "multiprocessing.connection", "numpy", "gymnasium", "h5py")


def names_code(words: Sequence[str]) -> bool:
    """Does a command name what may lie in the current folder? Ids and "random" do not."""
    return any(":" in word or ".zip" in word or word.startswith("--import") for word in words)


def search_here() -> None:
    """Have modules be found in the current folder, too: last, so that a file there never hides a library. Call it when
    the command's own imports are done."""
    for name in PROBING:
        with suppress(ImportError):
            import_module(name)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def load_files(words: Sequence[str]) -> None:
    """Load what "file.py:attribute" names: then the packages that it refers to are imported once for all workers. These
    load it, too, and tell what is wrong with it."""
    from treadle.program.policies import load_object

    for word in words:
        for each in word.rpartition("=")[2].split(","):
            if ".py:" in each:
                with suppress(Exception, SystemExit):
                    load_object(each.strip())
