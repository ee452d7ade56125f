"""`check_env`: every fault of the zoo is found, and what is sound is not blamed."""

import ctypes
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.envs.classic_control import CartPoleEnv

from conftest import scaled
from treadle.errors import UsageError
from treadle.testing import CheckFailed, Report, check_env
from treadle.testing.env_probe import print_of
from zoo.faults import ZOO

FAST = {"Sound", "IgnoresItsSeed", "MissingKey", "HasChildren", "Leaks", "OsExits", "Chatters", "NoOptions", "Plain"}
QUICK: dict[str, Any] = {"seconds": scaled(2.0), "timeout": scaled(20.0)}  # steps tried depend on them
PATIENT = {**QUICK, "seconds": scaled(60.0)}  # for what ends by itself, in a step that is known
HOW: dict[str, Any] = {"StepRaises": {"at": 200}, "Leaks": {"megabytes": 1}}  # settings
BRIEF = {name for name, kind in ZOO.items() if kind.found == "hangs"} | {"HangsInInit"}
BEYOND = {"SlowOnce"}  # what no check can see


def some(names: Iterable[str]) -> list[Any]:
    """All of them, most of them only among the slow tests."""
    return [pytest.param(each, marks=() if each in FAST else pytest.mark.slow) for each in sorted(names)]


@pytest.mark.parametrize("name", some(ZOO.keys() - BRIEF - BEYOND))
def test_each_of_the_zoo_is_found(name: str) -> None:
    report = check_env(ZOO[name], env_kwargs=HOW.get(name), **QUICK)
    if ZOO[name].found:
        assert report.found(ZOO[name].found), str(report)
        assert all(each.advice for each in report.findings)
    else:
        assert not report.findings, str(report)
        assert report.ok


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BRIEF))
def test_each_that_hangs_is_found(name: str) -> None:
    report = check_env(ZOO[name], seconds=0.5, timeout=scaled(3.0))
    assert report.found(ZOO[name].found), str(report)


def test_a_death_is_placed() -> None:
    (finding,) = check_env(Segfaults, **PATIENT).findings
    assert (finding.level, finding.about) == ("fault", "dies")
    assert re.search(r"further steps: the worker was ended by SIGSEGV, at .*test_env_check.py:\d+$", finding.what)


def test_what_raises_is_placed() -> None:
    (finding,) = check_env(RaisesLate, **PATIENT).findings
    assert re.search(
        r"^ZeroDivisionError: .*, in step 1 of episode 21 from seed 0, at test_env_check.py:\d+ \(\d+ times\)$",
        finding.what,
    )


class OldStep(CartPoleEnv):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


def test_what_the_interface_forbids_is_told_without_our_own_lines() -> None:
    (finding,) = check_env(OldStep, **QUICK).findings
    assert (finding.level, finding.about) == ("fault", "interface")
    assert finding.what.startswith(
        "its first steps: step must return (observation, reward, terminated, truncated, info)"
    )
    assert "contract.py" not in finding.what


@pytest.mark.parametrize("env", ["CartPole-v1", "Taxi-v4", "Blackjack-v1", "MiniGrid-Empty-5x5-v0", "HalfCheetah-v5"])
def test_no_false_alarm(env: str) -> None:
    report = check_env(env, **QUICK)
    assert report.ok, str(report)
    assert not [each for each in report.findings if each.about != "state"], str(report)


def test_the_order_of_an_info_s_keys_does_not_matter() -> None:
    assert print_of({"a": 1, "b": {"c": 2, "d": 3}}) == print_of({"b": {"d": 3, "c": 2}, "a": 1})
    assert print_of({"a": 1, "b": 2}) != print_of({"a": 2, "b": 1})


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


class RaisesLate(Segfaults):
    def step(self, action: Any) -> Any:
        return super().step(action) if self.steps < 200 else 1 // 0


class NoSuperReset(Plain):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return self.look(), {}


class NoOptions(Plain):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


def rewards(reward: Any) -> Any:
    def step(self: Plain, action: Any) -> Any:
        observed, _, *rest = Plain.step(self, action)
        return (observed, reward, *rest)

    return {"step": step}


def shows(observed: Any, space: gym.Space = Plain.observation_space) -> Any:
    return {"look": lambda self: observed, "observation_space": space}


def old_seed(self: Plain, seed: int | None = None) -> None:
    self.np_random = np.random.default_rng(seed)


PIXELS = gs.Box(0, 255, (4, 4, 3), np.uint8)
ANEW: dict[str, tuple[str, dict[str, Any]]] = {  # name -> what is found, how it differs from Plain
    "OldSeedMethod": ("gymnasium", {"seed": old_seed}),
    "ListForArray": ("space", shows([0.5, 0.5])),
    "ScalarForArray": ("space", shows(np.float32(0.5))),
    "AnotherOfTheSameSize": ("space", {"look": lambda self: Plain.look(self).reshape(1, 2)}),
    "PixelsAsFloats": ("space", shows(np.full((4, 4, 3), 7.5, np.float32), PIXELS)),
    "DiscreteTooLarge": ("space bounds", shows(np.int64(3), gs.Discrete(3))),
    "TupleTooShort": ("space", shows((np.int64(1),), gs.Tuple([gs.Discrete(3), gs.Discrete(3)]))),
    "DictWithOneMore": ("space", shows({"a": np.int64(1), "b": np.int64(1)}, gs.Dict({"a": gs.Discrete(3)}))),
    "RewardArray": ("interface", rewards(np.ones(2))),
    "RewardIsNone": ("interface", rewards(None)),
    "ResetReturnsAnArray": ("interface", {"reset": lambda self, **given: Plain.reset(self, **given)[0]}),
    "NoSpace": ("raises build interface", {"observation_space": None}),
}
globals().update({name: type(name, (Plain,), {"__module__": __name__, **has}) for name, (_, has) in ANEW.items()})
ANEW |= {"Plain": ("", {}), "NoSuperReset": ("determinism gymnasium", {}), "NoOptions": ("interface", {})}


@pytest.mark.parametrize("name", some(ANEW))
def test_what_other_checkers_are_tested_with(name: str) -> None:
    report = check_env(globals()[name], **QUICK)
    abouts = ANEW[name][0].split()
    assert any(map(report.found, abouts)) if abouts else not report.findings, str(report)


class OwnGenerator(Plain):
    """Draws from a generator that nobody seeds."""

    def look(self) -> Any:
        return GENERATOR.uniform(-1, 1, 2).astype(np.float32)


GENERATOR = np.random.default_rng()


def test_one_unseeded_generator_is_one_finding() -> None:
    report = check_env(OwnGenerator, **QUICK)
    (finding,) = report.findings
    assert finding.about == "determinism"
    for where in ("after other episodes", "second environment", "in another process, first at record 0", "Gymnasium's"):
        assert where in finding.what
    assert "draw from self.np_random alone" in finding.advice
    assert "Gymnasium's own checker" not in report.passed


class Waits(Plain):
    """A step takes a while, and the 300th does not end."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        time.sleep(0.005 if self.steps < 300 else 1000)
        return super().step(action)


def test_the_timeout_is_that_of_a_step_and_not_of_many() -> None:
    report = check_env(Waits, seconds=30.0, timeout=1.0)
    (finding,) = report.findings
    assert finding.about == "hangs"
    assert "limit 1 s" in finding.what


# -- the command -------------------------------------------------------------------------------------------------------


def treadle(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "treadle", *words], capture_output=True, text=True, cwd=cwd)


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"import sys\nsys.path.append({str(Path(__file__).parent.parent)!r})\n"
        "from zoo.faults import ZOO\n\n\ndef make(how='Sound'):\n    return ZOO[how](at=-1, every=20)\n"
    )
    sound = treadle("check", "mine.py:make", "--steps", "200", "--json", cwd=tmp_path)
    assert sound.returncode == 0, sound.stderr
    assert json.loads(sound.stdout)["ok"] is True
    bad = treadle("check", "mine.py:make", "--env-kwargs", '{"how": "MissingKey"}', cwd=tmp_path)
    assert bad.returncode == 1
    assert bad.stdout.startswith("make: 1 fault\n  FAULT   space: the observation of step 20 does not fit")
    assert treadle("check", "mine.py:nothing", cwd=tmp_path).returncode == 2
    assert treadle("check", "CartPole-v1", "--steps", "0").returncode == 2


def test_a_report_can_be_raised() -> None:
    report = check_env(ZOO["MissingKey"], env_kwargs={"at": -1, "every": 20}, **QUICK)
    with pytest.raises(CheckFailed, match="1 fault") as caught:
        report.raise_for_faults()
    assert caught.value.report is report


def test_advice_is_given_once_and_each_part_is_told_before_it_begins() -> None:
    report, told = Report("x", {"space": "cast it"}), list[str]()
    for what in ("one", "two"):
        report.fault("space", what)
    assert str(report).count("-> cast it") == 1
    check_env(ZOO["StepRaises"], **QUICK, progress=told.append)
    assert told[:2] == ["its constructor", "its first steps"]
    assert told[-1] == "in a spawned process"


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from treadle.cli import check

    check.tell("closing it")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    check.tell("closing it")
    check.tell("")
    assert capsys.readouterr().err == "\r\x1b[Kclosing it ...\r\x1b[K"
