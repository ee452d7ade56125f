"""Who steps which slots: the numbers that "auto" stands for."""

from __future__ import annotations

from treadle.errors import UsageError
from treadle.pool.pool import BACKENDS


def choose_shares(
    n: int, backend: str, workers: int | str | None, inline: int | str, *, guarded: bool, cores: int
) -> tuple[int | None, int]:
    """(workers, inline) for a pool of n slots; the first `inline` slots are the caller's. Pure.

    "auto" slots in the caller: an equal share, where the workers are processes and there is a second core for them.
    None when `guarded` (a deadline or a policy for failures is given, which the caller's own slots cannot have).
    "auto" workers: one a core, the caller's share counted.

    Raises UsageError for anything that is neither "auto" nor a number in range.
    """
    if backend not in BACKENDS:
        raise UsageError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if isinstance(workers, str) and workers != "auto":
        raise UsageError(f"workers must be a positive integer, None or 'auto', got {workers!r}")
    if isinstance(inline, str) and inline != "auto":
        raise UsageError(f"inline must be an integer of at least 0 or 'auto', got {inline!r}")
    if isinstance(inline, str):
        if backend != "process" or guarded or cores < 2:
            inline = 0
        else:
            others = workers if isinstance(workers, int) else min(cores - 1, n - 1)
            inline = n // (max(0, others) + 1)
    if workers == "auto":
        workers = max(1, min(n - inline, cores - 1 if inline else cores))
    return (int(workers) if workers is not None else None), inline
