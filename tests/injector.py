"""Interrupts at chosen moments: an exception out of nowhere, at the n-th point where CPython would look for signals.

A signal's handler runs in the main thread, between two instructions: when a Python function begins, after a call that
was not one to a Python function, and at a jump backward. The instructions of this thread are watched and counted, and
one of these points is where it is raised, so that a test can try every moment, one after the other, which no clock can.
Python 3.11 tells of instructions by a trace function, which is a thread's own, and later versions by `sys.monitoring`,
which is for all threads at once.
"""

import dis
import inspect
import itertools
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

LOOKS = {
    dis.opmap[name] for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD") if name in dis.opmap
}  # instructions at whose end CPython looks for signals
RESUME = dis.opmap["RESUME"]  # so does this one, the first of a function and of what follows a yield


class Interrupt(KeyboardInterrupt):
    pass


class Injector:
    """Runs functions of no arguments. `moment`: the source line of the point where it last interrupted one."""

    def __init__(self) -> None:
        self.moment: str | None = None
        self._left = 0
        self._count = 0
        self._thread = 0
        self._last: tuple[int, CodeType, int] | None = None  # the latest instruction: frame's id, code, offset

    def count(self, act: Callable[[], object]) -> int:
        """How many points `act` has."""
        self.run(act, 0)
        return self._count

    def run(self, act: Callable[[], object], point: int) -> None:
        """Call `act` and interrupt it at `point` (from 1; 0: never). It may catch that, or not come so far."""
        self.moment, self._left, self._count, self._last = None, point, 0, None
        self._thread = threading.get_ident()
        _watch(self._next)
        try:
            act()
        except KeyboardInterrupt:
            return
        finally:
            self.stop()

    def stop(self) -> None:
        """What follows is not interrupted; for `act`."""
        _watch(None)

    def _next(self, frame: FrameType) -> None:
        """This instruction is the next one."""
        code, offset = frame.f_code, frame.f_lasti
        if threading.get_ident() != self._thread or code.co_filename == __file__:
            return
        last, self._last = self._last, (id(frame), code, offset)
        points = _points(code)
        if offset in points.handlers:  # the call before it raised, and what raises does not look
            return
        if offset in points.begun:
            self._look(frame)
        elif last is not None:
            before, ended, at = last
            if before == id(frame):
                looks = at in points.looks
            else:  # a Python function has ended, whose call does not look again unless it was C code that called it
                by_c = ended.co_name == "__init__" or ended.co_flags & inspect.CO_GENERATOR
                looks = bool(by_c) and offset in points.called
            if looks:
                self._look(frame)

    def _look(self, frame: FrameType) -> None:
        if _deaf(frame):
            return
        self._count += 1
        if self._count == self._left:
            self.moment = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
            self.strike(frame)

    def strike(self, frame: FrameType) -> None:
        """What happens at that point."""
        raise Interrupt


class Pressed(Injector):
    """Ctrl-C at chosen moments: not an exception out of nowhere, but what SIGINT's handler makes of it."""

    def strike(self, frame: FrameType) -> None:
        handler: Any = signal.getsignal(signal.SIGINT)
        handler(signal.SIGINT, frame)


if sys.version_info >= (3, 12):
    TOOL = 4  # not one of those that debuggers, profilers and coverage have

    def _watch(tell: Callable[[FrameType], None] | None) -> None:
        """Tell of every instruction from now on, or of none any more."""
        monitoring = sys.monitoring
        if monitoring.get_tool(TOOL) is not None:
            monitoring.set_events(TOOL, 0)
            monitoring.free_tool_id(TOOL)
        if tell is not None:
            monitoring.use_tool_id(TOOL, "injector")
            told = monitoring.events.INSTRUCTION
            monitoring.register_callback(TOOL, told, lambda code, offset: tell(sys._getframe(1)))
            monitoring.set_events(TOOL, told)

else:

    def _watch(tell: Callable[[FrameType], None] | None) -> None:
        """Tell of every instruction of this thread from now on, or of none any more."""

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode" and tell is not None:
                tell(frame)
            return trace

        sys.settrace(trace if tell is not None else None)


def _deaf(frame: FrameType | None) -> bool:
    """Is this within a `__del__`? What is raised there is only reported."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class Points(NamedTuple):
    """Offsets of instructions: that look at their end; that follow a call; that follow a function's beginning; that a
    handler begins with."""

    looks: frozenset[int]
    called: frozenset[int]
    begun: frozenset[int]
    handlers: frozenset[int]
    code: CodeType


_POINTS: dict[int, Points] = {}  # by id: to hash a code is to go through all of it


def _points(code: CodeType) -> Points:
    points = _POINTS.get(id(code))
    if points is None:
        found = list(dis.get_instructions(code))
        pairs = list(itertools.pairwise(found))
        points = _POINTS[id(code)] = Points(
            frozenset(each.offset for each in found if each.opcode in LOOKS),
            frozenset(b.offset for a, b in pairs if a.opcode in LOOKS and a.opname != "JUMP_BACKWARD"),
            frozenset(b.offset for a, b in pairs if a.opcode == RESUME),
            frozenset(each.offset for each in found if each.opname == "PUSH_EXC_INFO"),
            code,
        )
    return points
