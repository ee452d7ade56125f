"""Who steps which slots: the numbers that "auto" stands for.

An environment that computes wants a core: as many workers as cores, the caller's own share counted. One that waits
leaves its core idle, so each has a worker of its own, and none is the caller's, where its wait would stop everything.
"""

from __future__ import annotations

from treadle.errors import UsageError
from treadle.pool.pool import BACKENDS

MOST_WORKERS = 128  # for environments that wait; each worker has a process's memory


def matters(n: int, backend: str, workers: int | str | None, inline: int | str, cores: int) -> bool:
    """Does it matter to `choose_shares` whether the environments wait? Then it is worth measuring. Pure."""
    own = inline if isinstance(inline, int) else 0
    return workers == "auto" and backend == "process" and n - own > cores - (own > 0)


def choose_shares(
    n: int,
    backend: str,
    workers: int | str | None,
    inline: int | str,
    *,
    guarded: bool,
    cores: int,
    waits: bool = False,
) -> tuple[int | None, int]:
    """(workers, inline) for a pool of n slots; the first `inline` slots are the caller's. Pure.

    "auto" slots in the caller: an equal share, where the workers are processes and there is a second core for them.
    None when `guarded` (a deadline or a policy for failures is given, which the caller's own slots cannot have), or
    when the environments wait.
    "auto" workers: one a core, the caller's share counted; where the environments wait one a slot, up to MOST_WORKERS.

    Raises UsageError for anything that is neither "auto" nor a number in range.
    """
    if backend not in BACKENDS:
        raise UsageError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if isinstance(workers, str) and workers != "auto":
        raise UsageError(f"workers must be a positive integer, None or 'auto', got {workers!r}")
    if isinstance(inline, str) and inline != "auto":
        raise UsageError(f"inline must be an integer of at least 0 or 'auto', got {inline!r}")
    if isinstance(inline, str):
        if backend != "process" or guarded or cores < 2 or waits:
            inline = 0
        else:
            others = workers if isinstance(workers, int) else min(cores - 1, n - 1)
            inline = n // (max(0, others) + 1)
    if workers == "auto":
        most = MOST_WORKERS if waits else cores - 1 if inline else cores
        workers = max(1, min(n - inline, most))
    return (int(workers) if workers is not None else None), inline
