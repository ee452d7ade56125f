"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def why(error: OSError) -> str:
    """The system's text; of a file that may not be so large with the limit to raise."""
    text = str(error.strerror)
    limited = error.errno == errno.EFBIG and "ulimit" not in text
    return f"{text} (the limit on the size of a file, ulimit -f)" if limited else text


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A file to be written, which takes the place of `path` when the block has ended. Whoever reads `path` sees
    the old file or the new one.

    Nothing new is left where the block raises. Raises OSError with the path.
    """
    part = path.with_name(f".{path.name}.tmp")
    try:
        part.unlink(missing_ok=True)  # what a kill left, or a link to somewhere else
        with open(part, "xb", buffering=1 << 20) as file:
            yield file
        os.replace(part, path)
    except OSError as error:
        if error.errno is None:  # somebody else's, of what is written
            raise
        raise OSError(error.errno, why(error), str(path)) from error
    finally:
        part.unlink(missing_ok=True)
