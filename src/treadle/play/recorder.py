"""Episodes in the making, for collecting and for samplers: one loop plays them, and checks all that it writes.

The next episode uses the same buffers: an `Episode` made from them shares their memory until then, unless it is a
copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any

import numpy as np

from treadle.memory.reserved import reserved
from treadle.play.contract import BadStep, flag, numbers, stepped
from treadle.play.episode import Episode
from treadle.repro import MOST_BYTES, fingerprint
from treadle.spaces import Layout, Leaf, RowWriter
from treadle.wire.messages import checked_info, snapshot

# bytes of a row from which on large pages are asked for: first touches take less than half as long, and reading a raw
# Pong episode (100 MB) a third less
LARGE = 1 << 12
FEWEST_ROWS = 64  # rows to make writers for at once
MOST_STEPS = 1 << 20  # of a trail; of a longer episode there is none
MEET = 16  # one step in so many of an episode that is played alone comes from outside

# how an episode that is played alone asks for an action (and the policy's info or None), and whether it is to stop
Alone = tuple[Callable[[Any], tuple[Any, Any]], Callable[[], bool]]


class TreeColumn:
    """A value of a space over time: one growing array a leaf, a list for leaves without a fixed shape.

    The arrays grow in place: each is a large reservation of address space. Only written pages become memory, once, and
    later episodes use them again. Copies to bigger arrays would touch three times the memory. First touches cost more
    than all else here: 0.4 s for a raw Pong episode of 100 MB.

    Args:
        layout: of the space.

    Attributes:
        writes: one exact writer a row, from `Layout.row_writer`; `more` extends the list.
        loose: the values of each leaf without a fixed shape; `Recorder` appends to them what a writer returns.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._data = [self._reserve(leaf) if leaf.fixed else None for leaf in layout.leaves]
        self._rows = min((len(data) for data in self._data if data is not None), default=1 << 62)
        self.writes: list[RowWriter] = []
        self.loose: list[list[Any]] = [[] for _ in layout.loose]

    def _reserve(self, leaf: Leaf) -> np.ndarray:
        """Return an array [rows, *shape] of as many rows as can be reserved; written rows become memory."""
        memory = reserved(huge=leaf.nbytes >= LARGE)
        rows = max(1, len(memory) // max(1, leaf.nbytes))
        return np.ndarray((rows, *(leaf.shape or ())), leaf.dtype, memory)

    def more(self) -> None:
        """Make writers for further rows. Raises MemoryError when the reservation is used up."""
        start = len(self.writes)
        if start >= self._rows:
            raise MemoryError(f"an episode of more than {start:,} steps is too long to keep; max_episode_steps cuts it")
        for row in range(start, min(self._rows, max(2 * start, FEWEST_ROWS))):
            self.writes.append(self._layout.row_writer([None if d is None else d[row, ...] for d in self._data]))

    def clear(self) -> None:
        for values in self.loose:
            values.clear()

    def rows(self, start: int, stop: int) -> list[Any]:
        """Return a copy of some rows of each leaf; None for one without a fixed shape."""
        return [None if data is None else data[start:stop].copy() for data in self._data]

    def tree(self, rows: int, copy: bool) -> Any:
        """Return the first `rows` values as a tree of arrays and lists. `copy`: False: the arrays are written again."""
        loose = map(list, self.loose)
        values = (next(loose) if each is None else each[:rows] for each in self._data)
        return self._layout.unflatten([each.copy() if copy else each for each in values])


class Recorder:
    """Plays episodes and records observations and actions, row by row; each observation is checked as it is written.

    Args:
        observations: layout of the observation space.
        actions: layout of the action space; None: actions are kept as they are given.
        keep_info: returns the part of a step's info that is kept; None: nothing is kept.
        keep_policy_info: returns the part of the policy's info that is kept.

    Attributes:
        length: number of steps so far in the present episode.
        last, final_info: the latest observation and info, once `play` has ended.
        asking: True if `play` was asking the policy by itself when it raised.
        action: the latest action when `play` raised.
        meets: when `play` yields in an episode that is played alone, see there; 0: only when it is stopped.
    """

    meets = 0

    def __init__(
        self,
        observations: Layout,
        actions: Layout | None,
        keep_info: Callable[[Any], dict[str, Any]] | None,
        keep_policy_info: Callable[[Any], dict[str, Any]],
    ) -> None:
        self._observations, self._actions = TreeColumn(observations), None if actions is None else TreeColumn(actions)
        self._keep_info, self._keep_policy_info = keep_info, keep_policy_info
        self.length = 0
        self.last: Any = None
        self.final_info: dict[str, Any] = {}
        self.asking, self.action = False, None

    def _clear(self) -> None:
        """Forget all episodes; their memory is written again."""
        self._base = 0  # the row of the first step of the episode at hand
        self._observations.clear()
        if self._actions is not None:
            self._actions.clear()
        self._given: list[Any] = []  # actions as they were given
        self._rewards: list[Any] = []
        self._infos: list[tuple[int, dict[str, Any]]] = []  # row -> what is not empty
        self._policy_infos: list[tuple[int, dict[str, Any]]] = []
        self._policy_speaks = False

    def _begin(self, observation: Any) -> None:
        """Begin an episode with its first observation."""
        self.length = 0
        self._write(self._observations, self._base, observation)

    def _give_up(self) -> None:
        """Forget the present episode."""
        base = self._base
        del self._given[base:], self._rewards[base:]
        for infos in (self._infos, self._policy_infos):
            while infos and infos[-1][0] >= base:
                infos.pop()

    def play(
        self, step: Any, observation: Any, most: float, alone: Alone | None = None
    ) -> Generator[Any, tuple[Any, Any], tuple[bool, bool]]:
        """Play the episode as a coroutine: yields the observation to act on, is sent (action, policy info or None).

        An episode that is played `alone` asks the policy by itself until it is stopped. With `meets` above 0,
        three kinds of steps still yield: the first, the one `meets` steps later, and from then on one in `MEET`.

        Ends with (terminated, truncated), both False when `most` steps were taken without an end. Raises what the
        environment (and policy) raises, `spaces.Mismatch`, `BadStep`, and MemoryError for an episode that is too long.
        """
        observations, actions, base = self._observations, self._actions, self._base
        seen, done = observations.writes, [] if actions is None else actions.writes
        given = self._given.append if actions is None else None
        reward_of, info_of, policy_info_of = self._rewards.append, self._infos.append, self._policy_infos.append
        keep_info, keep_policy_info, ndarray = self._keep_info, self._keep_policy_info, np.ndarray
        ask, stopped = alone or (None, bool)
        row, room = base + self.length, -1  # rows below `room` have writers, and nothing but fixed leaves
        meet, following, end = row if self.meets else 1 << 62, self.meets, base + most
        action, asking = None, False
        try:
            while True:  # what stands here is paid at every step
                if ask is None or row >= meet or stopped():
                    self.length = row - base
                    action, policy_info = yield observation
                    meet, following = row + following, MEET
                else:
                    asking = True
                    action, policy_info = ask(observation)
                    asking = False
                if row < room:
                    if given is None:  # before the environment has it: some change what they are given
                        done[row](action)
                    else:
                        given(action if type(action) is int else snapshot(action))
                    observation, reward, terminated, truncated, info = step(action)
                    seen[row + 1](observation)
                else:
                    if actions is None:
                        self._given.append(snapshot(action))
                    else:
                        self._write(actions, row, action)
                    observation, reward, terminated, truncated, info = stepped(step(action))
                    self._write(observations, row + 1, observation)
                    self._policy_speaks = self._policy_speaks or policy_info is not None
                    if not observations.loose and (actions is None or not actions.loose):
                        room = len(seen) - 1 if actions is None else min(len(done), len(seen) - 1)
                reward_of(reward.copy() if type(reward) is ndarray else reward)
                if info and keep_info is not None:
                    info_of((row, keep_info(info)))
                if policy_info:
                    policy_info_of((row, keep_policy_info(policy_info)))
                row += 1
                if terminated or truncated or row >= end:
                    length = row - base
                    self.last, self.final_info = observation, info
                    ends = flag("terminated", terminated, length), flag("truncated", truncated, length)
                    self.length = length
                    return ends
        except GeneratorExit:  # it was given up: the record may be another episode's by now
            raise
        except BaseException:
            self.asking, self.action, self.length = asking, action, row - base
            raise

    def trail(self, acting: bool) -> dict[str, Any] | None:
        """Return the record of the present episode for a repro.

        It holds the actions, the rewards, and check sums of the first and the last observation. `acting`: True: the
        action of the step that raised is included. None: the episode is too long, or its actions are in no layout.
        """
        first, steps = self._base, self.length
        done, seen = self._done(first, first + steps + acting), self._observations
        found: dict[str, Any] = {f"action.{i}": leaf for i, leaf in enumerate(done or ())}
        if done is None or sum(leaf.nbytes for leaf in found.values()) > MOST_BYTES:
            return None
        with contextlib.suppress(TypeError, ValueError, OverflowError):  # perhaps what it failed of
            found["rewards"] = np.array(list(map(float, self._rewards[first : first + steps])))
        sums = [fingerprint(seen.rows(row, row + 1)) for row in (first, first + steps)]
        return {**found, "checks": np.array([[0, steps], sums], np.int64)}

    def _done(self, first: int, stop: int) -> list[np.ndarray] | None:
        """Return the actions of some rows, leaf by leaf; None: they are in no layout, or have no fixed shape."""
        return None if self._actions is None or self._actions.loose else self._actions.rows(first, stop)

    @staticmethod
    def _write(column: TreeColumn, row: int, value: Any) -> None:
        while row >= len(column.writes):
            column.more()
        loose = column.writes[row](value)
        if loose is not None:
            for values, item in zip(column.loose, loose, strict=True):
                values.append(snapshot(item))


class Trail:
    """The record of an environment's present episode, from which it can be replayed.

    Args:
        env: the environment, before the episode's reset.
        start: (the episode's seed, the state of the environment's generator), each None if unknown. If both are None,
            nothing is kept.
    """

    def __init__(self, env: Any, start: tuple[Any, Any]) -> None:
        self._env, self._start = env, start
        self._on = start != (None, None)
        self._actions: list[Any] = []
        self._rewards: list[float] = []
        self._seen: list[Any] = []  # the first observation, and the last

    def act(self, action: Any) -> None:
        """Record an action, before the environment is stepped with it."""
        self._on &= len(self._actions) < MOST_STEPS
        if self._on:
            self._actions.append(snapshot(action))

    def see(self, observation: Any, *rewards: float) -> None:
        """Record the observation of the reset, or that of a step with its reward."""
        if self._on:
            self._rewards += rewards
            self._seen = [*self._seen[:1], observation]

    def entries(self) -> dict[str, Any] | None:
        """Return a record as `Recorder.trail` does, with the episode's start.

        None: nothing was kept, the episode is too long, or actions are not arrays of the action space's shape.
        """
        env, found = self._env, {"start": self._start, "rewards": np.array(self._rewards, np.float64)}
        if not self._on:
            return None
        if self._actions:
            with contextlib.suppress(ValueError):  # arrays of different shapes
                found["action.0"] = actions = np.array(self._actions)
                if actions.shape[1:] != env.action_space.shape or actions.dtype.hasobject:
                    return None
        layout, sums = Layout.of(env.observation_space), []
        for seen in self._seen:
            pairs = zip(layout.flatten(seen), layout.leaves, strict=True)
            sums.append(fingerprint([np.asarray(value, leaf.dtype) if leaf.fixed else None for value, leaf in pairs]))
        if sums:
            found["checks"] = np.array([[0, len(self._rewards)], [sums[0], sums[-1]]], np.int64)
        return found


def misshapen(error: Exception) -> Exception:
    """Return the error of a step in `Recorder.play`: the environment's own, or one about other than five values."""
    frames = vars(BaseException)["__traceback__"].__get__(error)  # its class may make more of reading it
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    here = frames is not None and frames.tb_frame.f_code is Recorder.play.__code__
    if here and type(error) is not BadStep and issubclass(type(error), TypeError | ValueError):
        return BadStep(f"step must return five values: {error}")
    return error


def dense(infos: list[tuple[int, dict[str, Any]]], rows: int) -> list[dict[str, Any]]:
    """Return one dict a row from pairs (row, info); {} for a row without an info."""
    if len(infos) == rows:
        return [info for _, info in infos]
    found: list[dict[str, Any]] = [{} for _ in range(rows)]
    for row, info in infos:
        found[row] = info
    return found


class EpisodeBuffer(Recorder):
    """One episode at a time, for collecting: `begin`, then drive `play` until it returns, then `episode`.

    Args:
        observations, actions: layouts of the spaces.
        infos: True: infos are kept.

    Attributes:
        index, seed: of the present episode; -1 before the first.
    """

    def __init__(self, observations: Layout, actions: Layout, *, infos: bool) -> None:
        super().__init__(observations, actions, _checked if infos else None, snapshot)
        self.index = self.seed = -1

    def begin(self, index: int, seed: int, observation: Any, info: dict[str, Any]) -> None:
        """Begin an episode with the result of its reset. Raises `spaces.Mismatch` if the observation does not fit."""
        self.index, self.seed, self.meets = index, seed, 1 + index % MEET  # evenly over all episodes
        self._clear()
        self._first_info = {} if self._keep_info is None else self._keep_info(info)
        self._reset_info = info.copy() if type(info) is dict else {}  # some go on writing to theirs
        self._began = perf_counter()
        self._begin(observation)

    def episode(self, terminated: bool, truncated: bool, *, copy: bool) -> Episode:
        """Return the finished episode. With `copy` the caller may keep it, else it holds until the next `begin`.

        Raises `BadStep` for a reward that is not a real number.
        """
        steps, actions = self.length, self._actions
        assert actions is not None
        ends = np.zeros((2, steps), np.bool_)
        ends[0, -1], ends[1, -1] = terminated, truncated
        return Episode(
            self.index,
            self.seed,
            self._observations.tree(steps + 1, copy),
            actions.tree(steps, copy),
            numbers(self._rewards),
            ends[0],
            ends[1],
            () if self._keep_info is None else (self._first_info, *dense(self._infos, steps)),
            tuple(dense(self._policy_infos, steps)) if self._policy_speaks else (),
            self.final_info,
            self._reset_info,
            perf_counter() - self._began,
        )


def _checked(info: Any) -> dict[str, Any]:
    return snapshot(checked_info(info))  # type: ignore[no-any-return]  # of a dict a dict
