"""`treadle check` of environments that misbehave, each in a way of its own: one table of what is found."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import misbehaving
import pytest

from treadle.testing import check_env

FILE = misbehaving.__file__
TIMEOUT, BOUND = 3, 90.0  # seconds: of a step, and of the command on a busy machine

# name -> what is found first, the exit code, what the finding says
AT = r"at misbehaving\.py:\d+"
IN_STEP = rf", in step 3 of episode 1 from seed 0, {AT} \(\d+ times\)$"
FAULTS = {
    "RaisesInInit": ("build", rf"ValueError: no such level \({AT[3:]}\)"),
    "ExitsInInit": ("build", r"SystemExit: no licence"),
    "RaisesInReset": ("raises", rf"FileNotFoundError: the level is gone, in the reset of episode 1 from seed 0, {AT}"),
    "RaisesInStep": ("raises", r"KeyError: 'corner'" + IN_STEP),
    "RaisesAfterTheFirstEpisode": ("raises", rf"in step 3 of episode 2 from seed 0, {AT}"),
    "RaisesForSomeSeeds": (
        "raises",
        rf"ZeroDivisionError: no goal, in step 3 of episode 1 from seed 17, {AT}",
    ),
    "RaisesALongText": ("raises", r"ValueError: x+ \.\.\. x+" + IN_STEP),
    "RaisesInClose": ("close", rf"RuntimeError: the renderer is gone, {AT}"),
    "ExitsInClose": ("close", rf"SystemExit: 3, {AT}"),
    "ExitsInStep": ("raises", "SystemExit: 5" + IN_STEP),
    "HangsInInit": ("build", rf"its constructor: no answer for [\d.]+ s \(limit 3 s\), {AT}$"),
    "HangsInReset": ("hangs", rf"its first steps: no answer for [\d.]+ s \(limit 3 s\), {AT}$"),
    "HangsInStep": ("hangs", rf"its first steps: no answer for [\d.]+ s \(limit 3 s\), {AT}$"),
    "HangsInC": ("hangs", rf"its first steps: no answer for [\d.]+ s \(limit 3 s\), {AT}$"),
    "HangsInClose": ("hangs", rf"no answer for [\d.]+ s \(limit 3 s\), {AT}$"),
    "DiesInInit": ("build", "its constructor: the worker exited with code 6"),
    "DiesInStep": ("dies", "its first steps: the worker exited with code 3"),
    "Segfaults": ("dies", rf"its first steps: the worker was ended by SIGSEGV, {AT}$"),
    "DiesBesideAnother": ("dies", rf"beside a second one: the worker was ended by SIGABRT, {AT}"),
    "KillsItsParent": ("dies", r"its first steps: it ends the process that has started it \(os.getppid\(\)\)"),
    "KillsItsParentInInit": ("dies", "its constructor: it ends the process that has started it"),
    "KillsItsParentInClose": ("dies", "it ends the process that has started it"),
    "ClosesDescriptors": ("dies", "its first steps: the worker"),
    "WrongShape": ("space", "the observation of step 3 does not fit"),
    "WrongDtype": ("space", "the observation of reset does not fit"),
    "NaNObservation": ("nan", "there are NaNs in the observation of step 3"),
    "NaNReward": ("nan", "the reward of step 3 of an episode is NaN"),
    "InfoIsNone": ("interface", r"info is a dict; it returned 5 values \(ndarray, float, bool, bool, NoneType\)"),
    "UnpicklableInfo": ("info", r"step 1: info\['engine'\]\['lock'\] cannot be sent to the caller"),
    "InfoHoldsItself": ("info", r"step 1: it holds itself, or is nested too deeply"),
    "FourValues": ("interface", r"it returned 4 values .* is the interface of gym before 0.26"),
    "ResetWithoutInfo": ("interface", r"reset must return \(observation, info\)"),
    "NoSpace": ("interface", "observation_space is None, and must be a gymnasium.Space"),
    "SpaceChanges": ("space", r"observation_space is Box\(.*\) after reset 2, and was Box\(.*\): it must stay"),
    "IgnoresItsSeed": ("determinism", "another observation after other episodes"),
    "LooksAtTheClock": ("determinism", "another observation after other episodes"),
    "KeepsStateBetweenEpisodes": ("determinism", "another observation after other episodes"),
}
WARNINGS = {
    "OutOfSpace": ("bounds", "the observation of step 3 is outside of its space's bounds"),
    "SharesItsBuffer": ("reused", "written over by the next one"),
    "ReseedsNumpy": ("randomness", "it draws from, or seeds, global generators: random, np.random"),
    "ChangesDirectory": ("process", "it changes the current directory"),
    "ChangesHandlers": ("process", "it changes the handler of SIGINT, the handler of SIGTERM"),
    "LeaksMemory": ("memory", r"it grows by [\d.]+ MB with each episode"),
    "LeaksFiles": ("files", r"100 more are open after 100 episodes, one of them /dev/null"),
    "LeavesAThread": ("threads", "left running by close: the renderer"),
    "StartsChildren": ("children", r"\d+ processes still there after close"),
    "StartsADaemon": ("children", r"\d+ processes still there after close"),
    "LeavesADaemon": ("children", r"\d+ processes still there after close"),
    "RemovesItsDirectory": ("process", "it changes the current directory"),
    "NeverEnds": ("endless", "no episode ends within 10,000 random steps"),
    "Prints": ("prints", r"^[\d,]+ lines, the last: 'step 3: \[0, 1, .*\.\.\. .*'$"),
    "WritesToStderr": ("prints", r"^[\d,]+ lines, the last: 'warning: y+ \.\.\. y+'$"),
}
WRONG = {
    "NeedsArguments": "NeedsArguments needs the argument 'level': --env-kwargs",
    "not_an_environment": "which is not a Gymnasium environment: it has no step and reset",
    "nothing": "has no 'nothing'",
}
COUNTED = {"NeverEnds", "LeaksFiles"}  # found after so many steps and episodes, however long they take
FAST = {
    "RaisesInStep",
    "RaisesForSomeSeeds",
    "HangsInInit",
    "KillsItsParent",
    "Prints",
    "StartsADaemon",
    "NeedsArguments",
}


def some(names: Any) -> list[Any]:
    """All of them, most of them only among the slow tests."""
    return [pytest.param(each, marks=() if each in FAST else pytest.mark.slow) for each in names]


def treadle(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command; it ends within `BOUND`, by itself and without a traceback. (`no_residue` looks for what is left.)"""
    done = subprocess.run(
        [sys.executable, "-m", "treadle", *words], cwd=cwd, capture_output=True, text=True, timeout=BOUND
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done


def check(name: str, cwd: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`treadle check` of one of the file's."""
    brief = ("--timeout", str(TIMEOUT), "--steps", "200", "--seconds", "4")
    return treadle(cwd, "check", f"{FILE}:{name}", *brief, *options)


@pytest.mark.parametrize("name", some(FAULTS | WARNINGS))
def test_each_is_found(name: str, tmp_path: Path) -> None:
    about, says = (FAULTS | WARNINGS)[name]
    counted = ("--seconds", "60") if name in COUNTED else ()
    done = check(name, tmp_path, "--json", *counted)
    assert (done.returncode, done.stderr) == (int(name in FAULTS), ""), done.stdout
    first = json.loads(done.stdout)["findings"][0]
    assert (first["level"], first["about"]) == ("fault" if name in FAULTS else "warning", about), done.stdout
    assert re.search(says, first["what"]), first["what"]
    assert first["advice"]
    assert len(done.stdout) < 6000


@pytest.mark.parametrize("name", some(WRONG))
def test_what_cannot_be_meant_is_a_wrong_command(name: str, tmp_path: Path) -> None:
    done = check(name, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert WRONG[name] in line


def test_each_of_the_file_is_in_the_table() -> None:
    kinds = {name for name, kind in vars(misbehaving).items() if getattr(kind, "__module__", "") == "misbehaving"}
    assert kinds - {"Plain", "StartsSlowly"} == {*FAULTS, *WARNINGS, *WRONG} - {"nothing"}


def test_another_directory_in_which_the_file_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(Path(FILE).read_text())
    done = treadle(tmp_path, "check", "mine.py:ChangesDirectory", "--steps", "200", "--seconds", "4")
    assert (done.returncode, done.stderr) == (1, "")
    assert "FAULT   process: beside a second one: file mine.py does not exist\n" in done.stdout
    assert "WARNING process: it changes the current directory\n" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Plain", "StartsSlowly"])
def test_what_is_sound_is_not_blamed(name: str, tmp_path: Path) -> None:
    done = check(name, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{name}: nothing to find fault with\n")


class Several(misbehaving.SharesItsBuffer):
    """A warning from its first step on, an exception in the sixth, and a fault at the end."""

    def step(self, action: Any) -> Any:
        if self.t == 5:
            raise OSError("the motor is hot")
        return super().step(action)

    def close(self) -> None:
        raise RuntimeError("the renderer is gone")


def test_an_exception_is_the_first_finding_and_the_rest_is_checked() -> None:
    report = check_env(Several, seconds=2.0)
    assert [each.about for each in report.findings] == ["raises", "close", "reused"], str(report)
    assert report.findings[0].what.startswith("OSError: the motor is hot, in step 6 of episode 1 from seed 0, at test_")
    assert {"memory", "Gymnasium's own checker"} & set(report.passed) == {"memory"}, str(report)
    assert "killed" in report.facts
