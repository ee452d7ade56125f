"""The worker's part of `check_env`: it plays an environment, watches its effects on the process, and measures.

An environment under test may hang or end its process. So all of this runs in a worker of a pool, which reports such
failures. A request calls the constructor, too, so that it has the time limit of a step. After an error in a reset or a
step, the error is recorded, and the next episode begins with another seed. All results are plain data.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import glob
import os
import random
import re
import signal
import threading
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from treadle.errors import TreadleError, UsageError
from treadle.plan.checking import check_state
from treadle.play.contract import first_observation, flag, numbers, shown, stepped
from treadle.play.recorder import TreeColumn
from treadle.pool.processor import private_memory
from treadle.program.base import Program, StreamControl
from treadle.program.gym_env import EnvRecipe, check_reset, close_env
from treadle.sample.failed import innermost, user_frame
from treadle.spaces import Layout, Mismatch
from treadle.testing.verdict import short
from treadle.wire.messages import Raised, unsendable

PARTS = ("exception", "observation", "reward", "terminated", "truncated", "info")
SPACES = ("observation_space", "action_space")
PLAIN = (int, float, str, bytes, bool, type(None), np.ndarray, np.generic)
CLOCKS = {"t", "time", "elapsed", "elapsed_time", "fps"}  # keys of infos that may differ between two runs
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SUBREAPER = 36  # of linux/prctl.h
SHORT = 40  # steps of an episode in checks of resets
MOST_RAISED = 100  # exceptions in a walk, after which it ends


Cause = tuple[str, str]  # the type of an exception, and the line that raised it


@dataclass
class Walk:
    """The records of some steps.

    Attributes:
        records: one a reset or step: a check sum or flag for each of `PARTS`; 0 for a part that it does not have.
        seconds, resets: durations of each step, and of each reset, that returned. Those of `growth` are 0, one an
            episode.
        busy: seconds of processor time in the steps, of all threads together.
        ended: episodes that the environment ended.
        oddities: kind -> text of the first violation of the spaces or of Gymnasium's interface.
        raised: cause -> (text of the first error in a reset or step, number of errors).
        failures: number of all errors.
        globals: names of the global generators that were drawn from, or seeded.
        memory: of many short episodes: (episodes so far, bytes of private memory) after each of the last four fifths;
            [] if memory cannot be measured.
        files: paths of files that are open after these episodes, but were not before.
    """

    records: list[tuple[int, ...]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)
    busy: float = 0.0
    ended: int = 0
    oddities: dict[str, str] = field(default_factory=dict)
    raised: dict[Cause, tuple[str, int]] = field(default_factory=dict)
    failures: int = 0
    globals: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def odd(self, kind: str, what: str) -> None:
        """Record a violation; the first of each kind is kept."""
        self.oddities.setdefault(kind, what)

    def failed(self, error: BaseException, seed: int, episode: int, step: int) -> None:
        """Record an error of a step (0: the reset) of an episode, counted from 1 since the reset with `seed`."""
        raised = Raised.of(error, "step")
        cause = raised.error_type, place_of(raised.traceback)
        what = f"{raised.error_type}: {short(raised.message)}".removesuffix(": ")
        where = f"{f'step {step}' if step else 'the reset'} of episode {episode} from seed {seed}"
        words, times = self.raised.get(cause, (f"{what}, in {where}, at {cause[1]}", 0))
        self.raised[cause] = words, times + 1
        self.failures += 1
        self.records.append((zlib.crc32(raised.error_type.encode()) or 1, 0, 0, 0, 0, 0))


@dataclass
class Left:
    """The remains of an environment after it was closed twice.

    Attributes:
        seconds: that closing took.
        raised: text of the first error in closing; "": none.
        threads: names of threads that are left.
        children: pids of child processes that are left.
    """

    seconds: float
    raised: str
    threads: list[str]
    children: list[int]


class EnvProbe(Program):
    """The program of a worker that checks an environment.

    Args:
        recipe: of the environment that is checked.
    """

    def __init__(self, recipe: EnvRecipe) -> None:
        self._recipe = recipe
        self._env: Any = None
        self._closed = True

    def build(self) -> tuple[float, str, bool]:
        """Make the environment.

        Returns (seconds of the constructor; the reason why the environment cannot be played, or ""; True if its
        registration says that it is not deterministic).
        """
        self._threads, self._children = set(threading.enumerate()), set(children_of(os.getpid()))
        self._process = _process()
        if hasattr(libc := ctypes.CDLL(None), "prctl"):
            libc.prctl(SUBREAPER, 1)  # orphans of the environment's children become children of this process
        start = time.perf_counter()
        env = self._env = self._recipe.build()
        seconds, refused, self._closed = time.perf_counter() - start, "", False
        spec = getattr(env, "spec", None)
        try:
            check_reset(env, "seed", "options")
        except UsageError as error:
            refused = str(error)
        for name in SPACES:
            if not isinstance(space := getattr(env, name), gym.Space):
                refused = f"{name} is {shown(space)}, and must be a gymnasium.Space"
        return seconds, refused, bool(spec is not None and spec.nondeterministic)

    def stream(self, order: tuple[str, tuple[Any, ...]], control: StreamControl) -> Iterator[Any]:
        """Call one of the methods below and return its result. A stream has a time limit for each step, not in all."""
        name, args = order
        self._gets_on = control.stopped
        return getattr(self, name)(*args)
        yield

    def walk(self, seed: int, steps: int, seconds: float, noise: int, to_end: bool = False) -> Walk:
        """Play from a reset with `seed`, for `steps` steps or `seconds` seconds, whichever ends first.

        `to_end`: stop when an episode ends. `noise`: the seed of the global generators.
        """
        seen = Walk()
        random.seed(noise)
        np.random.seed(noise)
        before = _globals()
        end = time.perf_counter() + seconds
        for _ in self._play(self._env, seed, steps, seen):
            if time.perf_counter() > end or (to_end and seen.ended):
                break
        seen.globals = [name for name, state in _globals().items() if state != before[name]]
        if changed := [name for name, state in _process().items() if state != self._process[name]]:
            seen.odd("process", f"it changes {', '.join(changed)}")
        return seen

    def twin(self, seed: int, steps: int, seconds: float) -> Walk:
        """Walk in a second environment of this process, while the first one is played, too."""
        second = self._recipe.build()
        seen, end = Walk(), time.perf_counter() + seconds
        try:
            others = self._play(self._env, seed + 1, steps, Walk())
            for _ in self._play(second, seed, steps, seen):
                next(others, None)
                if time.perf_counter() > end:
                    break
        finally:
            with contextlib.suppress(BaseException):  # `shut` reports errors of closing
                close_env(second)
        return seen

    def _play(self, env: Any, seed: int, steps: int, seen: Walk) -> Iterator[None]:
        # environments of one class may share an action space, so its copy is seeded
        checked, actions = Checked(env, seen), copy.deepcopy(env.action_space)
        given: int | None = seed
        left, episode = steps, 0
        while left > 0 and seen.failures < MOST_RAISED:
            if given is not None:
                seed, episode = given, 0
                actions.seed(seed)
            episode, over, t = episode + 1, False, 0
            self._gets_on()
            start = time.perf_counter()
            try:
                result = env.reset(seed=given)
            except BaseException as error:  # noqa: BLE001 - including sys.exit: it is recorded
                seen.failed(error, seed, episode, 0)
                given = seed + 1
                yield
                continue
            seen.resets.append(time.perf_counter() - start)
            observation, info = first_observation(result)
            checked.spaces(f"reset {len(seen.resets)}")
            seen.records.append((0, checked.observed(observation, "reset"), 0, 0, 0, checked.info(info, "reset")))
            yield
            given = None
            while left > 0 and not over:
                action = actions.sample()
                left, t = left - 1, t + 1
                self._gets_on()
                cpu, start = time.process_time(), time.perf_counter()
                try:
                    result = env.step(action)
                except BaseException as error:  # noqa: BLE001 - as above
                    seen.failed(error, seed, episode, t)
                    given = seed + 1
                    yield
                    break
                seen.seconds.append(time.perf_counter() - start)
                seen.busy += time.process_time() - cpu
                observation, reward, terminated, truncated, info = stepped(result)
                numbers([reward])
                over = flag("terminated", terminated, t) or flag("truncated", truncated, t)
                seen.ended += over
                if reward != reward:
                    seen.odd("nan", f"the reward of step {t} of an episode is NaN")
                record = checked.observed(observation, f"step {t}"), print_of(float(reward))
                seen.records.append((0, *record, int(terminated), int(truncated), checked.info(info, f"step {t}")))
                yield

    def raises(self, seed: int) -> None:
        """Play some steps and raise ArithmeticError, as a failing environment does."""
        for at, _ in enumerate(self._play(self._env, seed, 5, Walk())):
            if at == 4:
                raise ArithmeticError("a drill")

    def growth(self, seed: int, resets: int, seconds: float) -> Walk:
        """Play `resets` episodes of at most `SHORT` steps, each from its own seed, for at most `seconds` seconds."""
        seen, files = Walk(), _files()
        for fifth in range(5):
            end = time.perf_counter() + seconds / 5
            for _ in range(resets // 5):
                one = Walk(raised=seen.raised)
                seen.resets.append(0.0)
                for _ in self._play(self._env, seed + len(seen.resets) - 1, SHORT, one):
                    if one.ended or one.failures or time.perf_counter() > end:
                        break
                if time.perf_counter() > end:
                    break
            gc.collect()
            used = private_memory(os.getpid())
            if used is not None and fifth:  # the first fifth fills caches
                seen.memory.append((len(seen.resets), used))
        seen.files = list((_files() - files).elements())
        return seen

    def gymnasium(self) -> list[tuple[str, str]]:
        """Return the findings of Gymnasium's own checker on a new environment: ("error" or "warning", text)."""
        from gymnasium.utils.env_checker import check_env

        env: Any = self._recipe.build()
        said: list[tuple[str, str]] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)
            except Exception as error:
                raised = Raised.of(error, "call")
                if user_frame(raised.traceback):  # the environment raised, not the checker
                    raise
                said.append(("error", f"{raised.error_type}: {raised.message}"))
            finally:
                with contextlib.suppress(BaseException):  # `shut` reports errors of closing
                    close_env(env)
        return [*said, *(("warning", COLOUR.sub("", str(each.message))) for each in caught)]

    def state(self, steps: int) -> str:
        """Return the reason why the state cannot be taken and put back; "": it can."""
        try:
            check_state(self._recipe.build, steps=steps, points=2)
        except TreadleError as error:
            return str(error)
        return ""

    def shut(self) -> Left:
        """Close the environment twice and return its remains."""
        self._closed = True
        start, raised = time.perf_counter(), ""
        for time_ in ("", ", when it is closed a second time"):
            try:
                close_env(self._env)
            except BaseException as error:  # noqa: BLE001 - including sys.exit: it is recorded
                why = Raised.of(error, "close")
                what = f"{why.error_type}: {short(why.message)}{time_}, at {place_of(why.traceback)}"
                raised = raised or what
        seconds = time.perf_counter() - start
        threads = [each.name for each in threading.enumerate() if each not in self._threads and each.is_alive()]
        return Left(seconds, raised, threads, sorted(set(children_of(os.getpid())) - self._children))

    def close(self) -> None:
        if not self._closed:
            with contextlib.suppress(BaseException):  # `shut` reports errors of closing
                close_env(self._env)


class Checked:
    """Checks observations, infos and spaces.

    Observations must fit their space exactly, and later steps must not overwrite them. Infos must pickle. Spaces must
    not change.
    """

    def __init__(self, env: Any, seen: Walk) -> None:
        self._env, self._spaces = env, {name: getattr(env, name) for name in SPACES}
        self._space, self._seen, self._odd = env.observation_space, seen, seen.odd
        self._column = TreeColumn(Layout.of(env.observation_space))
        self._column.more()
        self._before: tuple[Any, int] | None = None

    def spaces(self, where: str) -> None:
        """Record a space that has changed."""
        for name, space in self._spaces.items():
            now = getattr(self._env, name)
            if now is not space and now != space:
                self._odd("space", f"{name} is {shown(now)} after {where}, and was {shown(space)}: it must stay")

    def info(self, info: Any, where: str) -> int:
        """Check an info and return its check sum; 0 if it holds itself."""
        try:
            number = print_of(info)
        except RecursionError:
            self._odd("info", f"{where}: it holds itself, or is nested too deeply")
            return 0
        if "info" not in self._seen.oddities and not all(isinstance(leaf, PLAIN) for leaf in flat(info)):
            why = unsendable(info, "info")
            if why is not None:
                self._odd("info", f"{where}: {why}")
        return number

    def observed(self, observation: Any, where: str) -> int:
        """Check an observation and return its check sum."""
        if self._before is not None and print_of(self._before[0]) != self._before[1]:
            self._odd("reused", "an observation that it has returned is written over by the next one")
        try:
            self._column.writes[0](observation)
            self._column.clear()
        except Mismatch as error:
            self._odd("space", f"the observation of {where} does not fit: {error}")
        else:
            arrays = (leaf for leaf in flat(observation) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f")
            if any(np.isnan(leaf).any() for leaf in arrays):
                self._odd("nan", f"there are NaNs in the observation of {where}")
            elif observation not in self._space:
                self._odd("bounds", f"the observation of {where} is outside of its space's bounds")
        found = print_of(observation)
        self._before = observation, found
        return found


def flat(value: Any) -> Iterator[Any]:
    """Yield the leaves of dicts, lists and tuples."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from flat(each)
    else:
        yield value


def print_of(value: Any, start: int = 0) -> int:
    """Return a check sum, the same for values that are equal to the last bit.

    Keys of `CLOCKS` are left out. Of other objects only the type counts.
    """
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        start = zlib.crc32(f"{value.dtype}{value.shape}".encode(), start)
        return zlib.crc32(np.ascontiguousarray(value).tobytes(), start)
    if isinstance(value, dict):
        for key in sorted(value, key=repr):
            if key not in CLOCKS:
                start = print_of(value[key], zlib.crc32(repr(key).encode(), start))
        return start
    if isinstance(value, list | tuple):
        for each in value:
            start = print_of(each, start)
        return zlib.crc32(str(len(value)).encode(), start)
    text = repr(value) if isinstance(value, int | float | str | bytes | bool | None) else type(value).__name__
    return zlib.crc32(text.encode(), start)


def place_of(stack: str) -> str:
    """Return the innermost line of the user's own code in a stack, else that of a library."""
    file, line, _ = innermost(stack)
    return f"{os.path.basename(file)}:{line}" if file else "an unknown place"


def _process() -> dict[str, Any]:
    """Return name -> value of the state that all environments of a process share."""
    folder = os.stat(".")
    handlers = {f"the handler of {number.name}": signal.getsignal(number) for number in signal.Signals}
    return {"the current directory": (folder.st_dev, folder.st_ino), **handlers}


def _files() -> Counter[str]:
    """Return the paths of open descriptors; empty without /proc."""
    return Counter(os.path.realpath(each) for each in glob.glob("/proc/self/fd/*") if os.path.islink(each))


def _globals() -> dict[str, Any]:
    """Return the states of the global generators."""
    return {"random": random.getstate(), "np.random": print_of(list(np.random.get_state())[1:])}


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, including ended ones; [] without /proc."""
    return [child for each in Path("/proc").glob("[0-9]*") if parent_of(child := int(each.name)) == pid]


def _stat(pid: int) -> list[str]:
    """Return a process's state, its parent's pid, and more; []: it has ended, or there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent; 0: the process has ended, or there is no /proc."""
    found = _stat(pid)
    return int(found[1]) if found else 0


def runs(pid: int) -> bool:
    """Return True if the process exists and has not ended; False for a zombie, or for another user's process."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    found = _stat(pid)
    return found[0] not in "XZ" if found else not Path("/proc/self").exists()
