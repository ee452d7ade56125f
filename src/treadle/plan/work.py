"""What travels between a batch's caller and its workers, and what a worker does with it.

A chunk (`Work`) may come with a region of memory: states go out and come back there, and the worker writes observations
straight into it. What a message of some size costs is new memory: a file for it, its pages on both sides, and giving
them back again; a region's pages are there and often in the cache. How much an item needs is known after the first
batch, which goes by message, as everything does that does not fit.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from treadle.plan.arguments import HANDLE
from treadle.plan.stepping import walking
from treadle.plan.store import StateRows
from treadle.pool.arena import Arena
from treadle.pool.buffers import Region
from treadle.pool.line import ITEM
from treadle.pool.messages import Raised
from treadle.pool.serve import snapshot
from treadle.program.base import Description, Program
from treadle.program.registered import register_missing
from treadle.states.encoding import PLAIN
from treadle.states.state import EnvState

ALIGN = 64


@dataclass(frozen=True)
class StateBatch:
    """States of one kind as they travel: most of what is sent of them would be the kind, again and again."""

    kind: str
    data: list[bytes]

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[EnvState]:
        return map(EnvState, itertools.repeat(self.kind), self.data)


def packed(states: list[Any]) -> Any:
    """States as they travel best."""
    if set(map(type, states)) != {EnvState}:
        return states
    kinds = set(map(_kind_of, states))
    return StateBatch(kinds.pop(), list(map(_data_of, states))) if len(kinds) == 1 else states


_kind_of, _data_of = attrgetter("kind"), attrgetter("data")


class LaidStates(NamedTuple):
    """States of one kind that lie in memory, one after the other from `at`."""

    kind: str
    sizes: list[int]
    at: int


class LaidRows(NamedTuple):
    """Observations that lie in memory."""

    dtype: str | np.dtype  # itself where it is structured: its `str` says nothing of the fields
    shape: tuple[int, ...]
    at: int


def lay(memory: Any, at: int, states: StateBatch) -> LaidStates:
    """Put states into memory."""
    joined = b"".join(states.data)
    memory[at : at + len(joined)] = joined
    return LaidStates(states.kind, list(map(len, states.data)), at)


def lift(memory: Any, laid: LaidStates) -> StateBatch:
    """Copy states out of memory."""
    kind, sizes, at = laid
    data = memory[at : at + sum(sizes)].tobytes()
    return StateBatch(kind, list(map(data.__getitem__, map(slice, accumulate(sizes, initial=0), accumulate(sizes)))))


@dataclass
class Work:
    """A chunk of a batch: consecutive items, for one slot.

    Attributes:
        first: the number of its first item in the batch.
        actions, dts: one for each item. Of a rollout: one sequence for each item, and no dts.
        states: the states that the items begin in, each for the items whose number has it as its quotient by `repeat`;
            `base` is the quotient of the first. None: items go on from one another.
        rows: instead of `states`: where in the store they lie.
        return_state: False, True, or "handle": then `targets` says where in the store each item's state goes.
        store: the store, where rows are spoken of.
        region: memory for what comes back; `states` may lie in its buffer.
    """

    first: int
    actions: Sequence[Any] | np.ndarray
    dts: list[int]
    states: Any
    return_state: bool | str
    repeat: int = 1
    base: int = 0
    rows: list[int] | None = None
    targets: list[int] | None = None
    store: StateRows | None = None
    rollout: str | None = None  # None: a batch of steps; else which observations are wanted: "none", "last", "all"
    region: Region | None = None

    def __len__(self) -> int:
        return len(self.actions)

    def __reduce__(self) -> tuple[Any, ...]:
        return Work, tuple(self.__dict__.values())  # half the time that a dataclass takes by itself

    @property
    def given(self) -> bool:
        """Do the items begin in states of their own?"""
        return self.states is not None or self.rows is not None


@dataclass
class Done:
    """What came of a chunk, in columns.

    Attributes:
        failed: the item that raised, and why; those after it were not tried.
        room: bytes of a region that it takes.
    """

    states: Any = None
    observations: Any = None
    rewards: Any = None
    terminals: list[bool] = field(default_factory=list)
    truncateds: list[bool] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    seconds: float = 0.0
    room: int = 0
    failed: tuple[int, Raised] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Done, tuple(self.__dict__.values())  # as above

    def __deepcopy__(self, memo: dict[int, Any]) -> Done:
        """Within one process replies are copied; here only infos and foreign states may be the environment's still."""
        states = self.states if isinstance(self.states, StateBatch) else copy.deepcopy(self.states, memo)
        return replace(self, states=states, infos=copy.deepcopy(self.infos, memo))


class Room:
    """A worker's side of a region: where what comes back is put.

    Args:
        memory: the buffer's.
        region: the chunk's part of it.
    """

    def __init__(self, memory: Any, region: Region) -> None:
        self._memory, self._at, self._end = memory, region.start, region.end
        self._rows: LaidRows | None = None
        self.needed = 0  # bytes that what was asked for takes

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """An array in the region; None when it does not fit. To be asked once."""
        nbytes = dtype.itemsize * int(np.prod(shape))
        self.needed += nbytes + ALIGN
        at = -(-self._at // ALIGN) * ALIGN
        if at + nbytes > self._end:
            return None
        self._rows, self._at = LaidRows(dtype.str if dtype.names is None else dtype, shape, at), at + nbytes
        return np.ndarray(shape, dtype, self._memory, at)

    def observations(self, values: Any) -> Any:
        """What is sent of observations: where they lie, if they are rows of the array (no list: see `Observations`)."""
        if self._rows is None or not isinstance(values, np.ndarray):
            return values
        return self._rows._replace(shape=values.shape)

    def states(self, states: StateBatch) -> LaidStates | None:
        """Put states into the region; None when they do not fit."""
        nbytes = sum(map(len, states.data))
        self.needed += nbytes
        return None if self._at + nbytes > self._end else lay(self._memory, self._at, states)


Keep = Callable[[Any], None]  # takes the states that the items lead to, one after the other


def beginnings(work: Work) -> Iterator[Any]:
    """The state that each item of the chunk begins in; None where it goes on."""
    if work.rows is not None:
        assert work.store is not None
        own: Iterator[Any] = map(work.store.read, work.rows)
    elif work.states is not None:
        own = iter(work.states)
    else:
        return itertools.repeat(None)
    if work.repeat == 1:
        return own
    first, end, k = work.first, work.first + len(work), work.repeat
    shares = (
        itertools.repeat(state, min(end, (at + 1) * k) - max(first, at * k)) for at, state in enumerate(own, work.base)
    )
    return chain.from_iterable(shares)


def keeping(states: list[Any], work: Work) -> Keep:
    """Takes the states into the list, or where `work` says."""
    if work.return_state != HANDLE:
        return states.append
    assert work.store is not None
    assert work.targets is not None
    write, targets = work.store.write, iter(work.targets)
    return lambda state: write(next(targets), state)


def do_work(env: Any, work: Work, room: Room | None = None, words: Any = None) -> Done:
    """Have an environment do a chunk, into its `room`. Never raises for what the environment does: see `Done`.

    `words[ITEM]` says all the while which item it is at.
    """
    done, began = Done(), perf_counter()
    states: list[Any] = []
    words = [0] * (ITEM + 1) if words is None else words
    words[ITEM] = work.first + 1
    # the next item says itself where it begins: one reset at the end will do
    put_off = work.given and getattr(env, "autoreset", False)
    if put_off:
        env.autoreset = False
    ended = False
    try:
        do = do_steps if work.rollout is None else do_rollouts
        ended = do(env, work, keeping(states, work), done, room, words)
    except Exception as error:  # noqa: BLE001 - told to the caller, item and all
        done.failed = work.first + len(done.infos), Raised.of(error, "step")
    finally:
        words[ITEM] = 0
        if put_off:
            env.autoreset = True
    if ended and put_off:
        env.reset(return_state=False)
    done.states = packed(states) if work.return_state is True else None
    if room is not None:
        done.observations = room.observations(done.observations)
        if isinstance(done.states, StateBatch):
            done.states = room.states(done.states) or done.states
        done.room = room.needed
    done.seconds = perf_counter() - began
    return done


def do_steps(env: Any, work: Work, keep: Keep, done: Done, room: Room | None, words: Any) -> bool:
    """Step through a chunk. Returns whether an episode has ended with it."""
    wanted, at = bool(work.return_state), work.first + 1
    observations = Observations(len(work), room)
    rewards: list[Any] = []
    see, terminals, truncateds, infos = observations.add, done.terminals, done.truncateds, done.infos
    for row in walking(env, wanted)(work.actions, beginnings(work), work.dts, True):
        state, observation, reward, terminal, truncated, info = row
        if wanted:
            keep(state)
        see(observation)
        rewards.append(reward if type(reward) is float else held(reward))
        terminals.append(terminal)
        truncateds.append(truncated)
        infos.append(info if PLAIN.issuperset(map(type, info.values())) else held(info))
        words[ITEM] = at = at + 1
    done.observations, done.rewards = observations.whole(), rewards
    return terminal or truncated


def do_rollouts(env: Any, work: Work, keep: Keep, done: Done, room: Room | None, words: Any) -> bool:
    """Play each item's actions from its state, until they or the episode end. Returns as `do_steps`."""
    rewards = np.zeros((len(work), max(map(len, work.actions))))
    observations: list[Any] = []
    steps, seen = walking(env, False), work.rollout != "none"
    for actions, state, dt, row in zip(work.actions, beginnings(work), work.dts, rewards):
        shown: list[Any] = []
        length = 0
        # the item's other actions go on from where the first one has led
        begin = chain((state,), itertools.repeat(None))
        words[ITEM] = work.first + len(done.infos) + 1
        for _, observation, reward, terminal, truncated, _info in steps(actions, begin, itertools.repeat(dt), seen):
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
            keep(env.get_state())
        done.terminals.append(terminal)
        done.truncateds.append(truncated)
        done.lengths.append(length)
        done.infos.append({})
    done.rewards, done.observations = rewards, observations if work.rollout == "all" else stacked(observations)
    return terminal or truncated


def _number(reward: Any) -> Any:
    """A reward that a float64 can hold. An array would take None for NaN, and "1.5" for a number."""
    try:
        if isinstance(reward, str | bytes):
            raise TypeError
        return float(reward)
    except (TypeError, ValueError):
        raise TypeError(f"step() must return a number as its reward, got {reward!r:.200}") from None


def held(value: Any) -> Any:
    """What the environment has returned, as it is now: it may use its arrays again. Scalars stay what they are."""
    return value if isinstance(value, np.generic) else snapshot(value)


class Observations:
    """Observations of a chunk: rows of one array for as long as they fit (it travels without a copy), else a list.

    Arrays of shape () and subclasses of ndarray are no rows: they would come out as scalars, and without what they add.
    """

    def __init__(self, count: int, room: Room | None = None) -> None:
        self._count, self._room = count, room
        self._array: np.ndarray | None = None
        self._dtype: np.dtype | None = None  # of its rows
        self._shape: tuple[int, ...] = ()
        self._list: list[Any] = []
        self._filled = 0

    def add(self, value: Any) -> None:
        """The next one; an array is copied, environments use theirs again."""
        at = self._filled
        if at and type(value) is np.ndarray and value.dtype is self._dtype and value.shape == self._shape:
            self._array[at] = value  # type: ignore[index]  # as there is a dtype
        else:
            self._add(at, value)
        self._filled = at + 1

    def _add(self, at: int, value: Any) -> None:
        """The first one, or one that is not obviously like it."""
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
        """What there is of it."""
        return self._list if self._array is None else self._array[: self._filled]


def stacked(values: list[Any]) -> Any:
    """One array of arrays that fit together (it travels without a copy), else the list."""
    if values and isinstance(values[0], np.ndarray) and not values[0].dtype.hasobject:
        first = values[0]
        if all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values):
            return np.stack(values)
    return values


def columns(dones: Sequence[Done], with_states: bool) -> tuple[list[Any], ...]:
    """A batch's result, one list a part, in item order."""
    found = []
    for part in PARTS if with_states else PARTS[1:]:
        found.append(list(chain.from_iterable(map(part, dones))))
    return tuple(found)


def joined(dones: Sequence[Done], part: str) -> list[Any]:
    """One part of a batch's result, in item order."""
    return list(chain.from_iterable(map(attrgetter(part), dones)))


PARTS = tuple(map(attrgetter, ("states", "observations", "rewards", "terminals", "truncateds", "infos")))


class Ask:
    """Operations of the slot. The names are no identifiers, so no method of an environment is hidden.

    No enum: one of these is in every request, and a member takes several times as long as text to pickle.
    """

    GET = "treadle: get attribute"
    CALL = "treadle: call method"
    WORK = "treadle: work"


class Method:
    """In the place of an attribute that can be called: it stays where it is."""


class PlanSlot(Program):
    """Runs one environment with the interface of `PlanEnv`.

    Args:
        constructor: makes it.
        registrations: of the caller, from `own_registrations`.
    """

    def __init__(self, constructor: Callable[[], Any], registrations: bytes | None = None) -> None:
        register_missing(registrations)
        self.env = constructor()
        self.env.reset()
        self._arena: Arena | None = None
        self._words: Any = None  # where nobody can die alone, nobody reads it
        self._buffers: dict[int, Any] = {}

    def describe(self) -> Description:
        return Description()

    def share(self, arena: Arena, words: Any) -> None:
        """The pool's memory, as this process maps it, and this worker's words in it."""
        self._arena, self._words = arena, words

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == Ask.WORK:
            return self._work(args[0])
        attribute, *rest = args
        found = getattr(self.env, attribute)
        if name == Ask.GET:
            return Method() if callable(found) and not isinstance(found, type) else found
        return found(*rest, **kwargs)

    def _work(self, work: Work) -> Done:
        if work.store is not None:
            work.store = work.store.opened(self._memory)
        room = None
        if work.region is not None:
            memory = self._memory(work.region)
            room = Room(memory, work.region)
            if isinstance(work.states, LaidStates):
                work.states = lift(memory, work.states)
        return do_work(self.env, work, room, self._words)

    def _memory(self, region: Region) -> Any:
        """The buffer of a region."""
        known = self._buffers.get(region.segment)
        if known is None:
            assert self._arena is not None
            known = self._buffers[region.segment] = region.opened(self._arena)
        return known

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if callable(close):
            close()
