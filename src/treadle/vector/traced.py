"""A trace of a vector at work: its workers record events, and timed functions replace the caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from treadle.errors import UsageError
from treadle.lockstep.recover import JointRequest
from treadle.pool.tracing import Trace
from treadle.vector.core import Core
from treadle.vector.partial import PartialBatches
from treadle.wire.messages import Op
from treadle.worker.life import ALIVE
from treadle.worker.recorder import WORKER, Recorder

# calls of a vector; what lies between two of them is the policy's
CALLS = ("step", "step_async", "step_wait", "reset", "reset_at", "async_reset", "send", "recv", "rollout")


@contextmanager
def traced(vector: Any, core: Core, path: Path) -> Iterator[None]:
    """See `trace` of a `VectorEnv`, whose closures are made anew at both ends."""
    pool = core.pool
    if any(worker.spec.trace for worker in pool.workers):
        raise UsageError("this vector is being traced already: end that trace first")
    trace = Trace(path)
    try:
        _tell(core, None, trace.directory)
        trace.attach(pool)
        for worker in pool.workers:
            if worker.line is not None:
                trace.caller.swap(WORKER, "send", worker.line, "post_bare")
                trace.caller.swap(WORKER, "recv", worker.line, "await_answer")
        trace.caller.swap(WORKER, "encode", core.form, "five")
        vector._rebind()
        _calls(vector, trace.caller)
        yield
    finally:
        trace.caller.restore()
        for worker in pool.workers:
            worker.spec = replace(worker.spec, trace=None)
        try:
            if not pool.closed:
                _tell(core, vector._partial, None)
                vector._rebind()
        finally:
            trace.finish()


def _tell(core: Core, partials: PartialBatches | None, directory: str | None) -> None:
    """Have all workers record from now on, or write down what they have recorded; and wait for that."""
    calls, joint = core.pool.calls, JointRequest(Op.TRACE, -1, (), recovery=core.lockstep.recovery)
    for worker in core.pool.workers:
        if worker.state in ALIVE:
            calls.submit(worker, Op.TRACE, (directory, worker.index), worker.slots, joint)
    if partials is None:
        joint.collect(calls)
    else:
        partials.await_also(joint)


def _calls(vector: Any, recorder: Recorder) -> None:
    depth = ended = 0

    def timed(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal depth, ended
        start = perf_counter_ns()
        if ended and not depth:
            recorder.note((WORKER, "policy", ended, start))
        depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            depth -= 1
            ended = perf_counter_ns()
            recorder.note((WORKER, name, start, ended))

    for name in CALLS:
        recorder.put(vector, name, partial(timed, name, getattr(vector, name)))
