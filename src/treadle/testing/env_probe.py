"""What `check_env` has a worker do with an environment: play it, watch what it does to its process, and measure.

An environment that is checked may hang or end its process, so all of this runs in a worker of a pool, which names that.
Everything that is returned is plain data.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import random
import re
import threading
import time
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle.errors import TreadleError, UsageError
from treadle.plan.checking import check_state
from treadle.pool.wear import private_memory
from treadle.program.base import Description, Program, StreamControl
from treadle.program.gym_env import EnvRecipe, check_reset, close_env
from treadle.sample.buffer import TreeColumn
from treadle.sample.contract import first_observation, flag, numbers, stepped
from treadle.spaces import Layout, Mismatch
from treadle.testing.processes import children_of

PARTS = ("observation", "reward", "terminated", "truncated", "info")
CLOCKS = {"t", "time", "elapsed", "elapsed_time", "fps"}  # keys of infos that may differ between two runs
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SHORT = 40  # steps of an episode where only resets matter


@dataclass
class Walk:
    """What was seen on some steps.

    Attributes:
        records: one a reset or step: a number for each of `PARTS`.
        seconds, resets: of each step, and of each reset.
        busy: seconds of processor time in the steps, of all threads together.
        oddities: what the spaces and Gymnasium's interface do not allow, by its kind: the first of each, in words.
        globals: which of the global generators were drawn from.
    """

    records: list[tuple[int, ...]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)
    busy: float = 0.0
    oddities: dict[str, str] = field(default_factory=dict)
    globals: list[str] = field(default_factory=list)


@dataclass
class Left:
    """What an environment leaves behind when it is closed. `seconds`: that it took; `raised`: what it raised, or the
    second time; `threads`: their names; `children`: pids."""

    seconds: float
    raised: str
    threads: list[str]
    children: list[int]


class EnvProbe(Program):
    """Args:
    recipe: how to build the environment.
    """

    def __init__(self, recipe: EnvRecipe) -> None:
        self._recipe = recipe
        self._threads, self._children = set(threading.enumerate()), set(children_of(os.getpid()))
        start = time.perf_counter()
        self._env = recipe.build()
        self.build_seconds = time.perf_counter() - start
        self._refused = ""
        try:
            check_reset(self._env, "seed", "options")
        except UsageError as error:
            self._refused = str(error)
        self._closed = False

    def describe(self) -> Description:
        env: Any = self._env
        spec = getattr(env, "spec", None)
        return Description(
            env.observation_space,
            env.action_space,
            metadata={
                "nondeterministic": bool(spec is not None and spec.nondeterministic),
                "build_seconds": self.build_seconds,
                "refused": self._refused,
            },
        )

    def stream(self, order: tuple[str, tuple[Any, ...]], control: StreamControl) -> Iterator[Any]:
        """Do one of the following, and return what it does. As a stream it has a limit of time for a step, not for all
        of them."""
        name, args = order
        self._gets_on = control.stopped
        return getattr(self, name)(*args)
        yield

    def walk(self, seed: int, steps: int, seconds: float, noise: int) -> Walk:
        """Play so many steps from a reset with `seed`, or for so many seconds. `noise`: seeds the global generators."""
        seen = Walk()
        random.seed(noise)
        np.random.seed(noise)
        before = _globals()
        end = time.perf_counter() + seconds
        for _ in self._play(self._env, seed, steps, seen):
            if time.perf_counter() > end:
                break
        seen.globals = [name for name, state in _globals().items() if state != before[name]]
        return seen

    def twin(self, seed: int, steps: int, seconds: float) -> Walk:
        """The same in a second environment of this process, while the first one is played, too."""
        second = self._recipe.build()
        seen, end = Walk(), time.perf_counter() + seconds
        try:
            others = self._play(self._env, seed + 1, steps, Walk())
            for _ in self._play(second, seed, steps, seen):
                next(others, None)
                if time.perf_counter() > end:
                    break
        finally:
            with contextlib.suppress(Exception):  # `shut` tells what closing raises
                close_env(second)
        return seen

    def _play(self, env: Any, seed: int, steps: int, seen: Walk) -> Iterator[None]:
        checked, actions = Checked(env, seen), copy.deepcopy(env.action_space)  # many share one: it is of the class
        actions.seed(seed)
        given: int | None = seed
        left = steps
        while left > 0:
            self._gets_on()
            start = time.perf_counter()
            result = env.reset(seed=given)
            seen.resets.append(time.perf_counter() - start)
            observation, info = first_observation(result)
            seen.records.append((checked.observed(observation, "reset"), 0, 0, 0, print_of(info)))
            yield
            given, over, t = None, False, 0
            while left > 0 and not over:
                action = actions.sample()
                left, t = left - 1, t + 1
                self._gets_on()
                cpu, start = time.process_time(), time.perf_counter()
                result = env.step(action)
                seen.seconds.append(time.perf_counter() - start)
                seen.busy += time.process_time() - cpu
                observation, reward, terminated, truncated, info = stepped(result)
                numbers([reward])
                over = flag("terminated", terminated, t) or flag("truncated", truncated, t)
                if reward != reward:
                    checked.odd("nan", f"the reward of step {t} of an episode is NaN")
                if not isinstance(info, dict):
                    checked.odd("info", f"the info of step {t} is a {type(info).__name__}")
                record = checked.observed(observation, f"step {t}"), print_of(float(reward))
                seen.records.append((*record, int(terminated), int(truncated), print_of(info)))
                yield

    def raises(self, seed: int) -> None:
        """Plays some steps, and raises: as an environment does that fails."""
        for at, _ in enumerate(self._play(self._env, seed, 5, Walk())):
            if at == 4:
                raise ArithmeticError("a drill")

    def growth(self, resets: int, seconds: float) -> list[tuple[int, int]]:
        """(resets so far, bytes of private memory) after each of the last four fifths of so many short episodes; []
        where that cannot be told."""
        told: list[tuple[int, int]] = []
        space, done = self._env.action_space, 0
        for fifth in range(5):
            end = time.perf_counter() + seconds / 5
            for _ in range(resets // 5):
                self._gets_on()
                self._env.reset()
                done += 1
                for _ in range(SHORT):
                    self._gets_on()
                    _, _, terminated, truncated, _ = self._env.step(space.sample())
                    if terminated or truncated or time.perf_counter() > end:
                        break
                if time.perf_counter() > end:
                    break
            gc.collect()
            used = private_memory(os.getpid())
            if used is not None and fifth:  # the first fifth fills caches
                told.append((done, used))
        return told

    def gymnasium(self) -> list[tuple[str, str]]:
        """What Gymnasium's own checker says of a new environment: (error or warning, text)."""
        from gymnasium.utils.env_checker import check_env

        env = self._recipe.build()
        said: list[tuple[str, str]] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)
            except Exception as error:  # noqa: BLE001 - whatever it raises, it says
                said.append(("error", f"{type(error).__name__}: {error}"))
        with contextlib.suppress(Exception):
            close_env(env)
        return [*said, *(("warning", COLOUR.sub("", str(each.message))) for each in caught)]

    def state(self, steps: int) -> str:
        """Why its state cannot be taken and put back; "": it can."""
        try:
            check_state(self._recipe.build, steps=steps, points=2)
        except TreadleError as error:
            return str(error)
        return ""

    def shut(self) -> Left:
        """Close it, twice."""
        self._closed = True
        start, raised = time.perf_counter(), ""
        for time_ in ("", ", when it is closed a second time"):
            try:
                close_env(self._env)
            except Exception as error:  # noqa: BLE001 - it is told
                raised = raised or f"{type(error).__name__}: {error}{time_}"
        seconds = time.perf_counter() - start
        threads = [each.name for each in threading.enumerate() if each not in self._threads and each.is_alive()]
        return Left(seconds, raised, threads, sorted(set(children_of(os.getpid())) - self._children))

    def living(self) -> list[int]:
        """Processes that it has started, as far as they are this one's children."""
        return sorted(set(children_of(os.getpid())) - self._children)

    def close(self) -> None:
        if not self._closed:
            close_env(self._env)


class Checked:
    """Looks at observations: do they fit their space exactly, and are earlier ones left as they were?"""

    def __init__(self, env: Any, seen: Walk) -> None:
        self._space, self._seen = env.observation_space, seen
        self._column = TreeColumn(Layout.of(env.observation_space))
        self._column.more()
        self._before: tuple[Any, int] | None = None

    def odd(self, kind: str, what: str) -> None:
        self._seen.oddities.setdefault(kind, what)

    def observed(self, observation: Any, where: str) -> int:
        """The number of an observation."""
        if self._before is not None and print_of(self._before[0]) != self._before[1]:
            self.odd("reused", "an observation that it has returned is written over by the next one")
        try:
            self._column.writes[0](observation)
            self._column.clear()
        except Mismatch as error:
            self.odd("space", f"the observation of {where} does not fit: {error}")
        else:
            if any(
                isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" and np.isnan(leaf).any()
                for leaf in flat(observation)
            ):
                self.odd("nan", f"there are NaNs in the observation of {where}")
            elif observation not in self._space:
                self.odd("bounds", f"the observation of {where} is outside of its space's bounds")
        found = print_of(observation)
        self._before = observation, found
        return found


def flat(value: Any) -> Iterator[Any]:
    """The leaves of dicts, lists and tuples."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from flat(each)
    else:
        yield value


def print_of(value: Any, start: int = 0) -> int:
    """A number that two values share when they are equal to the last bit. Clocks in dicts do not count."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return zlib.crc32(
            np.ascontiguousarray(value).tobytes(), zlib.crc32(f"{value.dtype}{value.shape}".encode(), start)
        )
    if isinstance(value, dict):
        for key in value:
            if key not in CLOCKS:
                start = print_of(value[key], zlib.crc32(repr(key).encode(), start))
        return start
    if isinstance(value, list | tuple):
        for each in value:
            start = print_of(each, start)
        return zlib.crc32(str(len(value)).encode(), start)
    text = repr(value) if isinstance(value, int | float | str | bytes | bool | None) else type(value).__name__
    return zlib.crc32(text.encode(), start)


def _globals() -> dict[str, Any]:
    """The states of the global generators."""
    return {"random": random.getstate(), "np.random": print_of(list(np.random.get_state())[1:])}
