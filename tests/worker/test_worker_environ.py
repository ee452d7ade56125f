"""Environment variables of worker processes, set before anything of users' is imported."""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.errors import UsageError
from treadle.worker.options import THREADS

NAME, OTHER = "TREADLE_TEST_FIRST", "TREADLE_TEST_SECOND"
MODULE = f"import os\nSEEN = os.environ.get({NAME!r}), os.environ.get({OTHER!r})\n"


class Sees(gym.Env[Any, Any]):
    """Its observation says what a module of its own saw when it was imported."""

    observation_space = gym.spaces.Text(40)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        from treadle_test_seeing import SEEN  # type: ignore[import-not-found]

        return "-".join(map(str, SEEN)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, True, False, {}


@pytest.fixture(autouse=True)
def module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "treadle_test_seeing.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(OTHER, "callers")
    monkeypatch.delenv(NAME, raising=False)


def seen(**options: Any) -> list[str]:
    played = treadle.collect(Sees, None, episodes=4, **options)
    return sorted({text for episode in played for text in episode.observations})


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_they_are_there_before_the_first_import(start_method: str) -> None:
    def found(**variables: str | None) -> list[str]:
        options = treadle.WorkerOptions(start_method=start_method, worker_environ=variables or None)
        return seen(workers=2, worker_options=options)

    assert found() == ["None-callers"]
    assert found(**{NAME: "mine"}) == ["mine-callers"]
    assert found(**{NAME: "mine", OTHER: None}) == ["mine-None"]
    assert found() == ["None-callers"]
    assert NAME not in os.environ


def test_each_worker_may_have_its_own() -> None:
    own = {
        "worker_options": treadle.WorkerOptions(worker_environ=lambda index: {NAME: f"worker {index}"}),
        "workers": 2,
    }
    assert seen(**own) == [
        "worker 0-callers",
        "worker 1-callers",
    ]


def test_a_replacement_has_them_too(tmp_path: Any) -> None:
    class Dies(Sees):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            if not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os._exit(3)
            return super().step(action)

    played = treadle.collect(
        Dies, None, episodes=3, workers=1, worker_options=treadle.WorkerOptions(worker_environ={NAME: "mine"})
    )
    assert {text for episode in played for text in episode.observations} == {"mine-callers"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"worker_environ": {"A": 1}}, "a dict of texts"),
        ({"worker_environ": "A=1"}, "a dict of texts"),
        ({"worker_environ": {"A": "1"}, "backend": "thread"}, "not for thread"),
        (
            {"worker_environ": {"A": "1"}, "start_method": "fork"},
            "start_method='fork'",
        ),
        (
            {"worker_environ": {"A": "1"}, "preload": ["json"]},
            "cannot go with preload",
        ),
        ({"worker_environ": lambda index: 7}, "a dict of texts"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        list(treadle.collect("CartPole-v1", None, episodes=2, worker_options=treadle.WorkerOptions(**options)))


def test_a_policy_in_the_caller_and_workers_without_its_device() -> None:
    def policy(observations: list[str]) -> np.ndarray:
        assert NAME not in os.environ
        return np.zeros(len(observations), np.int64)

    played = treadle.collect(
        Sees, policy, episodes=3, inference="caller", worker_options=treadle.WorkerOptions(worker_environ={NAME: ""})
    )
    assert {text for episode in played for text in episode.observations} == {"-callers"}


def test_vectors_take_them() -> None:
    envs = treadle.make_vec(
        Sees,
        2,
        workers=2,
        inline=0,
        worker_options=treadle.WorkerOptions(worker_environ={NAME: "mine"}),
    )
    try:
        assert list(envs.reset()[0]) == ["mine-callers"] * 2
    finally:
        envs.close()


class Threads(gym.Env[Any, Any]):
    """Its observation: the variables that limit threads, and how many this process has after a product of matrices."""

    observation_space = gym.spaces.Text(80)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        matrix = np.ones((300, 300))
        matrix @ matrix
        said = "-".join(os.environ.get(name, "") for name in THREADS)
        return f"{said}-{len(os.listdir('/proc/self/task'))}", {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, True, False, {}


def threads(start_method: str, **variables: str | None) -> list[str]:
    options = treadle.WorkerOptions(start_method=start_method, worker_environ=variables or None)
    played = treadle.collect(Threads, None, episodes=2, workers=2, worker_options=options)
    return sorted({text for episode in played for text in episode.observations})


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_libraries_have_one_thread_unless_more_are_asked_for(
    start_method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    assert threads(start_method) == ["1-1-1-1-1"]
    (found,) = threads(start_method, MKL_NUM_THREADS="3")
    assert found.startswith("1-1-3-1-")
    (found,) = threads(start_method, OMP_NUM_THREADS="2")  # the others follow it
    assert found.startswith("2----")
    (found,) = threads(start_method, OMP_NUM_THREADS=None)
    assert found.startswith("----")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (found,) = threads(start_method)
    assert found.startswith("2----")
    assert all(name not in os.environ for name in THREADS[1:])  # the caller's own are as they were


def test_copies_of_the_caller_are_limited_where_threadpoolctl_is(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    fake = f"def threadpool_limits(count):\n    open({str(told)!r}, 'a').write(f'{{count}} ')\n"
    (tmp_path / "threadpoolctl.py").write_text(fake)
    monkeypatch.delitem(sys.modules, "threadpoolctl", raising=False)
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    (found,) = threads("fork")
    assert found.startswith("1-1-1-1-")
    assert told.read_text().split() == ["1", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    threads("fork")
    assert told.read_text().split() == ["1", "1"]  # the user's own number stays
