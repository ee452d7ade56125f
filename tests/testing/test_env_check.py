"""`check_env`: every fault of the zoos is found, and what is sound is not blamed."""

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from treadle.errors import UsageError
from treadle.testing import CheckFailed, check_env
from treadle.testing.faults import ZOO
from treadle.testing.misbehaved import MISBEHAVIOURS, Misbehaves

FAST = {
    "nothing",
    "ignores its seed",
    "no key",
    "leaves children",
    "leaks",
    "OsExits",
    "Chatters",
    "NoOptions",
    "Plain",
}
QUICK: dict[str, Any] = {"seconds": 2.0, "timeout": 20.0}
FAILING = {  # of `faults.py`: what the check says
    "InitRaises": "build",
    "InitOsExits": "build",
    "ResetRaises": "raises",
    "StepRaises": "raises",
    "RaisesUnpicklable": "raises",
    "RaisesTwoArguments": "raises",
    "RaisesSpeechless": "raises",
    "RaisesSystemExit": "raises",
    "CloseRaises": "close",
    "OsExits": "dies",
    "ResetOsExits": "dies",
    "Segfaults": "dies",
    "KillsItself": "dies",
    "WrongShape": "space",
    "WrongDtype": "space",
    "TooPrecise": "space",
    "MissingKey": "space",
    "ReusesItsBuffer": "reused",
    "Chatters": "prints",
    "HasChildren": "children",
}


def some(names: Iterable[str]) -> list[Any]:
    """All of them, most of them only among the slow tests."""
    return [pytest.param(each, marks=() if each in FAST else pytest.mark.slow) for each in names]


@pytest.mark.parametrize("how", some(MISBEHAVIOURS))
def test_each_that_cannot_be_trusted_is_found(how: str) -> None:
    report = check_env(partial(Misbehaves, how), **QUICK)
    if MISBEHAVIOURS[how]:
        assert report.found(MISBEHAVIOURS[how]), str(report)
        assert all(each.advice for each in report.findings)
    else:
        assert not report.findings, str(report)
        assert report.ok


@pytest.mark.parametrize("name", some(FAILING))
def test_each_that_fails_is_found(name: str) -> None:
    report = check_env(ZOO[name], **QUICK)
    assert report.found(FAILING[name]), str(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Hangs", "HangsInC", "StopsItself", "HangsInClose", "DeafToTerm"])
def test_each_that_hangs_is_found(name: str) -> None:
    report = check_env(ZOO[name], seconds=0.5, timeout=1.0)
    assert report.found("hangs"), str(report)


def test_a_death_is_placed() -> None:
    (finding,) = check_env(Segfaults, **QUICK).findings
    assert (finding.level, finding.about) == ("fault", "dies")
    assert re.search(r"further steps: the worker was ended by SIGSEGV, at .*test_env_check.py:\d+$", finding.what)


def test_what_raises_is_placed() -> None:
    (finding,) = check_env(partial(Misbehaves, "raises in step 200"), **QUICK).findings
    assert "ZeroDivisionError: the pole has no length" in finding.what
    assert "misbehaved.py" in finding.what


@pytest.mark.parametrize("env", ["CartPole-v1", "Taxi-v4", "Blackjack-v1", "MiniGrid-Empty-5x5-v0", "HalfCheetah-v5"])
def test_no_false_alarm(env: str) -> None:
    report = check_env(env, **QUICK)
    assert report.ok, str(report)
    assert not [each for each in report.findings if each.about != "state"], str(report)


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(UsageError, match="CartPol-v1"):
        check_env("CartPol-v1")
    with pytest.raises(UsageError, match="built already"):
        check_env(gym.make("CartPole-v1"))  # type: ignore[arg-type]


def test_a_closure_that_cannot_travel() -> None:
    import threading

    lock = threading.Lock()

    def make() -> Any:
        return lock

    report = check_env(make)
    assert report.found("pickle"), str(report)


# -- what Gymnasium's and Stable-Baselines3's tests of their checkers have, written anew -------------------------------


class Plain(gym.Env):
    """Sound; what is wrong is in a subclass."""

    observation_space: gym.Space = gs.Box(-1, 1, (2,), np.float32)
    action_space: gym.Space = gs.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.look(), 1.0, self.t == 10, False, {}

    def look(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Segfaults(Plain):
    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 700:
            ctypes.string_at(0)
        return super().step(action)


class NoSuperReset(Plain):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return self.look(), {}


class OldSeedMethod(Plain):
    def seed(self, seed: int | None = None) -> None:
        self.np_random = np.random.default_rng(seed)


class ListForArray(Plain):
    def look(self) -> Any:
        return [0.5, 0.5]


class ScalarForArray(Plain):
    def look(self) -> Any:
        return np.float32(0.5)


class AnotherOfTheSameSize(Plain):
    def look(self) -> Any:
        return super().look().reshape(1, 2)


class PixelsAsFloats(Plain):
    observation_space = gs.Box(0, 255, (4, 4, 3), np.uint8)

    def look(self) -> Any:
        return self.np_random.uniform(0, 255, (4, 4, 3)).astype(np.float32)


class DiscreteTooLarge(Plain):
    observation_space = gs.Discrete(3)

    def look(self) -> Any:
        return np.int64(3)


class TupleTooShort(Plain):
    observation_space = gs.Tuple([gs.Discrete(3), gs.Discrete(3)])

    def look(self) -> Any:
        return (np.int64(1),)


class DictWithOneMore(Plain):
    observation_space = gs.Dict({"a": gs.Discrete(3)})

    def look(self) -> Any:
        return {"a": np.int64(1), "b": np.int64(1)}


class RewardArray(Plain):
    def step(self, action: Any) -> Any:
        observed, _, *rest = super().step(action)
        return (observed, np.ones(2), *rest)


class RewardIsNone(Plain):
    def step(self, action: Any) -> Any:
        observed, _, *rest = super().step(action)
        return (observed, None, *rest)


class ResetReturnsAnArray(Plain):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0]


class NoOptions(Plain):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class NoSpace(Plain):
    observation_space = None  # type: ignore[assignment]


ANEW = {
    NoSuperReset: ("determinism", "gymnasium"),
    OldSeedMethod: ("gymnasium",),
    ListForArray: ("space",),
    ScalarForArray: ("space",),
    AnotherOfTheSameSize: ("space",),
    PixelsAsFloats: ("space",),
    DiscreteTooLarge: ("space", "bounds"),
    TupleTooShort: ("space",),
    DictWithOneMore: ("space",),
    RewardArray: ("interface",),
    RewardIsNone: ("interface",),
    ResetReturnsAnArray: ("interface",),
    NoOptions: ("interface",),
    NoSpace: ("raises", "build", "interface"),
}


@pytest.mark.parametrize("name", some(["Plain", *(kind.__name__ for kind in ANEW)]))
def test_what_other_checkers_are_tested_with(name: str) -> None:
    kind = globals()[name]
    report = check_env(kind, **QUICK)
    if kind is Plain:
        assert not report.findings, str(report)
    else:
        assert any(report.found(about) for about in ANEW[kind]), str(report)


# -- the command -------------------------------------------------------------------------------------------------------


def treadle(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "treadle", *words], capture_output=True, text=True, cwd=cwd)


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from treadle.testing.misbehaved import Misbehaves\n\n\ndef make(how='nothing'):\n    return Misbehaves(how)\n"
    )
    sound = treadle("check", "mine.py:make", "--steps", "200", "--json", cwd=tmp_path)
    assert sound.returncode == 0, sound.stderr
    assert json.loads(sound.stdout)["ok"] is True
    bad = treadle("check", "mine.py:make", "--env-kwargs", '{"how": "no key"}', cwd=tmp_path)
    assert bad.returncode == 1
    assert bad.stdout.startswith("make: 1 fault\n  FAULT   space: the observation of step 20 does not fit")
    assert treadle("check", "mine.py:nothing", cwd=tmp_path).returncode == 2
    assert treadle("check", "CartPole-v1", "--steps", "0").returncode == 2


def test_a_report_can_be_raised() -> None:
    report = check_env(partial(Misbehaves, "no key"), **QUICK)
    with pytest.raises(CheckFailed, match="1 fault") as caught:
        report.raise_for_faults()
    assert caught.value.report is report
