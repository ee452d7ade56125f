"""The recorder of a worker while a trace is on: its slots' steps and resets, its own waits and answers.

A worker that is not traced runs none of this. While one is traced, functions stand in for those that are timed, and
`end` puts the originals back. Events are kept in a ring in the worker's own memory and written to a file at the end. An
event is a tuple (lane, name, start, end), in nanoseconds of the clock that all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

from treadle.wire.line import BUSY_NS
from treadle.wire.messages import Op

LAST = 100_000  # events that are kept of each worker, and of the caller
WORKER = 0  # the lane of a worker itself; that of a slot is 1 + its number
_ABSENT: Any = object()


class Recorder:
    """Keeps the last events of one worker, or of the caller.

    Args:
        file: the file that `end` writes.
        name: of the worker, for people.

    Attributes:
        note: called with an event.
        lanes: lane -> its name.
    """

    def __init__(self, file: str, name: str) -> None:
        self._file, self._name = file, name
        self._events: deque[tuple[int, str, int, int]] = deque(maxlen=LAST)
        self.note = self._events.append
        self.lanes = {WORKER: name}
        self._replaced: list[tuple[Any, str, Any]] = []

    def timed(self, lane: int, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and notes an event."""
        note, clock = self.note, perf_counter_ns

        def call(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return function(*args, **kwargs)
            finally:
                note((lane, name, start, clock()))

        return call

    def swap(self, lane: int, name: str, owner: Any, *attributes: str) -> None:
        """Have functions of an object timed until the end."""
        for attribute in attributes:
            self.put(owner, attribute, self.timed(lane, name, getattr(owner, attribute)))

    def put(self, owner: Any, attribute: str, function: Any) -> None:
        """Have a function stand in for one of an object's until the end."""
        self._replaced.append((owner, attribute, vars(owner).get(attribute, _ABSENT)))
        setattr(owner, attribute, function)

    def watch(self, line: Any) -> None:
        """Note a worker's waits, answers and requests. A request lasts as long as the worker counts itself busy."""
        note, clock, words, inner_next, events = self.note, perf_counter_ns, line.words, line.next, self._events
        names = {int(op): op.name.lower() for op in Op}
        op, began, busy = Op.TRACE, 0, 0

        def following() -> Any:
            nonlocal op, began, busy
            start, spent = clock(), words[BUSY_NS]
            if began and op != Op.TRACE:
                end, (_, _, last, until) = began + spent - busy, events[-1]
                # `began` is read some time after the busy time begins, so the end may lie within the answer
                note((WORKER, names[op], began, last if last < end < until else end))
            found = inner_next()
            op, busy = found[1], spent
            note((WORKER, "wait", start, clock()))
            began = clock()
            return found

        self.put(line, "next", following)
        self.swap(WORKER, "answer", line, "answer")

    def restore(self) -> None:
        """Put everything back as it was."""
        while self._replaced:
            owner, attribute, before = self._replaced.pop()
            if before is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, before)

    def end(self) -> None:
        """Put everything back, and write the file."""
        self.restore()
        about = {"name": self._name, "pid": os.getpid(), "lanes": self.lanes, "events": list(self._events)}
        with contextlib.suppress(OSError), open(f"{self._file}.tmp", "w") as file:  # the trace has been given up
            json.dump(about, file)
            os.rename(file.name, self._file)


class TimedSteps(list[Any]):
    """The steps of a server's slots, each of which notes an event; a step that is assigned later does, too.

    Attributes:
        plain: the steps that note nothing.
    """

    def __init__(self, steps: Iterable[Any], recorder: Recorder, first: int) -> None:
        self.plain: list[Any] = list(steps)
        self._recorder, self._first = recorder, first
        super().__init__(map(self._timed, range(len(self.plain)), self.plain))

    def __setitem__(self, i: Any, step: Any) -> None:
        self.plain[i] = step
        super().__setitem__(i, self._timed(i, step))

    def _timed(self, i: int, step: Any) -> Any:
        return self._recorder.timed(self._first + i, "step", step)


def recorder_of(directory: str, index: int, slots: Iterable[int], line: Any) -> Recorder:
    """Return a worker's recorder, which writes a file in the directory. `line`: None in the caller's own thread."""
    file = f"{directory}/{index}-{os.getpid()}-{perf_counter_ns()}.json"
    made = Recorder(file, f"worker {index}" if line is not None else "the caller's slots")
    made.lanes |= {1 + slot: f"slot {slot}" for slot in slots}
    if line is not None:
        made.watch(line)
    return made
