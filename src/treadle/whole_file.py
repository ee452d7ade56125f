"""Files that are there whole or not at all, and files from somebody else that may be anything."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any, BinaryIO


def why(error: OSError) -> str:
    """The system's text; of a file that may not be so large with the limit to raise."""
    text = str(error.strerror)
    limited = error.errno == errno.EFBIG and "ulimit" not in text
    return f"{text} (the limit on the size of a file, ulimit -f)" if limited else text


def opened(path: str | Path, most: float = inf) -> BinaryIO:
    """A regular file, to be read. A pipe would keep its reader waiting, and a device need not end.

    Args:
        most: bytes that it may have.

    Raises:
        ValueError: it is no regular file, or it has more bytes.
        OSError: it cannot be opened.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode) or about.st_size > most:
        file.close()
        raise ValueError(f"{path} is not a regular file, or is too large")
    return file


def read_json(path: str | Path, most: float = inf) -> Any:
    """What a regular file of JSON holds. Raises what `opened` raises, and ValueError for what is no JSON."""
    with opened(path, most) as file:
        return json.load(file)


@contextmanager
def written(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to be written, which takes the place of `path` when the block has ended. Whoever reads `path` sees
    the old file or the new one. `mode`: of the new one, less the umask.

    Nothing new is left where the block raises. Raises OSError with the path.
    """
    part = path.with_name(f".{path.name}.tmp")
    try:
        part.unlink(missing_ok=True)  # what a kill left, or a link to somewhere else
        with open(part, "xb", buffering=1 << 20, opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        os.replace(part, path)
    except OSError as error:
        if error.errno is None:  # somebody else's, of what is written
            raise
        raise OSError(error.errno, why(error), str(path)) from error
    finally:
        part.unlink(missing_ok=True)
