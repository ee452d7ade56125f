"""A zoo of broken environments: one small class for each way in which an environment can go wrong.

For testing whatever steps environments: does it name the environment that failed, keep the others, and come to an end?
Each behaves like `Sound` until its fault strikes: at the reset or step that `at` says (the first is number 0 and 1), in
the first life of the environment or in all of them.

    pool = Pool([gym_env(Sound), gym_env(StepRaises, kwargs={"at": 3})])

`ZOO` has them all by name; `DEADLY` are those that end their process, `STUCK` those that never return, `MISFITS` those
that return what their space does not allow. Deadly and stuck ones are for processes of their own only.
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
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

FOR_EVER = 3600  # seconds

Observation = Any
Outcome = tuple[Observation, float, bool, bool, dict[str, Any]]


class Sound(gym.Env):
    """Nothing wrong with it. Observes float32[4]: its seed, episode, step and last action; an episode has 20 steps."""

    observation_space: gym.Space = gs.Box(-np.inf, np.inf, (4,), np.float32)
    action_space: gym.Space = gs.Discrete(4)

    def __init__(self, at: int = 3) -> None:
        self.at = at
        self.seed_given = -1
        self.episode = -1
        self.t = 0
        self.steps = 0  # of all episodes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """float32[4] and an empty info."""
        if seed is not None:
            self.seed_given = seed
        self.episode += 1
        self.t = 0
        if self.episode == self.at:
            self.at_reset()
        return self.observe(0), {}

    def step(self, action: Any) -> Outcome:
        """The outcome of a step; the fault strikes in the `at`-th of this environment's life."""
        self.t += 1
        self.steps += 1
        sound: Outcome = self.observe(action), float(self.t), self.t >= 20, False, {}
        return (self.at_step(sound) or sound) if self.steps == self.at else sound

    def observe(self, action: Any) -> Observation:
        return np.array([self.seed_given, self.episode, self.t, action], np.float32)

    def at_reset(self) -> None:
        """The fault, for those that strike in a reset."""

    def at_step(self, sound: Outcome) -> Outcome | None:
        """The fault, for those that strike in a step: what to return instead, None for the sound outcome."""


# -- exceptions -------------------------------------------------------------------------------------------------------


class InitRaises(Sound):
    """Raises ValueError in its constructor."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(at)
        raise ValueError("no such level")


class InitExits(Sound):
    """Calls sys.exit in its constructor."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(at)
        sys.exit(4)


class ResetRaises(Sound):
    """Raises ValueError in reset number `at`."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(at)

    def at_reset(self) -> None:
        raise ValueError("the level file is gone")

    def step(self, action: Any) -> Outcome:
        self.steps += 1
        self.t += 1
        return self.observe(action), float(self.t), self.t >= 20, False, {}


class StepRaises(Sound):
    """Raises ValueError."""

    def at_step(self, sound: Outcome) -> None:
        raise ValueError("the ball left the field")


class CloseRaises(Sound):
    """Raises RuntimeError when it is closed."""

    def close(self) -> None:
        raise RuntimeError("the renderer is gone")


class Sealed(Exception):
    """Holds a lock, so it cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class RaisesUnpicklable(Sound):
    """Raises an exception that cannot be pickled."""

    def at_step(self, sound: Outcome) -> None:
        raise Sealed("holding a lock")


class TwoArguments(Exception):
    """Its constructor takes two arguments and keeps neither: it pickles, and cannot be unpickled."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


class RaisesTwoArguments(Sound):
    """Raises an exception that can be pickled but not unpickled."""

    def at_step(self, sound: Outcome) -> None:
        raise TwoArguments(7, "engine failure")


class Speechless(Exception):
    """Its __str__ and __repr__ fail."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class RaisesSpeechless(Sound):
    """Raises an exception whose __str__ raises."""

    def at_step(self, sound: Outcome) -> None:
        raise Speechless


class RaisesSystemExit(Sound):
    """Calls sys.exit."""

    def at_step(self, sound: Outcome) -> None:
        sys.exit(5)


# -- what cannot travel -----------------------------------------------------------------------------------------------


class UnpicklableInfo(Sound):
    """Its info holds a lock, two levels down."""

    def at_step(self, sound: Outcome) -> Outcome:
        return *sound[:4], {"fine": 1, "engine": {"handles": [0, threading.Lock()]}}


# -- deaths -----------------------------------------------------------------------------------------------------------


class OsExits(Sound):
    """Ends its process by os._exit(3)."""

    def at_step(self, sound: Outcome) -> None:
        print("about to exit", file=sys.stderr, flush=True)
        os._exit(3)


class InitOsExits(Sound):
    """Ends its process in its constructor."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(at)
        print("no licence found", file=sys.stderr, flush=True)
        os._exit(6)


class ResetOsExits(Sound):
    """Ends its process in reset number `at`."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(at)

    def at_reset(self) -> None:
        os._exit(7)


class Segfaults(Sound):
    """Reads address 0."""

    def at_step(self, sound: Outcome) -> None:
        ctypes.string_at(0)


class KillsItself(Sound):
    """Sends itself SIGKILL, as the kernel does when memory is short."""

    def at_step(self, sound: Outcome) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


# -- never, or late ---------------------------------------------------------------------------------------------------


class StopsItself(Sound):
    """Sends itself SIGSTOP: it neither runs nor ends."""

    def at_step(self, sound: Outcome) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class Hangs(Sound):
    """Never returns from Python code."""

    def at_step(self, sound: Outcome) -> None:
        while True:
            time.sleep(FOR_EVER)


class HangsInC(Sound):
    """Never returns from C code and holds the GIL there: no other thread, no Python signal handler ever runs."""

    def at_step(self, sound: Outcome) -> None:
        while True:
            ctypes.PyDLL(None).sleep(FOR_EVER)


class HangsInClose(Sound):
    """Never returns from close."""

    def close(self) -> None:
        while True:
            time.sleep(FOR_EVER)


class HangsInInit(Sound):
    """Never returns from its constructor."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(at)
        while True:
            time.sleep(FOR_EVER)


class DeafToTerm(Sound):
    """Ignores SIGTERM, and never returns."""

    def at_step(self, sound: Outcome) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(FOR_EVER)


class SlowOnce(Sound):
    """One step takes `seconds`; otherwise sound."""

    def __init__(self, at: int = 3, seconds: float = 0.5) -> None:
        super().__init__(at)
        self.seconds = seconds

    def at_step(self, sound: Outcome) -> None:
        time.sleep(self.seconds)


# -- misfits ----------------------------------------------------------------------------------------------------------


class WrongShape(Sound):
    """Observes float32[1], which NumPy would broadcast to four numbers."""

    def at_step(self, sound: Outcome) -> Outcome:
        return np.ones(1, np.float32), *sound[1:]


class WrongDtype(Sound):
    """Observes int32[4], which NumPy would cast."""

    def at_step(self, sound: Outcome) -> Outcome:
        return np.ones(4, np.int32), *sound[1:]


class TooPrecise(Sound):
    """Observes 1e300 in float64[4], which NumPy would cast to infinity."""

    def at_step(self, sound: Outcome) -> Outcome:
        return np.full(4, 1e300), *sound[1:]


class MissingKey(Sound):
    """Observes a dict without one of its keys."""

    observation_space = gs.Dict({"a": gs.Box(0, 1, (2,), np.float32), "b": gs.Discrete(3)})

    def observe(self, action: Any) -> Observation:
        return {"a": np.zeros(2, np.float32), "b": 0}

    def at_step(self, sound: Outcome) -> Outcome:
        return {"a": np.zeros(2, np.float32)}, *sound[1:]


# -- sound, but tricky ------------------------------------------------------------------------------------------------


class ReusesItsBuffer(Sound):
    """Returns the same array every time, overwritten, and the same info dict."""

    def __init__(self, at: int = 3) -> None:
        super().__init__(at)
        self.buffer = np.zeros(4, np.float32)
        self.info: dict[str, Any] = {"list": [0]}

    def observe(self, action: Any) -> Observation:
        self.buffer[:] = super().observe(action)
        return self.buffer

    def step(self, action: Any) -> Outcome:
        outcome = super().step(action)
        self.info["list"][0] = self.steps
        return *outcome[:4], self.info


class Chatters(Sound):
    """Writes `megabytes` to stdout and to stderr in one step."""

    def __init__(self, at: int = 3, megabytes: int = 10) -> None:
        super().__init__(at)
        self.megabytes = megabytes

    def at_step(self, sound: Outcome) -> None:
        line = b"." * 1023 + b"\n"
        for fd in (1, 2):
            for _ in range(self.megabytes * 1024):
                os.write(fd, line)


class HasChildren(Sound):
    """Starts two processes that run for an hour, and leaves them alone. Their pids are in the info of every reset."""

    def __init__(self, at: int = 3) -> None:
        super().__init__(at)
        command = [sys.executable, "-c", f"import time; time.sleep({FOR_EVER})"]
        self.children = [subprocess.Popen(command) for _ in range(2)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"children": [child.pid for child in self.children]}


class ChangesItsProcess(Sound):
    """Changes directory, reseeds the global generators, and sets signal handlers: all within its own process."""

    def at_step(self, sound: Outcome) -> None:
        os.chdir("/")
        random.seed(0)
        np.random.seed(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)


class ClosesDescriptors(Sound):
    """Closes every file descriptor above 2, those of its worker included."""

    def at_step(self, sound: Outcome) -> None:
        os.closerange(3, 1024)


# -- worn out ---------------------------------------------------------------------------------------------------------


class Leaks(Sound):
    """Keeps `megabytes` more with each episode, for ever."""

    def __init__(self, at: int = 3, megabytes: int = 8) -> None:
        super().__init__(at)
        self.megabytes = megabytes
        self.kept: list[bytes] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.kept.append(os.urandom(2**20) * self.megabytes)
        return super().reset(seed=seed, options=options)


class WearsOut(Sound):
    """Plays `at` episodes and raises RuntimeError in the reset after them."""

    def at_reset(self) -> None:
        raise RuntimeError("the simulator is worn out")


RAISING = (StepRaises, RaisesUnpicklable, RaisesTwoArguments, RaisesSpeechless, RaisesSystemExit, UnpicklableInfo)
MISFITS = (WrongShape, WrongDtype, TooPrecise, MissingKey)
DEADLY = (OsExits, Segfaults, KillsItself)
STUCK = (StopsItself, Hangs, HangsInC, DeafToTerm)

ZOO: dict[str, type[Sound]] = {
    kind.__name__: kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, Sound)
}

__all__ = ["DEADLY", "MISFITS", "RAISING", "STUCK", "ZOO", "Sound", *sorted(ZOO.keys() - {"Sound"})]
