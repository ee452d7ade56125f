"""Where output goes when only a result may be on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


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
