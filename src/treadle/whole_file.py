"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A file to be written, which takes the place of `path` when the block has ended; `durable`: and all of it is on
    the disk. Whoever reads `path` sees the old file or the new one.

    Nothing new is left where the block raises. Raises OSError with the path.
    """
    part = path.with_name(f".{path.name}.tmp")
    try:
        part.unlink(missing_ok=True)  # what a kill left, or a link to somewhere else
        with open(part, "xb", buffering=1 << 20) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        if error.errno is None:  # somebody else's, of what is written
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        part.unlink(missing_ok=True)
