"""Environments that misbehave, each in a way of its own; `test_misbehaving.py` says what `treadle check` finds.

They need nothing but Gymnasium and NumPy, and each is `Plain` but for what its methods say.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

FOR_EVER = 3600
KEPT: list[Any] = []  # what lives as long as the process


class Plain(gym.Env):
    """Sound. An episode takes 10 steps; the faults of most others strike in the third."""

    observation_space: gym.Space = gs.Box(-1, 1, (2,), np.float32)
    action_space: gym.Space = gs.Discrete(2)
    t = life = episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.episodes = 0, self.episodes + 1
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.t, self.life = self.t + 1, self.life + 1
        if self.t == 3:
            self.third()
        return self.look(), 1.0, self.t == 10, False, {}

    def look(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def third(self) -> None:
        """What happens in the third step of each episode."""


# -- exceptions -------------------------------------------------------------------------------------------------------


class RaisesInInit(Plain):
    def __init__(self) -> None:
        raise ValueError("no such level")


class ExitsInInit(Plain):
    def __init__(self) -> None:
        sys.exit("no licence")


class RaisesInReset(Plain):
    def reset(self, **kwargs: Any) -> Any:
        raise FileNotFoundError("the level is gone")


class RaisesInStep(Plain):
    def third(self) -> None:
        {}["corner"]


class RaisesAfterTheFirstEpisode(Plain):
    def third(self) -> None:
        if self.episodes > 1:
            raise RuntimeError("the simulator is worn out")


class RaisesForSomeSeeds(Plain):
    def reset(self, *, seed: int | None = None, **kwargs: Any) -> Any:
        self.bad = seed is not None and seed % 32 == 17
        return super().reset(seed=seed)

    def third(self) -> None:
        if self.bad:
            raise ZeroDivisionError("no goal")


class RaisesALongText(Plain):
    def third(self) -> None:
        raise ValueError("x" * 11_000)


class RaisesInClose(Plain):
    def close(self) -> None:
        raise RuntimeError("the renderer is gone")


class ExitsInStep(Plain):
    def third(self) -> None:
        sys.exit(5)


# -- hangs ------------------------------------------------------------------------------------------------------------


class HangsInInit(Plain):
    def __init__(self) -> None:
        time.sleep(FOR_EVER)


class HangsInReset(Plain):
    def reset(self, **kwargs: Any) -> Any:
        if self.episodes == 2:
            time.sleep(FOR_EVER)
        return super().reset(**kwargs)


class HangsInStep(Plain):
    def third(self) -> None:
        while True:
            pass


class HangsInC(Plain):
    """With the GIL: no other thread, and no handler of a signal, ever runs."""

    def third(self) -> None:
        while True:  # a signal ends one sleep
            ctypes.PyDLL(None).sleep(FOR_EVER)


class HangsInClose(Plain):
    def close(self) -> None:
        threading.Event().wait()


# -- deaths -----------------------------------------------------------------------------------------------------------


class DiesInInit(Plain):
    def __init__(self) -> None:
        os._exit(6)


class DiesInStep(Plain):
    def third(self) -> None:
        os._exit(3)


class Segfaults(Plain):
    def third(self) -> None:
        ctypes.string_at(0)


class DiesBesideAnother(Plain):
    """Two of them in one process do not go together."""

    alive = 0

    def __init__(self) -> None:
        type(self).alive += 1
        if self.alive > 1:
            os.abort()


class KillsItsParent(Plain):
    def third(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)


class KillsItsParentInInit(Plain):
    def __init__(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)


class KillsItsParentInClose(Plain):
    def close(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)


class ClosesDescriptors(Plain):
    """Those of its worker included."""

    def third(self) -> None:
        os.closerange(3, 1024)


# -- output -----------------------------------------------------------------------------------------------------------


class Prints(Plain):
    def third(self) -> None:
        print("step 3: ", list(range(2000)))


class WritesToStderr(Plain):
    def third(self) -> None:
        os.write(2, b"warning: " + b"y" * 11_000 + b"\n")


# -- what spaces and Gymnasium's interface do not allow ---------------------------------------------------------------


class WrongShape(Plain):
    def look(self) -> Any:
        return np.zeros(3 if self.t == 3 else 2, np.float32)


class WrongDtype(Plain):
    def look(self) -> Any:
        return super().look().astype(np.float64)


class OutOfSpace(Plain):
    def look(self) -> Any:
        return super().look() + np.float32(2 * (self.t == 3))


class NaNObservation(Plain):
    def look(self) -> Any:
        return np.full(2, np.nan if self.t == 3 else 0, np.float32)


class NaNReward(Plain):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float("nan") if self.t == 3 else 1.0, *rest


class InfoIsNone(Plain):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], None


class UnpicklableInfo(Plain):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"engine": {"lock": threading.Lock()}}


class InfoHoldsItself(Plain):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        info["me"] = info
        return observation, reward, terminated, truncated, info


class FourValues(Plain):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class ResetWithoutInfo(Plain):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class NoSpace(Plain):
    observation_space = None  # type: ignore[assignment]


class SpaceChanges(Plain):
    def reset(self, **kwargs: Any) -> Any:
        self.observation_space = gs.Box(-1, 1, (2 + self.episodes % 2,), np.float32)
        return super().reset(**kwargs)

    def look(self) -> Any:
        return np.zeros(self.observation_space.shape or (), np.float32)


# -- not the same under the same seed ---------------------------------------------------------------------------------


class IgnoresItsSeed(Plain):
    def look(self) -> Any:
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class LooksAtTheClock(Plain):
    def look(self) -> Any:
        return np.full(2, time.time() % 1, np.float32)


class KeepsStateBetweenEpisodes(Plain):
    def look(self) -> Any:
        return np.full(2, self.life / 1e6, np.float32)


# -- what it does to its process, and keeps ---------------------------------------------------------------------------


class SharesItsBuffer(Plain):
    def __init__(self) -> None:
        self.buffer = np.zeros(2, np.float32)

    def look(self) -> Any:
        self.buffer[:] = super().look()
        return self.buffer


class ReseedsNumpy(Plain):
    def reset(self, **kwargs: Any) -> Any:
        np.random.seed(0)
        random.seed(0)
        return super().reset(**kwargs)


class ChangesDirectory(Plain):
    def third(self) -> None:
        os.chdir("/")


class ChangesHandlers(Plain):
    def __init__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


class LeaksMemory(Plain):
    def reset(self, **kwargs: Any) -> Any:
        KEPT.append(os.urandom(2**20))
        return super().reset(**kwargs)


class LeaksFiles(Plain):
    def reset(self, **kwargs: Any) -> Any:
        KEPT.append(open(os.devnull))  # noqa: SIM115
        return super().reset(**kwargs)


class LeavesAThread(Plain):
    def __init__(self) -> None:
        threading.Thread(target=threading.Event().wait, daemon=True, name="the renderer").start()


class StartsChildren(Plain):
    def __init__(self) -> None:
        KEPT.append(subprocess.Popen(["sleep", str(FOR_EVER)]))


class StartsADaemon(Plain):
    """A child in a session of its own outlives the worker's group."""

    def __init__(self) -> None:
        KEPT.append(subprocess.Popen(["sleep", str(FOR_EVER)], start_new_session=True))


class LeavesADaemon(Plain):
    """A grandchild in a session of its own, whose parent has ended."""

    def __init__(self) -> None:
        subprocess.run(["sh", "-c", f"setsid sleep {FOR_EVER} >/dev/null 2>&1 &"], check=True)


class ExitsInClose(Plain):
    def close(self) -> None:
        sys.exit(3)


class StartsSlowly(Plain):
    """Nothing is wrong with it: its constructor and its resets take a good part of the limit."""

    def __init__(self) -> None:
        time.sleep(1)

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return super().reset(**kwargs)


class RemovesItsDirectory(Plain):
    def third(self) -> None:
        os.chdir(folder := tempfile.mkdtemp())
        os.rmdir(folder)


class NeverEnds(Plain):
    def step(self, action: Any) -> Any:
        observation, reward, _, *rest = super().step(action)
        return observation, reward, False, *rest


# -- wrong commands ---------------------------------------------------------------------------------------------------


class NeedsArguments(Plain):
    def __init__(self, level: int) -> None:
        self.level = level


def not_an_environment() -> Any:
    return object()


if __name__ == "__main__":
    sys.exit("it is named on a command line: treadle check misbehaving.py:Plain")
