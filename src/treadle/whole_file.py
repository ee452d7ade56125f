"""Files that are written as a whole or not at all, and safe reading of untrusted files."""

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
    """Return the system's text for an error; for a file over the size limit, with the limit to raise."""
    text = str(error.strerror)
    limited = error.errno == errno.EFBIG and "ulimit" not in text
    return f"{text} (the limit on the size of a file, ulimit -f)" if limited else text


def opened(path: str | Path, most: float = inf) -> BinaryIO:
    """Open a regular file for reading. Others are refused: a pipe would block its reader, and a device may never end.

    Args:
        path: of the file.
        most: the most bytes that it may have.

    Raises:
        ValueError: the file is not a regular file, or has more bytes.
        OSError: the file cannot be opened.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode) or about.st_size > most:
        file.close()
        raise ValueError(f"{path} is not a regular file, or is too large")
    return file


def read_json(path: str | Path, most: float = inf) -> Any:
    """Return the content of a regular JSON file. Raises what `opened` raises, and ValueError for invalid JSON."""
    with opened(path, most) as file:
        return json.load(file)


@contextmanager
def written(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces `path` when the block ends. Readers of `path` see the old or the new file.

    `mode`: of the new file, less the umask. If the block raises, the new file is removed. Raises OSError with the path.
    """
    part = path.with_name(f".{path.name}.tmp")
    try:
        part.unlink(missing_ok=True)  # a file that a kill left, or a link to another place
        with open(part, "xb", buffering=1 << 20, opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        os.replace(part, path)
    except OSError as error:
        if error.errno is None:  # an error of the block, not of the system
            raise
        raise OSError(error.errno, why(error), str(path)) from error
    finally:
        part.unlink(missing_ok=True)
