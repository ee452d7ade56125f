"""The server: the one dispatcher over a worker's slots, the same in a process, a thread and the caller itself.

It turns requests into replies and never raises what a slot's program raises. A failure is part of the reply and belongs
to its slot alone; the other slots' results stand. Indices here are local (0..k-1); replies name slots.

`step` is the tightest loop of the project. Everything in it is bound beforehand. A step that neither ends an episode
nor carries an info costs the environment's own step and three writes: observation, reward and `done`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from numbers import Real
from time import perf_counter_ns
from typing import Any

from treadle.coroutines import GivenUp
from treadle.errors import attributes_of
from treadle.memory.rows import Rows
from treadle.spaces import Mailed
from treadle.wire.info_rows import FinalRows, InfoPacker, InfoRows
from treadle.wire.messages import (
    Extras,
    Op,
    Raised,
    Reply,
    Request,
    checked_info,
    copied,
    numbers_copied,
    portable,
    shown,
    snapshot,
    unsendable,
    without_failing,
)
from treadle.worker.recorder import WORKER, Recorder, TimedSteps, recorder_of

EVERY, COSTS = 127, 1_500_000  # one request of EVERY is timed; more, where a slot takes COSTS ns or a part of that


class Server:
    """Serves the requests of a worker's slots.

    Args:
        slots: their numbers.
        programs: one a slot.
        in_caller: see `caught`.
        local: True: replies are not pickled on their way, so they are made snapshots here.

    Attributes:
        ended: True if a slot's episode ended in the latest step.
        due: the number of the next request whose steps are timed, slot by slot.
        took: ns of the latest timed request.
        alone: True if it serves without workers beside it. Infos that are numbers then stay dicts, as nothing joins
            them as rows.
    """

    def __init__(self, slots: tuple[int, ...], programs: list[Any], *, in_caller: bool = False, local: bool = False):
        self.slots, self.programs = slots, programs
        self._catch: Any = caught(in_caller)
        self._local = local
        k = len(slots)
        self._all = range(k)
        self._steps: list[Any] = [p.step for p in programs]
        self._ticks = 0  # steps taken by all slots together; a slot's own count is this plus its own
        self._packer = InfoPacker(slots)
        self._own: Any = [0] * k
        self._began: Any = [0] * k  # the count of steps at which the slot's episode began
        self._episode: Any = [0 if p.begun else -1 for p in programs]
        self._seed: list[int | None] = [None] * k
        self._phase = "step"
        self._rows: Rows | None = None
        self._view: Any = None  # the block that the current request writes
        self.ended, self.due, self.took = False, 0, 0
        self._recorder: Recorder | None = None
        self.alone = False

    def attach(self, rows: Rows) -> None:
        """Step into these rows. The counts of steps and episodes are kept there from now on, for the caller to read."""
        self._rows = rows
        for i in self._all:
            rows.began[i], rows.episode[i], rows.own[i] = self._began[i], self._episode[i], self._own[i]
        self._began, self._episode, self._own = rows.began, rows.episode, rows.own

    def handle(self, request: Request, control: Any) -> Iterator[Reply]:
        """Serve one request. `control`: answers streams between steps."""
        if request.op is Op.STREAM:
            yield from self._stream(request.id, request.payload, control)
            return
        self._phase = request.op.name.lower()
        extras: Extras | None = None
        try:
            if request.op is Op.STEP:
                extras = self.step(request.id, request.block, *(request.payload or ()))
            elif request.op is Op.RESET:
                extras = self._reset(request.id, request.block, request.payload)
            elif request.op is Op.TRACE:
                directory, worker = request.payload
                self.record(directory, worker, getattr(control, "line", None))
            else:
                extras = self._call(request.id, request.payload)
        finally:
            self._phase = "step"
        yield Reply(request.id, extras)

    def record(self, directory: str | None, worker: int, line: Any = None) -> None:
        """Write events to a file in this directory until this is called with None, or the server is closed."""
        if self._recorder is not None:
            self._recorder.end()
            self._steps, self._recorder = self._steps.plain, None  # type: ignore[attr-defined]
        if directory is not None:
            recorder = self._recorder = recorder_of(directory, worker, self.slots, line)
            self._steps = TimedSteps(self._steps, recorder, 1 + self.slots[0])
            for slot, program in zip(self.slots, self.programs):
                program.record(recorder, 1 + slot)
            if line is None:
                recorder.swap(WORKER, "step", self, "step")

    def close(self) -> dict[int, Raised]:
        """Close every program; return what they raise, and never raise it."""
        self.record(None, 0)
        raised = {}
        for i, program in enumerate(self.programs):
            try:
                program.close()
            except self._catch as error:
                with suppress(GivenUp):  # GivenUp: the caller no longer waits for an answer
                    raised[self.slots[i]] = self._raised(i, error, "close")
        return raised

    # -- lockstep ----------------------------------------------------------------------------------------------------

    def step(self, id: int, block: int, chosen: list[int] | None = None, mailed: Mailed | None = None) -> Extras | None:
        """Step all slots, or the `chosen` (slot numbers), into the rows of `block`. Returns None if rows say it all.

        `mailed`: actions that came by message, k values a leaf, whichever slots are chosen.
        """
        rows = self._rows
        try:
            view = self._view = rows.block(block)  # type: ignore[union-attr]
        except OSError as error:  # there was no room for a mapping: it is reported, and the worker lives
            return self._unmapped(id, error, chosen)
        actions = rows.read_actions(mailed)  # type: ignore[union-attr]
        steps, writes = self._steps, view.writes
        if chosen is None or len(chosen) == len(self.slots):
            chosen = None
            self._ticks += 1
            indices: Any = self._all
            todo: Iterator[Any] = zip(indices, steps, actions, writes)
            view.fresh()
        else:
            first = self.slots[0]
            indices = [slot - first for slot in chosen]
            for i in indices:
                self._own[i] += 1
                view.terminated[i] = view.truncated[i] = False
                view.valid[i] = True
            todo = iter([(i, steps[i], actions[i], writes[i]) for i in indices])
        if id >= self.due:
            todo = self._timing(todo, id)
        self.ended = False
        rewards, done = view.rewards, rows.done  # type: ignore[union-attr]
        infos: dict[int, Any] = {}
        loose: dict[int, list[Any]] = {}
        finals: dict[int, Any] = {}
        raised: dict[int, Raised] = {}
        i, action, reward = -1, None, 0.0
        while True:
            try:
                for i, step, action, write in todo:
                    observation, reward, terminated, truncated, info = step(action)
                    if terminated or truncated:
                        observation, info = self._end(i, view, finals, observation, reward, terminated, truncated, info)
                    without_shape = write(observation)
                    rewards[i] = reward
                    if info:
                        infos[i] = info
                    if without_shape is not None:
                        loose[i] = without_shape
                    done[i] = id
                break
            except self._catch as error:
                raised[i] = self._raised(i, _of_reward(error, reward), self._phase, action)
                self._phase = "step"
                done[i] = id
        if view.staged and chosen is None:
            view.settle()
        elif view.staged:  # the rows of the other slots may belong to another step
            for i in indices:
                view.settle_row(i)
        if infos or loose or finals or raised:
            return self.extras(infos, loose, finals, raised, actions)
        return None

    def _timing(self, todo: Iterator[Any], id: int) -> Iterator[Any]:
        """Yield the same slots, and time what the caller does between them. A step's reset counts by itself."""
        rows: Any = self._rows
        began = last = perf_counter_ns()
        for i, step, action, write in todo:
            before = rows.resetting[i]
            yield i, step, action, partial(self._write, i, write)
            now = perf_counter_ns()
            rows.stepped[i] += now - last - (rows.resetting[i] - before)
            rows.timed[i] += 1
            last = now
        self.took = last - began
        self.due = id + max(1, min(EVERY, COSTS * len(self.slots) // max(1, self.took)))  # a half per cent at most

    def _write(self, i: int, write: Any, observation: Any) -> Any:
        began = perf_counter_ns()
        untold = write(observation)
        self._rows.moved[i] += perf_counter_ns() - began  # type: ignore[union-attr]
        return untold

    def _unmapped(self, id: int, error: OSError, chosen: list[int] | None) -> Extras:
        """Return the answer where the block cannot be written: no slot is stepped."""
        slots = self.slots if chosen is None else chosen
        for slot in slots:
            self._rows.done[slot - self.slots[0]] = id  # type: ignore[union-attr]
        return Extras({}, {}, {}, dict.fromkeys(slots, Raised.of(error, "step")))

    def _end(
        self,
        i: int,
        view: Any,
        finals: dict[int, Any],
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: dict[str, Any],
    ) -> tuple[Any, dict[str, Any]]:
        """Handle a step that ended its episode: keep the terminal row, let the program move on as it is set to."""
        self.ended = True
        view.terminated[i] = terminated = bool(terminated)
        view.truncated[i] = truncated = bool(truncated)
        program = self.programs[i]
        untold = None
        if view.write_finals:  # before the program moves on: an env may use its arrays and its info again
            loose, layout = view.write_finals[i](observation), self._rows.layout  # type: ignore[union-attr]
            if loose is not None or layout.scalars:
                untold = snapshot(layout.untold(observation, loose))
            if info:
                if type(info) is not dict:
                    checked_info(info)
                try:
                    info = copied(info)
                except RecursionError:  # it is deep, or holds itself
                    info = snapshot(checked_info(info))
                except self._catch as error:  # copying runs foreign code
                    checked_info(info)
                    raise unsendable(info, "final_info", self._catch) or error from None
        self._phase = "reset"
        began = perf_counter_ns()
        record = program.ended(observation, reward, terminated, truncated, info)
        self._rows.resetting[i] += perf_counter_ns() - began  # type: ignore[union-attr]
        self._phase = "step"
        if record.final_info is not None:
            if record.final_info or untold is not None:  # the row itself is in the arena: most ends add nothing to it
                finals[i] = (record.final_info, untold)
            self._episode[i] += 1
            self._began[i] = self._ticks + self._own[i]
        self._steps[i] = partial(self._begin_row, i) if record.begins_next else program.step
        return record.observation, record.info

    def _begin_row(self, i: int, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Begin the next episode, in the place of a slot's step (NEXT_STEP)."""
        self._phase = "reset"
        program = self.programs[i]
        began = perf_counter_ns()
        observation, info = program.begin()
        self._rows.resetting[i] += perf_counter_ns() - began  # type: ignore[union-attr]
        self._phase = "step"
        self._steps[i] = program.step
        self._new_episode(i, self._seed[i])
        self._view.valid[i] = False
        return observation, 0.0, False, False, info

    def _reset(self, id: int, block: int, orders: dict[int, tuple[int | None, dict[str, Any] | None]]) -> Extras | None:
        rows = self._rows
        view = rows.block(block)  # type: ignore[union-attr]
        infos: dict[int, Any] = {}
        loose: dict[int, list[Any]] = {}
        raised: dict[int, Raised] = {}
        for slot, (seed, options) in orders.items():
            i = slot - self.slots[0]
            try:
                self._new_episode(i, seed)
                began = perf_counter_ns()
                observation, info = self.programs[i].begin(seed, options)
                rows.resetting[i] += perf_counter_ns() - began  # type: ignore[union-attr]
                self._steps[i] = self.programs[i].step
                without_shape = view.writes[i](observation)
                view.rewards[i] = 0.0
                view.terminated[i] = view.truncated[i] = False
                view.valid[i] = False
                if view.staged:
                    view.settle_row(i)
                if info:
                    infos[i] = info
                if without_shape is not None:
                    loose[i] = without_shape
            except self._catch as error:
                raised[i] = self._raised(i, error, "reset")
            rows.done[i] = id  # type: ignore[union-attr]
        return self.extras(infos, loose, {}, raised) if infos or loose or raised else None

    # -- calls and streams -------------------------------------------------------------------------------------------

    def _call(self, id: int, orders: dict[int, tuple[str, tuple[Any, ...], dict[str, Any]]]) -> Extras:
        results: dict[int, Any] = {}
        handed: dict[int, Any] = {}  # results that are not copied
        raised: dict[int, Raised] = {}
        for slot, (name, args, kwargs) in orders.items():
            i = slot - self.slots[0]
            try:
                result = self.programs[i].call(name, args, kwargs)
                (handed if self._local and self.programs[i].hands_over(name, args) else results)[i] = result
            except self._catch as error:
                raised[i] = self._raised(i, error, "call")
            begins = self.programs[i].begins_next_now
            if begins is not None:  # it was put into another state
                self.programs[i].begins_next_now = None
                self._steps[i] = partial(self._begin_row, i) if begins else self.programs[i].step
            elif not self._begins_next(i):
                self._steps[i] = self.programs[i].step
            if self._rows is not None:
                self._rows.done[i] = id
        extras = self._extras(results, {}, {}, raised)
        own = {self.slots[0] + i: result for i, result in handed.items()}
        return extras._replace(infos={**extras.infos, **own}) if own else extras

    def _begins_next(self, i: int) -> bool:
        """Return True if the slot's step is about to begin the next episode (NEXT_STEP)."""
        step = getattr(self._steps, "plain", self._steps)[i]
        return isinstance(step, partial) and step.func == self._begin_row

    def _stream(self, id: int, orders: dict[int, Any], control: Any) -> Iterator[Reply]:
        """Run the slots' streams round robin until all have ended. A stream's return value is sent at its end."""
        indices = [(slot - self.slots[0], order) for slot, order in orders.items()]
        open_streams = {i: self._opened(i, order, control) for i, order in indices}
        last: Extras | None = None  # what the latest stream to end has returned
        while open_streams:
            for i, results in list(open_streams.items()):
                try:
                    value = next(results)
                except StopIteration as end:
                    del open_streams[i]
                    last = None if end.value is None else self._extras({i: end.value}, {}, {}, {})
                    if open_streams and last is not None:
                        yield Reply(id, last, last=False)
                except self._catch as error:
                    del open_streams[i]
                    last = None
                    yield Reply(id, self._extras({}, {}, {}, {i: self._raised(i, error, "stream")}), last=False)
                else:
                    yield Reply(id, self._extras({i: value}, {}, {}, {}), last=False)
        yield Reply(id, last)

    def _opened(self, i: int, order: Any, control: Any) -> Generator[Any, None, Any]:
        """Run a program's stream. Opening it inside a generator makes its exception come with the first result."""
        return (yield from self.programs[i].stream(order, control))

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _new_episode(self, i: int, seed: int | None) -> None:
        self._seed[i] = seed
        self._episode[i] += 1
        self._began[i] = self._ticks + self._own[i]
        if self._rows is not None:
            self._rows.seed[i] = seed if seed is not None and 0 <= seed < 2**63 else -1

    def extras(
        self,
        infos: dict[int, Any],
        loose: dict[int, list[Any]],
        finals: dict[int, Any],
        raised: dict[int, Raised],
        actions: Any = None,
    ) -> Extras:
        """Return what a step or a reset says beyond its rows. Infos become rows of numbers where they can.

        A value that is not an info (`checked_info`) becomes its slot's failure.
        """
        groups: Any = ()
        if self.alone and not (loose or finals or raised) and (own := numbers_copied(infos)) is not None:
            return Extras(own, {}, {}, {})
        if infos:
            groups, infos = self._packer.pack(infos)
        if not (infos or loose or finals or raised):
            return Extras(InfoRows(groups), {}, {}, {})
        for i, info in infos.items():
            try:
                checked_info(info)
            except self._catch as error:
                raised[i] = self._raised(i, error, self._phase, None if actions is None else actions[i])
        final_groups: Any = ()
        if finals and not self._local:  # in the caller they are its own copies already
            final_groups, rest = self._packer.pack({i: info for i, (info, more) in finals.items() if more is None})
            finals = {i: final for i, final in finals.items() if final[1] is not None or i in rest}
        extras = self._extras({i: info for i, info in infos.items() if i not in raised}, loose, finals, raised)
        if groups:
            extras = extras._replace(infos=InfoRows(groups, dict(extras.infos)))
        return extras._replace(finals=FinalRows(final_groups, dict(extras.finals))) if final_groups else extras

    def _extras(
        self, infos: dict[int, Any], loose: dict[int, list[Any]], finals: dict[int, Any], raised: dict[int, Raised]
    ) -> Extras:
        if self._local and (infos or loose or raised):
            mine = Extras(infos, loose, {}, raised)  # final infos are copies already
            good, loose, _, raised = without_failing(mine, self._phase, snapshot, self._catch)
            infos, finals = dict(good), {i: final for i, final in finals.items() if i not in raised}
        first = self.slots[0]
        if first:
            tables: Any = (infos, loose, finals, raised)
            infos, loose, finals, raised = ({first + i: v for i, v in table.items()} for table in tables)
        return Extras(infos, loose, finals, raised)

    def _raised(self, i: int, error: BaseException, phase: str, action: Any = None) -> Raised:
        if type(error) is GivenUp:
            raise error
        where: dict[str, Any] = {"episode": self._episode[i] if self._episode[i] >= 0 else None, "seed": self._seed[i]}
        placed = attributes_of(error)
        if phase == "stream":  # a stream's program reports its own place
            phase = placed.get("treadle_phase", phase)
            where.update(placed.get("treadle_where", {}))
        elif phase == "step":
            where.update(step=self._ticks + self._own[i] - self._began[i], last_action=portable(action))
        return Raised.of(error, phase, catch=self._catch, trail=placed.get("treadle_trail"), **where)


def caught(in_caller: bool) -> Any:
    """Return the exceptions that count as a slot's own failure.

    In the caller's own thread a KeyboardInterrupt comes from the person at the keyboard and passes through. So does
    every other exception that is not an Exception: a signal handler may have raised it.
    """
    return (Exception, SystemExit, GeneratorExit) if in_caller else BaseException


def _of_reward(error: BaseException, reward: Any) -> BaseException:
    """Return the error of a step.

    For a reward that could not be written, a memoryview reports its own format; this error has the reward itself.
    """
    if type(error) is not TypeError or isinstance(reward, Real):  # another class: none of its code runs here
        return error
    here = error.__traceback__ is not None and error.__traceback__.tb_next is None  # not raised within the environment
    if here and str(error).startswith("memoryview: "):
        return TypeError(f"a reward is one number, got {shown(reward)}").with_traceback(error.__traceback__)
    return error
