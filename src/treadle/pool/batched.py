"""Workers whose slots are the rows of one program: they are stepped by one call, and live and die together.

A vectorised environment steps n rows in the time that Python needs for a few, so there is no loop over slots here: one
read of all actions, one call, one write a leaf. `Server` uses it in the place of its own ways where a program has an
attribute `batched`; every slot of the worker then has the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from treadle.errors import UsageError
from treadle.pool.messages import Extras, Raised
from treadle.spaces import Layout, Mailed, Mismatch
from treadle.spaces.leaves import describe

if TYPE_CHECKING:
    from treadle.pool.serve import Server

Orders = dict[int, tuple[int | None, Any]]


class BatchedStep(NamedTuple):
    """One step of k rows.

    Attributes:
        observations: a tree of arrays [k, *shape].
        rewards: numbers [k].
        terminated, truncated: bool[k].
        ended: does any row end an episode with this step?
        begun: int[m], rows that have begun an episode within this step: those of `finals`, or rows that are no
            transition but a reset.
        infos: row -> its info, only where there is something in it.
        finals: row -> (terminal observation, info) of rows that moved on within the step.
    """

    observations: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    ended: bool
    begun: np.ndarray
    infos: dict[int, dict[str, Any]]
    finals: dict[int, tuple[Any, dict[str, Any]]]


class BatchedProgram(Protocol):
    """What all slots of a worker share. Rows are 0..k-1."""

    def step(self, actions: Any) -> BatchedStep:
        """`actions`: a tree of arrays [k, *shape], its own to keep."""
        ...

    def reset(self, orders: Orders) -> tuple[Any, dict[int, dict[str, Any]]]:
        """Reset the rows of `orders` (row -> seed, options). Observations of all k rows, and infos by row."""
        ...

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], rows: list[int]) -> dict[int, Any]:
        """Run a named operation once; a result for each of the rows."""
        ...


class Batched:
    """The part of a server that is different for such a program."""

    def __init__(self, server: Server, program: BatchedProgram) -> None:
        self._server, self._program = server, program
        self._k = len(server.slots)
        self._rows: Any = None  # whose words these are:
        self._done = self._episode = self._began = np.zeros(0, np.int64)
        self._last: list[Any] = []  # the leaves that the program returned last, as it returned them

    def step(self, id: int, block: int, chosen: list[int] | None = None, mailed: Mailed | None = None) -> Extras | None:
        """As `Server.step`; all rows or none."""
        server = self._server
        rows: Any = server._rows
        server.ended = False
        if chosen is not None and len(chosen) != self._k:
            error = UsageError(f"slots {list(server.slots)} are one vectorised environment: they step together")
            return self._all_raised(error, "step", [slot - server.slots[0] for slot in chosen])
        view, done = rows.batch_view(block), self._words(rows)
        server._ticks += 1
        server._latest = id
        try:
            result = self._program.step(rows.batch_of_actions(mailed))
            last = self._write(view, rows.layout, result.observations)
            _numbers(view.rewards, result.rewards, "rewards")
            _flags(view.terminated, result.terminated, "terminated")
            _flags(view.truncated, result.truncated, "truncated")
            finals = self._finals(view, rows.layout, result.finals) if result.finals else None
        except server._catch as error:
            told = self._all_raised(error, "step", range(self._k))  # first: it raises where the rows are another's now
            server.note_failed(id, server.slots)
            done[...] = id
            return told
        self._last = last
        view.valid[...] = True
        begun = result.begun
        if len(begun):
            if not result.finals:
                view.valid[begun] = False
            self._episode[begun] += 1
            self._began[begun] = server._ticks
        server.ended = result.ended
        done[...] = id
        if result.infos or finals:
            return server.told(id, result.infos, {}, finals or {}, {})
        return None

    def reset(self, id: int, block: int, orders: Any) -> Extras | None:
        """As `Server._reset`. Rows that are not asked for must stay as they are, or all have failed."""
        server = self._server
        rows: Any = server._rows
        first = server.slots[0]
        local: Orders = {slot - first: order for slot, order in orders.items()}
        chosen = sorted(local)
        view = rows.batch_view(block)
        try:
            observations, infos = self._program.reset(local)
            kept = [row for row in range(self._k) if row not in local]
            self._check_kept(rows.layout, observations, kept)
            last = self._write(view, rows.layout, observations, chosen)
        except server._catch as error:
            told = self._all_raised(error, "reset", range(self._k))
            self._words(rows)[...] = id
            return told
        self._last = last
        view.rewards[chosen] = 0.0
        for flags in (view.terminated, view.truncated, view.valid):
            flags[chosen] = False
        for row, (seed, _) in local.items():
            server._new_episode(row, seed)
        self._words(rows)[chosen] = id
        infos = {row: info for row, info in infos.items() if row in local}
        return server.told(id, infos, {}, {}, {}) if infos else None

    def call(self, id: int, orders: Any) -> Extras:
        """As `Server._call`: what several slots are asked in the same words is asked once."""
        server = self._server
        first = server.slots[0]
        results: dict[int, Any] = {}
        handed: dict[int, Any] = {}
        raised: dict[int, Raised] = {}
        for order, rows in _alike({slot - first: order for slot, order in orders.items()}):
            name, args, kwargs = order
            try:
                as_is = server._local and server.programs[0].hands_over(name, args)
                (handed if as_is else results).update(self._program.call(name, args, kwargs, rows))
            except server._catch as error:
                raised.update(dict.fromkeys(rows, server._raised(rows[0], error, "call")))
        return server._results(results, raised, handed)

    def resume(self, id: int, block: int) -> set[int]:
        """As `Server.resume`: when the one step was cut short, nothing is known of any row."""
        server = self._server
        if server._latest != id:
            self.step(id, block)
        rows: Any = server._rows
        return server.failed_in(id) if all(number == id for number in rows.done) else set(server.slots)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _write(self, view: Any, layout: Layout, observations: Any, chosen: list[int] | None = None) -> list[Any]:
        values = layout.flatten(observations)
        for leaf, array, value in zip(layout.leaves, view.observations, values):
            if type(value) is not np.ndarray or value.dtype != array.dtype or value.shape != array.shape:
                raise Mismatch(leaf.path, f"{leaf.dtype}{list(array.shape)}", describe(value))
            if chosen is None:
                array[...] = value
            else:
                array[chosen] = value[chosen]
        return values

    def _finals(self, view: Any, layout: Layout, finals: dict[int, tuple[Any, dict[str, Any]]]) -> dict[int, Any]:
        """Write the terminal observations; what is left to be told goes by message."""
        told = {}
        for row, (observation, info) in finals.items():
            problem = layout.problem(observation)
            if problem is not None:
                problem.name = "final observation"
                raise problem
            for array, value in zip(view.finals, layout.flatten(observation)):
                array[row] = value
            if info:
                told[row] = (info, None)
        return told

    def _check_kept(self, layout: Layout, observations: Any, kept: list[int]) -> None:
        if not kept:
            return
        for before, now in zip(self._last, layout.flatten(observations)):
            if not np.array_equal(before[kept], now[kept], equal_nan=before.dtype.kind == "f"):
                raise UsageError(
                    "this vectorised environment does not know options['reset_mask']: it has reset rows that were to "
                    "stay as they are. Reset all slots"
                )

    def _words(self, rows: Any) -> np.ndarray:
        """`done` as an array; the other words are bound with it."""
        if rows is not self._rows:
            self._rows = rows
            self._done, self._episode, self._began = map(np.asarray, (rows.done, rows.episode, rows.began))
        return self._done

    def _all_raised(self, error: BaseException, phase: str, rows: Sequence[int]) -> Extras:
        server = self._server
        raised = server._raised(rows[0], error, phase)
        return server._extras({}, {}, {}, dict.fromkeys(rows, raised))


def _flags(target: np.ndarray, flags: Any, name: str) -> None:
    if type(flags) is not np.ndarray or flags.dtype != np.bool_ or flags.shape != target.shape:
        raise Mismatch((), f"bool{list(target.shape)}", describe(flags), name=name)
    target[...] = flags


def _numbers(target: np.ndarray, numbers: Any, name: str) -> None:
    if type(numbers) is not np.ndarray or numbers.dtype.kind not in "fiub" or numbers.shape != target.shape:
        raise Mismatch((), f"numbers{list(target.shape)}", describe(numbers), name=name)
    target[...] = numbers


def _alike(orders: dict[int, Any]) -> list[tuple[Any, list[int]]]:
    """Orders that are one and the same object, or equal where that can be told, with the rows that have them."""
    groups: list[tuple[Any, list[int]]] = []
    for row, order in orders.items():
        for known, rows in groups:
            if known is order or _same(known, order):
                rows.append(row)
                break
        else:
            groups.append((order, [row]))
    return groups


def _same(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # noqa: BLE001 - arrays among the arguments, or a foreign __eq__
        return False
