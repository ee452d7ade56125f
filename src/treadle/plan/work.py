"""What travels between a batch's caller and its workers, and what a worker does with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from treadle.plan.orders import HANDLE
from treadle.plan.store import StoreMap
from treadle.pool.messages import Raised


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
    states: list[Any] | None
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

    states: list[Any] | None = None
    observations: Any = None
    rewards: Any = None
    terminals: list[bool] = field(default_factory=list)
    truncateds: list[bool] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    seconds: float = 0.0
    failed: tuple[int, Raised] | None = None


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
    observations: list[Any] = []
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
            observations.append(observation.copy() if isinstance(observation, np.ndarray) else observation)
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
    done.observations, done.rewards = stacked(observations), rewards
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


def stacked(values: list[Any]) -> Any:
    """One array of arrays that fit together (it travels without a copy), else the list."""
    if values and isinstance(values[0], np.ndarray) and not values[0].dtype.hasobject:
        first = values[0]
        if all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values):
            return np.stack(values)
    return values
