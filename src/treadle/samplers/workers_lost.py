"""Workers that will not come back, and what a sampler says of it."""

from __future__ import annotations

from treadle.errors import WorkerError
from treadle.pool import failure
from treadle.sample.failed import reason_of


class WorkersLost(WorkerError, EOFError):
    """A sampler cannot go on: all its workers are gone, or one of which an exact number of episodes was due.

    Attributes:
        failures: worker number -> what it failed of.
    """

    failures: dict[int, WorkerError]


def why(error: WorkerError) -> str:
    """What happened, in a line."""
    if error.where.phase == "stream":  # a result that could not be sent: what the message says is not in the traceback
        return failure.reason(error).removesuffix(". Traceback in .remote_traceback")
    step = error.where.step
    return reason_of(error) + (f" (in step {step} of an episode)" if step is not None else "")


def lost_of(failures: dict[int, WorkerError], count: int) -> WorkersLost:
    """Of so many workers all are gone, or one is whose episodes were asked for."""
    what = "an exact number of episodes of every worker cannot be had (on_failure='restart' replaces workers)"
    what = "all workers are gone" if len(failures) == count else what
    reasons = "; ".join(f"worker {worker}: {why(error)}" for worker, error in sorted(failures.items()))
    first = failures[min(failures)]
    error = WorkersLost(
        f"{what}: {reasons}", where=first.where, remote_traceback=first.remote_traceback, failures=dict(failures)
    )
    error.__cause__, error.repro = first, first.repro
    return error
