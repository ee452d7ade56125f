"""The file that a snapshot of a whole pool is: a pickled dict with its format's name, there whole or not at all."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from treadle.errors import UsageError
from treadle.whole_file import written


def write(path: str | os.PathLike[str], format: str, **kept: Any) -> None:
    """Write `kept`, by name, as something of this format. The file takes its name when all of it is on the disk.

    Raises what pickling raises, and OSError; nothing new is left there then.
    """
    with written(Path(path), durable=True) as file:
        pickle.dump({"format": format, **kept}, file, 5)


def read(path: str | os.PathLike[str], expected: str, what: str) -> dict[str, Any]:
    """What was written.

    Args:
        expected: its "format".
        what: that is a snapshot of, for errors.

    Raises UsageError for a file that is no snapshot, or one of something else; OSError.
    """
    with open(path, "rb") as file:
        try:
            kept: Any = pickle.load(file)
        except Exception as error:
            raise UsageError(f"{os.fspath(path)} is no snapshot: {error}") from error
    found = kept.get("format") if isinstance(kept, dict) else None
    if found != expected:
        says = f" (it says {found!r})" if isinstance(found, str) else ""
        raise UsageError(f"{os.fspath(path)} is no snapshot of {what}{says}")
    return kept
