"""The zoo of broken environments: one for each way in which an environment can go wrong.

For testing whatever steps environments: does it name the environment that failed, keep the others, and come to an end?
Each behaves like `Sound` until its fault strikes: at the reset or step that `at` says (the first is number 0 and 1) of
its life, or in every step that `every` divides. They come from nothing but Gymnasium and NumPy, so they run in any
library's workers.

    pool = Pool([gym_env(Sound), gym_env(StepRaises, kwargs={"at": 3})])

`ZOO` has them all by name, and each has the word under which `check_env` finds it (`found`); `DEADLY` are those that
end their process, `STUCK` those that never return, `MISFITS` those that return what their space does not allow. Deadly
and stuck ones are for processes of their own only. `Truthful` says in addition which of several it is.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

FOR_EVER = 3600  # seconds
SAID = "the ball left the field"

Observation = Any
Outcome = tuple[Observation, float, bool, bool, dict[str, Any]]


class Sound(gym.Env):
    """Nothing wrong with it. Observes float32[4]: its seed, episode since then, step and last action.

    Args:
        at: when the fault strikes; None: at the kind's own reset or step. -1: never.
        settings: of the kind, by name: `every`, `seconds`, `megabytes`, `length` (steps of an episode).
    """

    observation_space: gym.Space = gs.Box(-np.inf, np.inf, (4,), np.float32)
    action_space: gym.Space = gs.Discrete(4)
    found = ""
    at, every, length = 3, 0, 20

    def __init__(self, at: int | None = None, **settings: Any) -> None:
        vars(self).update(settings if at is None else {"at": at, **settings})
        self.seed_given, self.episode, self.t = -1, -1, 0
        self.resets, self.steps = -1, 0  # of all its life
        self.at_init()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """An observation and an empty info."""
        super().reset(seed=seed)
        if seed is not None:
            self.seed_given, self.episode = seed, -1
        self.episode, self.resets, self.t = self.episode + 1, self.resets + 1, 0
        if self.resets == self.at:
            self.at_reset()
        return self.observe(0), {}

    def step(self, action: Any) -> Any:
        """The outcome of a step; the reward is the step."""
        self.t, self.steps = self.t + 1, self.steps + 1
        sound: Outcome = self.observe(action), float(self.t), self.t >= self.length, False, {}
        strikes = self.steps == self.at or (self.every and self.t % self.every == 0)
        return (self.at_step(sound) or sound) if strikes else sound

    def observe(self, action: Any) -> Observation:
        return np.array([self.seed_given, self.episode, self.t, action], np.float32)

    def at_init(self) -> None:
        """The fault, for those that strike in the constructor."""

    def at_reset(self) -> None:
        """The fault, for those that strike in a reset."""

    def at_step(self, sound: Outcome) -> Any:
        """The fault, for those that strike in a step: what to return instead, None for the sound outcome."""


ZOO: dict[str, type[Sound]] = {"Sound": Sound}


def broken(name: str, found: str = "", **has: Any) -> None:
    """Add a kind to the zoo: `Sound` with other methods and settings."""
    globals()[name] = ZOO[name] = type(name, (Sound,), {"__module__": __name__, "found": found, **has})


def doing(what: Callable[..., Any], *args: Any) -> Any:
    """A method that does so, and leaves all else as it is."""

    def strike(*_: Any) -> None:
        what(*args)

    return strike


def raising(kind: type[BaseException], *args: Any) -> Any:
    """A method that raises."""

    def strike(*_: Any) -> None:
        raise kind(*args)

    return strike


# -- exceptions -------------------------------------------------------------------------------------------------------


class Sealed(Exception):
    """Holds a lock, so it cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class TwoArguments(Exception):
    """Its constructor takes two arguments and keeps neither: it pickles, and cannot be unpickled."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


class Speechless(Exception):
    """Its __str__ and __repr__ fail."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


broken("InitRaises", "build", at_init=raising(ValueError, f"no such level: {SAID}"))
broken("InitExits", "build", at_init=raising(SystemExit, 4))
broken("ResetRaises", "raises", at=0, at_reset=raising(ValueError, f"the level file is gone: {SAID}"))
broken("WearsOut", "raises", at_reset=raising(RuntimeError, "the simulator is worn out"))
broken("StepRaises", "raises", at_step=raising(ValueError, SAID))
broken("CloseRaises", "close", close=raising(RuntimeError, "the renderer is gone"))
broken("RaisesUnpicklable", "raises", at_step=raising(Sealed, SAID))
broken("RaisesTwoArguments", "raises", at_step=raising(TwoArguments, 7, SAID))
broken("RaisesSpeechless", "raises", at_step=raising(Speechless))
broken("RaisesSystemExit", "raises", at_step=raising(SystemExit, 5))
# two levels down in its info
broken("UnpicklableInfo", "info", at_step=lambda _, sound: (*sound[:4], {"engine": {"handles": [0, threading.Lock()]}}))


class ClosesOnce(Sound):
    """Raises when it is closed a second time."""

    found, closed = "close", False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("it is closed already")
        self.closed = True


# -- deaths, never, and late ------------------------------------------------------------------------------------------


def _exits(code: int, said: str) -> None:
    print(said, file=sys.stderr, flush=True)
    os._exit(code)


def _hangs(*_: Any) -> None:
    while True:
        time.sleep(FOR_EVER)


def _hangs_in_c(*_: Any) -> None:
    """No other thread and no Python signal handler ever runs; a signal only ends one sleep."""
    while True:
        ctypes.PyDLL(None).sleep(FOR_EVER)


def _deaf(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hangs()


broken("OsExits", "dies", at_step=doing(_exits, 3, "about to exit"))
broken("InitOsExits", "build", at_init=doing(_exits, 6, "no licence found"))
broken("ResetOsExits", "dies", at=0, at_reset=doing(os._exit, 7))
broken("Segfaults", "dies", at_step=doing(ctypes.string_at, 0))
broken("KillsItself", "dies", at_step=lambda *_: os.kill(os.getpid(), signal.SIGKILL))  # as when memory is short
broken("StopsItself", "hangs", at_step=lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
broken("Hangs", "hangs", at_step=_hangs)
broken("HangsInC", "hangs", at_step=_hangs_in_c)
broken("HangsInClose", "hangs", close=_hangs)
broken("HangsInInit", "build", at_init=_hangs)
broken("DeafToTerm", "hangs", at_step=_deaf)
broken("SlowOnce", seconds=0.5, at_step=lambda self, _: time.sleep(self.seconds))


# -- not what the space or Gymnasium's interface say ------------------------------------------------------------------


def _with(place: int, change: Callable[[Any], Any]) -> Any:
    """A method that changes one of a step's five."""
    return lambda _, sound: (*sound[:place], change(sound[place]), *sound[place + 1 :])


def _by_default(self: Sound, *, seed: int | None = 7, options: dict[str, Any] | None = None) -> Any:
    return Sound.reset(self, seed=seed, options=options)


broken("WrongShape", "space", at_step=_with(0, lambda seen: seen[:1]))  # which NumPy would broadcast
broken("WrongDtype", "space", at_step=_with(0, lambda seen: seen.astype(np.int32)))  # which NumPy would cast
broken("TooPrecise", "space", at_step=_with(0, lambda seen: np.full(seen.shape, 1e300)))  # ... to infinity
broken(
    "MissingKey", "space", observation_space=gs.Dict({"a": gs.Box(0, 1, (2,), np.float32), "b": gs.Discrete(3)}),
    observe=lambda *_: {"a": np.zeros(2, np.float32), "b": 0}, at_step=_with(0, lambda seen: {"a": seen["a"]}),
)  # fmt: skip
broken(
    "OutOfBounds", "bounds", observation_space=gs.Box(0, 0.9, (4,), np.float32),
    observe=lambda self, _: np.full(4, self.t / 20, np.float32),
)  # fmt: skip
broken("NanObserved", "nan", at_step=_with(0, lambda seen: seen * np.float32("nan")))
broken("NanReward", "nan", at_step=_with(1, lambda _: float("nan")))
broken("RewardIsText", "interface", at_step=_with(1, str))
broken("TerminatedIsANumber", "interface", at_step=_with(2, lambda _: 3))
broken("InfoIsNone", "interface", at_step=_with(4, lambda _: None))
broken("FourValues", "interface", every=1, at_step=lambda _, sound: (*sound[:3], sound[4]))
broken("ResetWithoutInfo", "interface", reset=lambda self, **given: Sound.reset(self, **given)[0])
broken("ResetTakesNoSeed", "interface", reset=lambda self: Sound.reset(self))
broken("DeterministicByDefault", "gymnasium", reset=_by_default)


# -- not the same under the same seed ---------------------------------------------------------------------------------


def _more(number: Callable[[Sound], float]) -> Any:
    """A method that observes something more than `Sound` does."""
    return lambda self, action: Sound.observe(self, action) + np.float32(number(self))


_steps_of_all = count()  # environments of this process

broken("IgnoresItsSeed", "determinism", observe=_more(lambda _: np.random.default_rng().random()))
broken("DrawsFromNumpy", "determinism", observe=_more(lambda _: np.random.randint(1000)))
broken("DrawsFromRandom", "determinism", observe=_more(lambda _: random.randrange(1000)))
broken("DrawsForNothing", "randomness", every=1, at_step=doing(np.random.random))
broken("RemembersEpisodes", "determinism", observe=_more(lambda self: self.steps % 1000))
broken("SharesState", "determinism", observe=_more(lambda _: next(_steps_of_all) % 1000))
broken("AsksForItsPid", "determinism", observe=_more(lambda _: os.getpid() % 1000))
broken("HashesTexts", "determinism", observe=_more(lambda _: hash("a text") % 1000))
broken("RewardsAtWill", "determinism", every=1, at_step=_with(1, lambda _: float(np.random.default_rng().random())))


# -- what it does to its process, and keeps ---------------------------------------------------------------------------


class ReusesItsBuffer(Sound):
    """Returns the same array every time, overwritten, and the same info dict."""

    found = "reused"

    def at_init(self) -> None:
        self.buffer = np.zeros(4, np.float32)
        self.info: dict[str, Any] = {"list": [0]}

    def observe(self, action: Any) -> Observation:
        self.buffer[:] = super().observe(action)
        return self.buffer

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        self.info["list"][0] = self.steps
        return *outcome[:4], self.info


class HasChildren(Sound):
    """Starts two processes that run for an hour, and leaves them alone. Their pids are in the info of every reset."""

    found = "children"

    def at_init(self) -> None:
        command = [sys.executable, "-c", f"import time; time.sleep({FOR_EVER})"]
        self.children = [subprocess.Popen(command) for _ in range(2)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"children": [child.pid for child in self.children]}


class Leaks(Sound):
    """Keeps `megabytes` more with each episode, for ever."""

    found, megabytes = "memory", 8

    def at_init(self) -> None:
        self.kept: list[bytes] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.kept.append(os.urandom(2**20) * self.megabytes)
        return super().reset(seed=seed, options=options)


def _chatters(self: Any, _: Any) -> None:
    for fd in (1, 2):
        for _ in range(self.megabytes * 1024):
            os.write(fd, b"." * 1023 + b"\n")


def _changes(*_: Any) -> None:
    os.chdir("/")
    random.seed(0)
    np.random.seed(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def _leaves_a_thread(*_: Any) -> None:
    threading.Thread(target=threading.Event().wait, daemon=True, name="the renderer").start()


broken("Chatters", "prints", megabytes=10, at_step=_chatters)  # to stdout and to stderr
broken("Prints", "prints", every=1, at_step=lambda self, _: print(f"step {self.t}"))
broken("ChangesItsProcess", "process", at_step=_changes)  # directory, global generators, signal handlers
broken("ClosesDescriptors", "dies", at_step=doing(os.closerange, 3, 1024))  # those of its worker included
broken("LeavesAThread", "threads", at_init=_leaves_a_thread)
broken("HoldsALock", "state", at_init=lambda self: self.__setattr__("lock", threading.Lock()))

ZOO |= {kind.__name__: kind for kind in (ClosesOnce, ReusesItsBuffer, HasChildren, Leaks)}


def _some(names: str) -> tuple[type[Sound], ...]:
    return tuple(ZOO[name] for name in names.split())


RAISING = _some("StepRaises RaisesUnpicklable RaisesTwoArguments RaisesSpeechless RaisesSystemExit UnpicklableInfo")
MISFITS = _some("WrongShape WrongDtype TooPrecise MissingKey")
DEADLY = _some("OsExits Segfaults KillsItself")
STUCK = _some("StopsItself Hangs HangsInC DeafToTerm")


# -- which of several it is -------------------------------------------------------------------------------------------

SLOT, SEED, EPISODE, T, ACTION = range(5)  # of an observation of `Truthful`
WRONG, AT = 1, Sound.at  # the environment that goes wrong, and its step


class Truthful(Sound):
    """Observes float32[5]: slot, and what `Sound` does; an episode has length + slot steps; infos tell the step."""

    observation_space = gs.Box(-1, 2**24, (5,), np.float32)
    slot = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed, options=options)[0], {"t": 0}

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"t": self.t}

    def observe(self, action: Any) -> Observation:
        return np.array([self.slot, *super().observe(int(action))], np.float32)


def truthful(n: int, fault: str = "", length: int = 4, **settings: Any) -> list[Callable[[], Sound]]:
    """Functions that make n of them; number `WRONG` is of a kind of the zoo."""
    kinds = [fault if slot == WRONG else "" for slot in range(n)]
    return [partial(_truthful, kind, slot=i, length=length + i, **settings) for i, kind in enumerate(kinds)]


def _truthful(kind: str, **settings: Any) -> Sound:
    return type("Truthful", (ZOO[kind], Truthful) if kind else (Truthful,), {})(**settings)
