"""The worker's side of planning: its work on a chunk of a batch, and the program in its slot."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np

from treadle.memory.arena import Arena
from treadle.memory.lent import Region
from treadle.plan.env import walking
from treadle.plan.items import (
    ALIGN,
    LaidRows,
    LaidStates,
    Method,
    PlanOp,
    StateBatch,
    Work,
    WorkDone,
    lay,
    lift,
    state_batch,
)
from treadle.program.base import Program
from treadle.program.ids import register_missing
from treadle.states.keeper import PLAIN
from treadle.wire.line import ITEM
from treadle.wire.messages import Raised, snapshot


class Room:
    """A worker's side of a region, which holds the results.

    Args:
        memory: of the buffer.
        region: the chunk's part of the buffer.
    """

    def __init__(self, memory: Any, region: Region) -> None:
        self._memory, self._at, self._end = memory, region.start, region.end
        self._rows: LaidRows | None = None
        self.needed = 0  # bytes of all requests, granted or not

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """Return an array in the region; None if it does not fit. Call it once."""
        nbytes = dtype.itemsize * int(np.prod(shape))
        self.needed += nbytes + ALIGN
        at = -(-self._at // ALIGN) * ALIGN
        if at + nbytes > self._end:
            return None
        self._rows, self._at = LaidRows(dtype.str if dtype.names is None else dtype, shape, at), at + nbytes
        return np.ndarray(shape, dtype, self._memory, at)

    def observations(self, values: Any) -> Any:
        """Return the message for observations: their place if they are rows of the array, else the values.

        Values that are not rows are a list, see `Observations`.
        """
        if self._rows is None or not isinstance(values, np.ndarray):
            return values
        return self._rows._replace(shape=values.shape)

    def states(self, states: StateBatch) -> LaidStates | None:
        """Copy states into the region and return their place; None if they do not fit."""
        nbytes = sum(map(len, states.data))
        self.needed += nbytes
        return None if self._at + nbytes > self._end else lay(self._memory, self._at, states)


def beginnings(work: Work) -> Iterator[Any]:
    """Yield the state that each item of the chunk begins in; None: it continues the one before."""
    if work.states is None:
        return itertools.repeat(None)
    own = iter(work.states)
    if work.repeat == 1:
        return own
    first, end, k = work.first, work.first + len(work), work.repeat
    shares = (
        itertools.repeat(state, min(end, (at + 1) * k) - max(first, at * k)) for at, state in enumerate(own, work.base)
    )
    return chain.from_iterable(shares)


def do_work(env: Any, work: Work, room: Room | None = None, words: Any = None) -> WorkDone:
    """Do a chunk with an environment, with results in `room`. The environment's exception becomes `WorkDone.failed`.

    `words[ITEM]` always holds 1 + the number of the present item; 0: none.
    """
    done, began = WorkDone(), perf_counter()
    states: list[Any] = []
    words = [0] * (ITEM + 1) if words is None else words
    words[ITEM] = work.first + 1
    # every item sets its own state, so one reset at the end is enough
    put_off = work.states is not None and getattr(env, "autoreset", False)
    if put_off:
        env.autoreset = False
    ended = False
    try:
        do = do_steps if work.rollout is None else do_rollouts
        ended = do(env, work, states, done, room, words)
    except Exception as error:  # noqa: BLE001 - the caller raises it, with its item
        done.failed = work.first + len(done.infos), Raised.of(error, "step")
    finally:
        words[ITEM] = 0
        if put_off:
            env.autoreset = True
    if ended and put_off:
        env.reset(return_state=False)
    done.states = state_batch(states) if work.return_state else None
    if room is not None:
        done.observations = room.observations(done.observations)
        if isinstance(done.states, StateBatch):
            done.states = room.states(done.states) or done.states
        done.room = room.needed
    done.seconds = perf_counter() - began
    return done


def do_steps(env: Any, work: Work, states: list[Any], done: WorkDone, room: Room | None, words: Any) -> bool:
    """Step the items of a chunk; append wanted states to `states`. Return True if the last item ended its episode."""
    wanted, at = work.return_state, work.first + 1
    observations = Observations(len(work), room)
    rewards: list[Any] = []
    see, terminals, truncateds, infos = observations.add, done.terminals, done.truncateds, done.infos
    for row in walking(env, wanted)(work.actions, beginnings(work), work.dts):
        state, observation, reward, terminal, truncated, info = row
        if wanted:
            states.append(state)
        see(observation)
        rewards.append(reward if type(reward) is float else held(reward))
        terminals.append(terminal)
        truncateds.append(truncated)
        infos.append(info if PLAIN.issuperset(map(type, info.values())) else held(info))
        words[ITEM] = at = at + 1
    done.observations, done.rewards = observations.whole(), rewards
    return terminal or truncated


def do_rollouts(env: Any, work: Work, states: list[Any], done: WorkDone, room: Room | None, words: Any) -> bool:
    """Play each item's actions from its state until they, or the episode, end. Returns as `do_steps`."""
    rewards = np.zeros((len(work), max(map(len, work.actions))))
    observations: list[Any] = []
    steps = walking(env, False)
    for actions, state, dt, row in zip(work.actions, beginnings(work), work.dts, rewards):
        shown: list[Any] = []
        length = 0
        # only the item's first action begins in the state; the others continue
        begin = chain((state,), itertools.repeat(None))
        words[ITEM] = work.first + len(done.infos) + 1
        for _, observation, reward, terminal, truncated, _info in steps(actions, begin, itertools.repeat(dt)):
            row[length] = reward if type(reward) is float else _number(reward)
            length += 1
            if work.rollout == "all":
                shown.append(held(observation))
            if terminal or truncated:
                break
        if work.rollout == "last":
            observations.append(held(observation))
        else:
            observations.append(stacked(shown) if shown else None)
        if work.return_state:
            states.append(env.get_state())
        done.terminals.append(terminal)
        done.truncateds.append(truncated)
        done.lengths.append(length)
        done.infos.append({})
    done.rewards, done.observations = rewards, observations if work.rollout == "all" else stacked(observations)
    return terminal or truncated


def _number(reward: Any) -> Any:
    """Return a reward as a float. Raises TypeError for None and text, which an array would take for NaN and numbers."""
    try:
        if isinstance(reward, str | bytes):
            raise TypeError
        return float(reward)
    except (TypeError, ValueError):
        raise TypeError(f"step() must return a number as its reward, got {reward!r:.200}") from None


def held(value: Any) -> Any:
    """Return a copy of the environment's result, whose arrays it may use again. NumPy scalars are not copied."""
    return value if isinstance(value, np.generic) else snapshot(value)


class Observations:
    """Observations of a chunk: rows of one array, which travels without a copy, or a list if they do not fit one.

    Arrays of shape () and subclasses of ndarray go into a list: as rows they would become scalars, or lose their class.
    """

    def __init__(self, count: int, room: Room | None = None) -> None:
        self._count, self._room = count, room
        self._array: np.ndarray | None = None
        self._dtype: np.dtype | None = None  # of its rows
        self._shape: tuple[int, ...] = ()
        self._list: list[Any] = []
        self._filled = 0

    def add(self, value: Any) -> None:
        """Add the next observation. Arrays are copied, as environments reuse theirs."""
        at = self._filled
        if at and type(value) is np.ndarray and value.dtype is self._dtype and value.shape == self._shape:
            self._array[at] = value  # type: ignore[index]  # as there is a dtype
        else:
            self._add(at, value)
        self._filled = at + 1

    def _add(self, at: int, value: Any) -> None:
        """Add the first observation, or one that differs from the first or needs a closer look."""
        if type(value) is np.ndarray and value.ndim:
            if at == 0 and not value.dtype.hasobject:
                shape = (self._count, *value.shape)
                own = None if self._room is None else self._room.array(shape, value.dtype)
                self._array = np.empty(shape, value.dtype) if own is None else own
                self._dtype, self._shape = value.dtype, value.shape
            if self._array is not None and (value.dtype, value.shape) == (self._dtype, self._shape):
                self._array[at] = value
                return
        if self._array is not None:
            self._list, self._array, self._dtype = list(self._array[:at]), None, None
        self._list.append(held(value))

    def whole(self) -> Any:
        """Return all values so far, as an array or a list."""
        return self._list if self._array is None else self._array[: self._filled]


def stacked(values: list[Any]) -> Any:
    """Return one array of arrays with one dtype and shape, which travels without a copy; else return the list."""
    if values and isinstance(values[0], np.ndarray) and not values[0].dtype.hasobject:
        first = values[0]
        if all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values):
            return np.stack(values)
    return values


class PlanSlot(Program):
    """Runs one environment with the interface of `PlanEnv`.

    Args:
        constructor: makes the environment.
        registrations: of the caller, from `own_registrations`.
    """

    def __init__(self, constructor: Callable[[], Any], registrations: bytes | None = None) -> None:
        register_missing(registrations)
        self.env = constructor()
        self.env.reset()
        self._arena: Arena | None = None
        self._words: Any = None  # None in the caller's process, where a worker cannot die alone
        self._buffers: dict[int, Any] = {}

    def share(self, arena: Arena, words: Any) -> None:
        """Keep the pool's memory, as this process maps it, and this worker's words in it."""
        self._arena, self._words = arena, words

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == PlanOp.WORK:
            return self._work(args[0])
        attribute, *rest = args
        found = getattr(self.env, attribute)
        if name == PlanOp.GET:
            return Method() if callable(found) and not isinstance(found, type) else found
        return found(*rest, **kwargs)

    def _work(self, work: Work) -> WorkDone:
        room = None
        if work.region is not None:
            memory = self._memory(work.region)
            room = Room(memory, work.region)
            if isinstance(work.states, LaidStates):
                work.states = lift(memory, work.states, apart=True)
        return do_work(self.env, work, room, self._words)

    def _memory(self, region: Region) -> Any:
        """Return the buffer of a region."""
        known = self._buffers.get(region.segment)
        if known is None:
            assert self._arena is not None
            known = self._buffers[region.segment] = region.opened(self._arena)
        return known

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if callable(close):
            close()
