"""What travels between a batch's caller and its workers, and what a worker does with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from treadle.plan.orders import HANDLE
from treadle.plan.store import StoreMap
from treadle.pool.messages import Raised
from treadle.states.state import EnvState


@dataclass(frozen=True)
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
    store: StoreMap | None = None
    rollout: str | None = None  # None: a batch of steps; else which observations are wanted: "none", "last", "all"

    def __len__(self) -> int:
        return len(self.actions)


@dataclass
class Done:
    """What came of a chunk, in columns. `failed`: the item that raised, and why; those after it were not tried."""

    states: Any = None
    observations: Any = None
    rewards: Any = None
    terminals: list[bool] = field(default_factory=list)
    truncateds: list[bool] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    seconds: float = 0.0
    failed: tuple[int, Raised] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Done:
        """Within one process replies are copied; here only infos and foreign states may be the environment's still."""
        states = self.states if isinstance(self.states, Packed) else copy.deepcopy(self.states, memo)
        return replace(self, states=states, infos=copy.deepcopy(self.infos, memo))


@dataclass(frozen=True)
class Packed:
    """States of one kind as they travel: the kind once, and the bytes."""

    kind: str
    data: list[bytes]

    def __getitem__(self, index: int) -> EnvState:
        return EnvState(self.kind, self.data[index])

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[EnvState]:
        return (EnvState(self.kind, data) for data in self.data)


def packed(states: list[Any]) -> Any:
    """States as they travel best."""
    if states and all(type(state) is EnvState for state in states):
        kind = states[0].kind
        if all(state.kind == kind for state in states):
            return Packed(kind, [state.data for state in states])
    return states


class Begin:
    """Puts an environment where each item of a chunk begins."""

    def __init__(self, env: Any, work: Work) -> None:
        self._env, self._work = env, work
        self.given = work.states is not None or work.rows is not None

    def state(self, index: int) -> Any:
        """The state of the chunk's item number `index`; None where it goes on."""
        work = self._work
        if not self.given:
            return None
        at = (work.first + index) // work.repeat - work.base
        if work.rows is not None:
            assert work.store is not None
            return work.store.read(work.rows[at])
        assert work.states is not None
        return work.states[at]


def do_steps(env: Any, work: Work) -> Done:
    """Step an environment through a chunk. Never raises for what the environment does: see `Done.failed`."""
    done = Done(states=[] if work.return_state is True else None)
    begin, began = Begin(env, work), perf_counter()
    wanted = bool(work.return_state)
    observations = Column(len(work))
    rewards: list[Any] = []
    autoreset = getattr(env, "autoreset", False)
    ended = False
    if begin.given and autoreset:  # the next item says itself where it begins: one reset at the end will do
        env.autoreset = False
    index = -1
    try:
        for index, action in enumerate(work.actions):
            parts = env.step(action=action, state=begin.state(index), dt=work.dts[index], return_state=wanted)
            if wanted:
                state, *parts = parts
                _keep(done, work, index, state)
            observation, reward, terminal, truncated, info = parts
            observations.add(observation)
            rewards.append(reward)
            done.terminals.append(terminal)
            done.truncateds.append(truncated)
            done.infos.append(info)
            ended = terminal or truncated
    except Exception as error:  # noqa: BLE001 - told to the caller, item and all
        done.failed = work.first + index, Raised.of(error, "step")
    finally:
        if begin.given and autoreset:
            env.autoreset = True
    if begin.given and autoreset and ended and done.failed is None:
        env.reset(return_state=False)
    done.observations, done.rewards = observations.whole(), rewards
    if done.states is not None:
        done.states = packed(done.states)
    done.seconds = perf_counter() - began
    return done


def do_rollouts(env: Any, work: Work) -> Done:
    """Play each item's actions from its state, until they or the episode end; nothing is reset."""
    done = Done(states=[] if work.return_state is True else None)
    begin, began = Begin(env, work), perf_counter()
    longest = max(len(actions) for actions in work.actions)
    rewards = np.zeros((len(work.actions), longest))
    observations: list[Any] = []
    autoreset = getattr(env, "autoreset", False)
    env.autoreset = False
    index = -1
    try:
        for index, actions in enumerate(work.actions):
            env.set_state(begin.state(index))
            terminal = truncated = False
            seen: list[Any] = []
            length, last = 0, len(actions) - 1
            for length, action in enumerate(actions):
                parts = env.step(action=action, dt=work.dts[index], return_state=False)
                observation, reward, terminal, truncated, _info = parts
                rewards[index, length] = reward
                over = terminal or truncated
                if work.rollout == "all" or (work.rollout == "last" and (over or length == last)):
                    seen.append(observation.copy() if isinstance(observation, np.ndarray) else observation)
                if over:
                    break
            done.terminals.append(terminal)
            done.truncateds.append(truncated)
            done.lengths.append(length + 1)
            observations.append(stacked(seen) if work.rollout == "all" else seen[0] if seen else None)
            done.infos.append({})
            if work.return_state:
                _keep(done, work, index, env.get_state())
    except Exception as error:  # noqa: BLE001 - as above
        done.failed = work.first + index, Raised.of(error, "step")
    finally:
        env.autoreset = autoreset
    if autoreset and done.failed is None and (terminal or truncated):
        env.reset(return_state=False)
    done.rewards = rewards
    done.observations = observations if work.rollout == "all" else stacked(observations)
    if done.states is not None:
        done.states = packed(done.states)
    done.seconds = perf_counter() - began
    return done


def _keep(done: Done, work: Work, index: int, state: Any) -> None:
    if work.return_state == HANDLE:
        assert work.store is not None
        assert work.targets is not None
        work.store.write(work.targets[index], state)
    else:
        assert done.states is not None
        done.states.append(state)


class Column:
    """Observations of a chunk: rows of one array for as long as they fit (it travels without a copy), else a list."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._array: np.ndarray | None = None
        self._list: list[Any] = []
        self._filled = 0

    def add(self, value: Any) -> None:
        """The next one; an array is copied, environments use theirs again."""
        array, at = self._array, self._filled
        fits = isinstance(value, np.ndarray) and not value.dtype.hasobject
        if at == 0 and fits:
            array = self._array = np.empty((self._count, *value.shape), value.dtype)
        if array is not None:
            if fits and value.shape == array.shape[1:] and value.dtype == array.dtype:
                array[at] = value
                self._filled = at + 1
                return
            self._list, self._array = list(array[:at]), None
        self._list.append(value.copy() if isinstance(value, np.ndarray) else value)
        self._filled = at + 1

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
