"""A trace of the caller and of all its workers, as a file that Perfetto and chrome://tracing show.

Workers and the caller record (`worker/recorder.py`). Each writes a file to one temporary directory when its part of the
trace ends. At the end the files are joined.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from treadle.errors import UsageError
from treadle.whole_file import read_json, written
from treadle.worker.recorder import LAST, WORKER, Recorder

Event = tuple[int, str, int, int]
LANES = 100_000  # numbers between two processes
FORMER = 1  # the lane of the batch former, beside the caller's
current: Trace | None = None  # the trace of `tracing`, which pools join that are made meanwhile


class Trace:
    """A trace in the making.

    Args:
        path: of the file; with the suffix .gz it is compressed.

    Attributes:
        caller: records what this process does outside of its workers.
        directory: where each worker writes what it has recorded.

    Raises:
        UsageError: the file's folder does not exist.
    """

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise UsageError(f"a trace cannot be written to {path}: the folder {path.parent} does not exist")
        self._path = path
        self.directory = tempfile.mkdtemp(prefix="treadle-trace-")
        self.caller = Recorder(f"{self.directory}/caller.json", "caller")

    def attach(self, pool: Any) -> None:
        """Record requests to this `Pool`, waits for its answers, and workers that it starts again."""
        self.caller.swap(WORKER, "send", pool.calls, "submit_all")
        self.caller.swap(WORKER, "recv", pool.calls, "poll")
        for worker in pool.workers:
            worker.spec = replace(worker.spec, trace=self.directory)

    def finish(self) -> None:
        """Write the file from what all workers have written. No file is written where nothing was played."""
        try:
            self.caller.end()
            files = sorted(Path(self.directory).glob("*.json"), key=lambda file: (file.stem != "caller", file.stem))
            found = chrome([read_json(file) for file in files])
            if found["traceEvents"]:
                text = json.dumps(found, separators=(",", ":")).encode()
                with written(self._path) as file:
                    file.write(gzip.compress(text, 6) if self._path.suffix == ".gz" else text)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def tracing(path: Path) -> Iterator[Trace]:
    """Trace all pools that are made in the block, which close before it ends. Raises UsageError, OSError."""
    global current
    trace = current = Trace(path)
    try:
        yield trace
    finally:
        current = None
        trace.finish()


def chrome(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return Chrome's trace events of what recorders have written, the caller's first. Pure."""
    origin = min((event[2] for part in parts for event in part["events"]), default=0)
    made: list[dict[str, Any]] = []
    for at, part in enumerate((each for each in parts if each["events"]), 1):
        pid = at * LANES  # unique among lanes, too: viewers take the lane with the process's number for the main thread
        named = [("process_name", 0, f"{part['name']} (pid {part['pid']})")]
        named += [("thread_name", int(lane), name) for lane, name in part["lanes"].items()]
        for kind, lane, name in named:
            made.append({"ph": "M", "pid": pid, "tid": pid + lane, "name": kind, "args": {"name": name}})
        events = [*part["events"], *writes(part["events"])]
        for lane, name, start, end in sorted(events, key=lambda each: (each[2], -each[3])):
            times = {"ts": (start - origin) / 1e3, "dur": (end - start) / 1e3}
            made.append({"ph": "X", "pid": pid, "tid": pid + lane, "name": name, "cat": "treadle", **times})
    full = [part["name"] for part in parts if len(part["events"]) == LAST]
    about = {"kept": f"the last {LAST:,} events of the caller and of each worker", "more than that": full}
    return {"traceEvents": made, "displayTimeUnit": "ms", "otherData": about}


def writes(events: Sequence[Event]) -> Iterator[Event]:
    """Yield when each slot's row is written: in a request of steps, from its step's end to the next one's start."""
    slots: list[Event] = []
    answered = 0
    for event in events:
        lane, name, start, end = event
        if lane != WORKER:
            slots.append(event)
        elif name == "answer":
            answered = start
        elif name != "wait":  # a request, which is noted after its parts
            inside = sorted((each for each in slots if each[2] >= start), key=lambda each: (each[2], -each[3]))
            outer: list[Event] = []
            for each in inside if name == "step" else ():
                if not outer or each[2] >= outer[-1][3]:
                    outer.append(each)
            for one, following in pairwise([*outer, (WORKER, "", max(end, answered), end)]):
                if one[0] != following[0] and one[3] < following[2]:
                    yield one[0], "write", one[3], following[2]
            slots = []
