"""Interrupts at chosen moments: an exception out of nowhere, at the n-th point where CPython would look for signals.

A signal's handler runs in the main thread, between two instructions: when a Python function begins, after a call that
was not one to a Python function, and at a jump backward. A trace function counts these points and raises at one of
them, so that a test can try every moment, one after the other, which no clock can.
"""

import dis
import itertools
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

import pytest

EVERYWHERE_IT_MAY_COME = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="opcodes are traced as from 3.12 on only in part"
)

LOOKS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD") if name in dis.opmap}


class Interrupt(KeyboardInterrupt):
    pass


class Injector:
    """Runs functions of no arguments. `moment`: the source line of the point where it last interrupted one."""

    def __init__(self) -> None:
        self.moment: str | None = None
        self._left = 0
        self._count = 0
        self._returned: tuple[FrameType | None, str] | None = None
        self._entered: FrameType | None = None

    def count(self, act: Callable[[], object]) -> int:
        """How many points `act` has."""
        self.run(act, 0)
        return self._count

    def run(self, act: Callable[[], object], point: int) -> None:
        """Call `act` and interrupt it at `point` (from 1; 0: never). It may catch that, or not come so far."""
        self.moment, self._left, self._count, self._returned, self._entered = None, point, 0, None, None
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            act()
        except KeyboardInterrupt:
            return
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "call":
            self._entered = frame  # not here and now: CPython 3.11 forgets to free a frame whose trace of this raises
        elif event == "return":
            self._returned = frame.f_back, frame.f_code.co_name
        elif event == "opcode":
            returned, self._returned, entered, self._entered = self._returned, None, self._entered, None
            inlined = returned is not None and returned[0] is frame and returned[1] != "__init__"
            if entered is frame or (frame.f_lasti in _after_looks(frame.f_code) and not inlined):
                self._look(frame)
        return self._trace

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


def _deaf(frame: FrameType | None) -> bool:
    """Is this within a `__del__`? What is raised there is only reported."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


@cache
def _after_looks(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions that come after those at whose end CPython looks for signals."""
    instructions = list(dis.get_instructions(code))
    return frozenset(b.offset for a, b in itertools.pairwise(instructions) if a.opcode in LOOKS)
