"""How a run was ended: the error, and its cause in the words of one line."""

from __future__ import annotations

import os
import re
from typing import Any

from treadle import seeding
from treadle.errors import BadObservation, TreadleError, Where, WorkerDied, WorkerError, WorkerTimeout

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_POLICIES = os.path.join(_HERE, "program", "policies.py")
# what a function of one observation raises when it is given a batch of them
_OF_SHAPE = ("IndexError", "ValueError", "TypeError", "AxisError")
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)')


class CollectionFailed(WorkerError):
    """A run was ended by a failure.

    Attributes:
        where: the place; `where.episode` and `where.seed` say which episode it was, where that is known.
        remote_traceback: of the worker, "" where there is none.
        reason: the cause in one line, such as "ValueError: boom".
        finished: episodes that were finished before.
        stored: what became of them, for a run that writes a dataset (`treadle.record.dataset.Stored`); else None.
    """

    reason: str = ""
    finished: int = 0
    stored: Any = None


def raised(error: WorkerError, finished: int) -> CollectionFailed:
    """The end of a run because an environment, a policy or the disk raised."""
    reason = reason_of(error)
    return _made(error, f"{_place(error.where)}: {reason}{_of_batches(error)}", error.where, reason, finished)


def _of_batches(error: WorkerError) -> str:
    """What a policy is given, for code of the caller's own that fails at the first observations it sees."""
    first = error.where.phase == "policy" and error.where.step == 1
    if not (first and getattr(error, "error_type", "") in _OF_SHAPE and user_frame(error.remote_traceback)):
        return ""
    return "; a policy gets a batch of observations, [rows, ...], and returns an action a row (get_action: one)"


def died(
    error: WorkerError, index: int | None, root: int, deaths: int, finished: int, *, fresh: bool = True
) -> CollectionFailed:
    """The end of a run because workers died or were killed: `deaths` of them, `fresh` ones, on episode `index` (None:
    nobody knows which)."""
    where, reason = error.where, reason_of(error)
    if index is None:
        return _made(error, f"{_place(where)}: {reason}", where, reason, finished)
    seed = seeding.episode_env_seed(root, index)
    where = Where(where.slot, where.worker, where.pid, where.phase, episode=index, seed=seed)
    kind = "fresh worker" if fresh else "worker"
    workers = f"{deaths} {kind}s their lives; the last time" if deaths > 1 else f"a {kind} its life:"
    return _made(error, f"episode {index} (seed {seed}) has cost {workers} {reason}", where, reason, finished)


def too_many(last: CollectionFailed, why: str) -> CollectionFailed:
    """The end of a run that may not go on without more episodes."""
    return _made(last, f"{why}; the last: {last}", last.where, last.reason, last.finished)


def in_policy(error: WorkerError) -> bool:
    """Was a worker asking its policy when it died or was killed? As far as its stack tells."""
    return isinstance(error, WorkerDied | WorkerTimeout) and f'"{_POLICIES}"' in error.stack


def _made(error: WorkerError, message: str, where: Where, reason: str, finished: int) -> CollectionFailed:
    failed = CollectionFailed(
        message, where=where, remote_traceback=error.remote_traceback, reason=reason, finished=finished
    )
    failed.__cause__ = error
    return failed


def _place(where: Where) -> str:
    worker = f"slot {where.slot}" if where.slot is not None else "a worker"
    if where.episode is None or where.seed is None:
        return f"{worker}, {where.phase or 'running'}"
    doing = f"step {where.step}" if where.phase == "step" and where.step is not None else where.phase
    if where.phase == "policy" and where.step is not None:
        doing = f"policy before step {where.step}"
    return f"episode {where.episode} (seed {where.seed}, {worker}), {doing}"


def reason_of(error: WorkerError) -> str:
    """What happened, in one line: the original's type and text and the line of the user's code that raised it, or how
    the worker ended."""
    if isinstance(error, WorkerTimeout):
        place = user_frame(error.stack, innermost_first=True)
        reason = f"no step came to its end for {error.elapsed:.1f} s (the limit is {error.limit:g} s)"
        return f"{reason}, at {place}" if place else reason
    if isinstance(error, WorkerDied):
        if error.signal:
            reason = f"the worker was ended by {error.signal}"
        else:
            reason = "the worker died" if error.exit_code is None else f"the worker exited with code {error.exit_code}"
        return f"{reason}; the last it said: {error.stderr[-1].strip()}" if error.stderr else reason
    kind, said = getattr(error, "error_type", ""), " ".join(getattr(error, "error_message", "").split())
    if not kind:
        lines = error.remote_traceback.strip().splitlines()
        text = lines[-1] if lines else str(error)
    else:
        if isinstance(error, BadObservation):
            casts = "a wrapper such as gymnasium.wrappers.DtypeObservation can cast"
            return f"{said}: the environment's observation does not fit its own observation_space; {casts}"
        if isinstance(error.__cause__, TreadleError) and said:  # our own words need no type before them
            return said
        text = f"{kind}: {said}" if said else kind
    place = user_frame(error.remote_traceback)
    return f"{text} ({place})" if place else text


def user_frame(traceback: str, *, innermost_first: bool = False) -> str:
    """ "file.py:12" of the innermost frame that is neither ours nor an installed library's; "" when there is none."""
    frames = list(_FRAME.finditer(traceback))
    for match in frames if innermost_first else reversed(frames):
        file = match["file"]
        if not file.startswith((_HERE, "<")) and "site-packages" not in file and f"{os.sep}lib{os.sep}py" not in file:
            return f"{os.path.basename(file)}:{match['line']}"
    return ""
