"""The receive loop of a worker, the same in a process and a thread: take a request, serve it, answer."""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns

from treadle.memory.arena import closed_by_others
from treadle.wire.line import BUSY_NS, Chosen, Undecodable, Unsendable, WorkerLine
from treadle.wire.messages import Extras, Op, Raised, Request, picklable, without_failing
from treadle.worker.serve import Server

STEP, CLOSE = int(Op.STEP), int(Op.CLOSE)


def serve(server: Server, line: WorkerLine) -> None:
    """Serve requests in a process or a thread, until one asks to close. Raises EOFError when the caller is gone."""
    while True:
        id, op, block, payload = line.next()
        start = perf_counter_ns()
        if op == STEP and (payload is None or type(payload) is Chosen):  # the common case, without ceremony
            extras = server.step(id, block, *(payload or ()))
            line.words[BUSY_NS] += perf_counter_ns() - start
            answer(line, id, extras, "step", ended=server.ended)
            continue
        if op == CLOSE:
            raised = server.close()
            answer(line, id, Extras({}, {}, {}, raised) if raised else None, "close")
            return
        if isinstance(payload, Undecodable):
            why = Raised.of(payload.error, Op(op).name.lower())
            answer(line, id, Extras({}, {}, {}, dict.fromkeys(server.slots, why)), why.phase)
            continue
        request = Request(id, Op(op), payload, block)
        untold: dict[int, Raised] = {}
        for reply in server.handle(request, Control(line, id)):
            extras = reply.extras
            if not reply.last and not line.credit(id):  # its results are dropped, but failures come at the end
                untold.update(extras.raised if extras is not None else {})
                continue
            if untold and reply.last:
                extras = Extras({}, {}, {}, untold)
            answer(line, id, extras, request.op.name.lower(), reply.last)
        line.words[BUSY_NS] += perf_counter_ns() - start


def answer(
    line: WorkerLine, id: int, extras: Extras | None, phase: str, last: bool = True, ended: bool = False
) -> None:
    """Answer; a result that cannot be packed becomes its slot's failure."""
    try:
        line.answer(id, extras, last, ended)
        return
    except Unsendable:
        assert extras is not None
        less = without_failing(extras, phase, picklable)
    try:
        line.answer(id, less, last, ended)
    except Unsendable as unsendable:  # each can be packed, but there are not enough descriptors for all, for example
        error = closed_by_others(unsendable.error) or unsendable.error
        why = Raised.of(error, phase, episode=line.latest_episode if phase == "stream" else None)
        line.answer(id, Extras({}, {}, {}, dict.fromkeys(set().union(*extras), why)), last, ended)


class Control:
    """The questions that a stream may ask between steps."""

    def __init__(self, line: WorkerLine, id: int) -> None:
        self.line = line
        self.stopped = partial(line.stopped, id)  # called at every step of small environments
        self.resets, self.begins, self.plays, self.ends = line.resets, line.begins, line.plays, line.ends
