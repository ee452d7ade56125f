"""`check_vector_env`: it finds what is known of others' vectors, and nothing in ours."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treadle import VectorEnv
from treadle.errors import UsageError
from treadle.worker.options import WorkerOptions

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # `benchmarks` is not part of the installed package
    sys.path.insert(0, str(ROOT))

from benchmarks.vector_check import TITLES, check_vector_env  # noqa: E402
from benchmarks.vector_drills import NAMED  # noqa: E402


def gymnasium_async(envs: Any) -> Any:
    from gymnasium.vector import AsyncVectorEnv

    return AsyncVectorEnv(envs)


def ours(envs: Any, **options: Any) -> Any:
    return VectorEnv(envs, workers=2, **options)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_gymnasiums_older_results_and_close_that_hangs_are_found() -> None:
    report = check_vector_env(gymnasium_async, drills=["caught timeout", "kill"], limit=8.0)
    stale, hangs = report.faults
    assert (stale.about, hangs.about) == ("stale", "hangs")
    assert "after a caught TimeoutError" in stale.what
    assert hangs.what == "a worker is killed: close does not return"
    assert [each.what for each in report.findings if each.level == "warning"] == [
        "a worker is killed: EOFError does not say which environment it was"
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_nothing_is_found_in_ours(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.vector_check.SETTLE", 20.0)  # it ends as soon as nothing is left

    def make(envs: Any) -> Any:
        return ours(envs, step_timeout=4, autoreset_mode=getattr(AutoresetMode, mode))

    from gymnasium.vector import AutoresetMode

    drills = list(TITLES) if mode == "NEXT_STEP" else ["contract", "raise"]
    report = check_vector_env(make, drills=drills, limit=30.0)
    assert not report.findings, str(report)
    assert report.facts["autoreset"] == mode


class Misleads:
    """A vector that lies: `how`."""

    def __init__(self, envs: Any, how: str) -> None:
        self.vector, self.how = VectorEnv(envs, worker_options=WorkerOptions(backend="serial")), how
        self.metadata = {"autoreset_mode": None} if how != "another mode" else {"autoreset_mode": Mode}
        self.buffer: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observed, infos = self.vector.reset(seed=None if self.how == "no seeds" else seed, options=options)
        return self._shown(observed), infos

    def _shown(self, observed: Any) -> Any:
        if self.how == "another order":
            return observed[::-1].copy()
        if self.how == "float64":
            return observed.astype(np.float64)
        if self.how == "one buffer":
            self.buffer = observed.copy() if self.buffer is None else self.buffer
            self.buffer[:] = observed
            return self.buffer
        return observed

    def step(self, actions: Any) -> Any:
        if self.how == "other actions":
            actions = (np.asarray(actions) + 1) % 4
        observed, rewards, terminated, truncated, infos = self.vector.step(actions)
        if self.how == "rewards are integers":
            rewards = rewards.astype(np.int64)
        if self.how == "no ends":
            terminated = np.zeros_like(terminated)
        return self._shown(observed), rewards, terminated, truncated, infos

    def close(self) -> None:
        self.vector.close()


class Swallows(Misleads):
    """Goes on with the last rows where an environment has raised."""

    def __init__(self, envs: Any) -> None:
        super().__init__(envs, "")

    def reset(self, **given: Any) -> Any:
        self.last = super().reset(**given)[0]
        return self.last, {}

    def step(self, actions: Any) -> Any:
        try:
            return super().step(actions)
        except ValueError:
            return self.last, np.zeros(3), np.zeros(3, bool), np.zeros(3, bool), {}


@pytest.mark.timeout(60)
def test_a_vector_that_swallows_what_was_raised_is_found() -> None:
    (found,) = check_vector_env(Swallows, drills=["raise"]).faults
    assert (found.about, found.what) == ("silent", "a step raises: the steps go on, and nobody is told")


class Mode:
    """An autoreset mode of a vector that says it."""

    name = "SAME_STEP"


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("how", "about"),
    [
        ("another order", "order"),
        ("float64", "spaces"),
        ("rewards are integers", "spaces"),
        ("one buffer", "aliasing"),
        ("no seeds", "seeds"),
        ("other actions", "rows"),
        ("no ends", "ends"),
        ("another mode", "autoreset"),
    ],
)
def test_each_vector_that_misleads_is_found(how: str, about: str) -> None:
    report = check_vector_env(lambda envs: Misleads(envs, how), drills=["contract"])
    assert report.found(about), str(report)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("slot 1 (worker 0, pid 4711) in step 3", True),
        ("env 1 raised", True),
        ("worker-1 died", True),
        ("Environment #1", True),
        ("slot 11 raised", False),
        ("EOFError", False),
        ("1 is not an index", False),
    ],
)
def test_what_names_an_environment(text: str, named: bool) -> None:
    assert bool(NAMED.search(text)) is named


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="no drill 'flood'"):
        check_vector_env(ours, drills=["flood"])


def test_a_vector_that_cannot_be_made_is_one_fault_and_a_wrong_name_is_refused(tmp_path: Path) -> None:
    def of_nothing() -> Any: ...

    report = check_vector_env(of_nothing)
    (fault,) = report.findings
    assert "takes 0 positional arguments but 1 was given" in fault.what
    assert "list of functions" in fault.advice
    file = tmp_path / "mine.py"
    file.write_text("def make(envs): ...")
    with pytest.raises(UsageError, match="has no 'mak'"):
        check_vector_env(f"{file}:mak")
    with pytest.raises(UsageError, match="a drill's limit"):
        check_vector_env(of_nothing, limit=0)
