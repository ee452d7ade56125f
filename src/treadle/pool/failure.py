"""Decide what follows a failure, purely, and build the errors that report failures."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from treadle.errors import (
    BadAction,
    BadObservation,
    NoBatch,
    RemoteTraceback,
    TaskRaised,
    Where,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
    attributes_of,
    task_raised,
)
from treadle.spaces import Mismatch
from treadle.wire.messages import ExitReport, Raised, name_of
from treadle.worker.life import RestartPolicy

WINDOW = 600.0  # seconds within which restarts are counted
MOST_BARREN = 10  # deaths of one worker in a row, without an answer, that end it if max_restarts is None
BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
LEAST_GRACE = 5.0  # seconds; a late worker gets its limit once more to answer before it is killed, and at least these
PLACED = ("phase", "step", "episode", "seed", "last_action")  # the place that a program's failure brings along


@dataclass(frozen=True)
class Verdict:
    act: RestartPolicy
    delay: float = 0.0  # seconds before the restart


def on_death(
    policy: RestartPolicy,
    restarts: list[float],
    now: float,
    max_restarts: int | None,
    *,
    lasting: bool = False,
    others: bool = True,
    barren: int = 1,
) -> Verdict:
    """Decide what becomes of a dead worker.

    Args:
        restarts: when (monotonic seconds) it was restarted before.
        max_restarts: in ten minutes; None: unlimited while restarts bring answers (see MOST_BARREN).
        lasting: True if another worker would fail in the same way.
        others: True if there are other workers that are not dropped.
        barren: deaths in a row, this one included, without an answer between them.
    """
    if policy is RestartPolicy.RAISE or lasting:
        return Verdict(RestartPolicy.RAISE)
    if policy is RestartPolicy.DROP:
        return Verdict(RestartPolicy.DROP if others else RestartPolicy.RAISE)
    if max_restarts is None:
        before, most = max(0, barren - 1), MOST_BARREN
    else:
        before, most = sum(now - t <= WINDOW for t in restarts), max_restarts
    return Verdict(RestartPolicy.RAISE) if before >= most else Verdict(RestartPolicy.RESTART, backoff(before))


def lasts(error: WorkerError, report: ExitReport) -> bool:
    """Return True if a restarted worker would die again: a constructor raised, or hung until it was killed."""
    return error.where.phase == "init" and (not isinstance(error, WorkerDied) or report.forced)


def backoff(k: int) -> float:
    """Return the delay in seconds of restart k: 0 for the first, then 0.5 s x 2^(k-1), at most 30 s."""
    return 0.0 if k == 0 else min(LONGEST_BACKOFF, BACKOFF * 2.0 ** min(k - 1, 64))


def grace(limit: float) -> float:
    """Return the seconds that a late worker gets to answer before it is killed."""
    return max(limit, LEAST_GRACE)


# -- errors from reports ---------------------------------------------------------------------------------------------


def caster(expected: str, got: str) -> str:
    """Return advice for an observation whose dtype alone is wrong; else ""."""
    same_shape = "[" in got and expected.partition("[")[2] == got.partition("[")[2]
    return "a wrapper such as gymnasium.wrappers.DtypeObservation can cast" if same_shape else ""


def task_error(raised: Raised, slot: Where, again: str = "") -> WorkerError:
    """Return the error of a slot whose program raised.

    The original is its `__cause__` where it can be rebuilt. An exception raised in this process keeps its frames, down
    to the user's own, as the cause's `__traceback__`.

    Args:
        slot: which slot, from `Worker.at`, or the `Where` of a slot in the caller.
        again: the call that resets the slot, as the user spells it; "": no such call.
    """
    where = replace(slot, **{name: getattr(raised, name) for name in PLACED})
    twin = raised.rebuilt()
    fields: dict[str, Any] = {
        "where": where,
        "remote_traceback": raised.traceback,
        "error_type": raised.error_type,
        "error_message": raised.message,
        "trail": raised.trail,
    }
    if raised.path is not None:
        casts = caster(raised.expected, raised.got)
        message = (
            f"{where}: {raised.message}. The environment's observation does not fit its own observation_space; "
            f"mend the one or the other{casts and f' ({casts})'}"
        )
        error: WorkerError = BadObservation(
            message, path=raised.path, expected=raised.expected, got=raised.got, **fields
        )
    else:
        what = f"{raised.error_type}: {raised.message}" if raised.message else raised.error_type
        hints = ["the worker lives"] if where.worker is not None else []
        hints += [f"call {again} to carry on"] if again else []
        hint = f" ({'; '.join(hints)})" if hints and raised.phase in ("step", "reset") else ""
        message = f"{where}: {what}{hint}. Traceback in .remote_traceback"
        error = _stand_in(raised, twin, message, **fields)
    cause = RemoteTraceback(raised.traceback) if twin is None else twin
    error.__cause__ = BaseException.with_traceback(cause, raised.frames.take())
    return error


def _stand_in(raised: Raised, twin: BaseException | None, message: str, **fields: Any) -> TaskRaised:
    """Return a TaskRaised of the exception's class, with its attributes where ours do not have that name.

    Without a `twin`, the rebuilt exception, it is of the nearest built-in class.
    """
    if twin is None:
        members = [
            _stand_in(each, None, each.message, error_type=each.error_type, error_message=each.message)
            if (again := each.rebuilt()) is None
            else again
            for each in raised.members
        ]
        return task_raised(vars(builtins).get(raised.builtin), message, members, **fields)
    group = issubclass(type(twin), BaseExceptionGroup)
    inner = BaseExceptionGroup.exceptions.__get__(twin) if group else ()  # type: ignore[attr-defined]
    error = task_raised(type(twin), message, inner, **fields)
    for name, value in attributes_of(twin).items():
        if name not in error.__dict__ and not hasattr(TaskRaised, name) and name != "__notes__":
            error.__dict__[name] = value
    for base in type.mro(type(twin)):
        if vars(builtins).get(name_of(base)) is base and base is not BaseException:
            for name, slot in vars(base).items():  # kept by built-in classes outside __dict__: `errno`, ...
                if isinstance(slot, MemberDescriptorType | GetSetDescriptorType) and not name.startswith("__"):
                    with contextlib.suppress(AttributeError, TypeError):  # not set, read-only, or not of that class
                        slot.__set__(error, slot.__get__(twin))
    return error


def first_of(raised: dict[int, Raised], at: Callable[[int], Where], partial: Any, again: str) -> WorkerError:
    """Return the error of the first slot whose program raised; a note names the others.

    Args:
        at: returns where a slot is.
        partial: the error's field.
        again: see `task_error`.
    """
    first, *others = sorted(raised)
    for slot in others:
        raised[slot].frames.take()  # they are not needed
    error = task_error(raised[first], at(first), again)
    error.partial = partial
    if others:
        error.add_note(f"{len(others)} more slots failed: {others}")
    return error


def bad_action(error: Mismatch, n: int, actions: Any) -> BadAction:
    """Return the public error of a refused batch of n actions."""
    where = Where(slot=error.row, phase="step")
    at = "" if error.row is None else f"slot {error.row}: "
    message = f"{at}{error}. Nothing was sent; give {n} actions that fit the action space"
    try:
        iter(actions)
        kind = BadAction
    except TypeError:  # iterating over them raises TypeError, as in Gymnasium's vectors
        kind = NoBatch
    return kind(message, where=where, path=error.path, expected=error.expected, got=error.got)


def died(where: Where, report: ExitReport, policy: RestartPolicy = RestartPolicy.RAISE) -> WorkerDied:
    how = "died"
    if report.signal:
        how = f"was ended by {report.signal}"
    elif report.code is not None:
        how = f"exited with code {report.code}"
    hint = ""
    if report.oom:
        hint = f" Memory ran out: {report.oom}."
    elif report.signal == "SIGKILL" and not report.forced:
        hint = " Perhaps it ran out of memory, or it was killed from outside."
        if report.oom is not None:
            hint = " It was killed from outside (the kernel counts no out-of-memory kill since it was started)."
    tail = "\nlast lines of its stderr:\n  " + "\n  ".join(report.stderr[-10:]) if report.stderr else ""
    stack = f"\nits Python stack then:\n{report.stack}" if report.stack else ""
    advice = " The request is lost; close, or use on_failure='restart'." if policy is RestartPolicy.RAISE else ""
    message = f"{where}: the worker {how}.{hint}{advice}{tail}{stack}"
    return WorkerDied(
        message,
        where=where,
        exit_code=report.code,
        signal=report.signal,
        stderr=report.stderr,
        stack=report.stack,
        out_of_memory=bool(report.oom),
    )


def late(
    where: Where, elapsed: float, limit: float, stack: str, *, killed: bool = False, again: str = ""
) -> WorkerTimeout:
    carry_on = f"call {again} to carry on, which kills a worker that still hangs, or " if again else ""
    then = "the worker was killed" if killed else f"its answer will be dropped; {carry_on}close"
    tail = f"\nits Python stack now:\n{stack}" if stack else ""
    message = f"{where}: no answer for {elapsed:.1f} s (limit {limit:g} s); {then}.{tail}"
    return WorkerTimeout(message, where=where, elapsed=elapsed, limit=limit, stack=stack)


def slow_start(where: Where, limit: float, stack: str, ready: int, workers: int, why: str) -> WorkerTimeout:
    """Return the error of a worker that has not built its slots in time, with how many of all workers are `ready`.

    `why`: the possible reason.
    """
    tail = f"\nits Python stack now:\n{stack}" if stack else ""
    message = f"{where}: not ready after {limit:g} s (start_timeout); {ready} of {workers} workers are. {why}{tail}"
    return WorkerTimeout(message, where=where, elapsed=limit, limit=limit, stack=stack)


def reason(error: WorkerError) -> str:
    """Return what happened in a few words, without the place, for a line in the log."""
    if isinstance(error, WorkerTimeout):
        return f"no answer for {error.elapsed:.1f} s (limit {error.limit:g} s)"
    if isinstance(error, WorkerDied):
        return how_it_ended(error)
    return str(error).splitlines()[0].removeprefix(f"{error.where}: ")


def how_it_ended(error: WorkerDied, doing: str = "") -> str:
    """Return the worker, its machine if that is not this one, and its end. `doing`: what it was at, as " while ..."."""
    worker = "the worker" if error.where.node is None else f"the worker on node {error.where.node}"
    if error.signal:
        end = f"was ended by {error.signal}"
    else:
        end = "died" if error.exit_code is None else f"exited with code {error.exit_code}"
    return f"{worker} {end}{doing}" + (f": {of_memory(error)}" if error.out_of_memory else "")


def of_memory(error: WorkerDied) -> str:
    """Return why a worker was killed for its memory: by Treadle's limit, or by the kernel."""
    return str(error).partition("the worker was killed: ")[2] or "memory ran out"
